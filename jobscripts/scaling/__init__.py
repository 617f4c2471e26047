"""Scaling studies: expansion and launch of the runs, their measurements, a model fitted to them, and the report."""


class StudyError(Exception):
    """A study that cannot go on: the message is one line for the user."""
