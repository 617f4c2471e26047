"""Scaling studies: expansion and launch of the runs, their measurements, a model fitted to them, and the report."""

from tool import ToolError as StudyError  # noqa: F401: a study that cannot go on
