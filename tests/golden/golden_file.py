"""The layout of the golden files: an entry of a dictionary on a line of its own, and with it a list of numbers, as the
values of a parameter, the losses of a run, or the tokens of a sequence."""

import json
from pathlib import Path


def text_of(value, indent=""):
    """JSON. A list has its elements on lines of their own only where one of them is a list or a dictionary."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        entries = [f"{json.dumps(str(key))}: {text_of(entry, inner)}" for key, entry in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(entry, (dict, list, tuple)) for entry in value):
        entries = [text_of(entry, inner) for entry in value]
    else:
        return json.dumps(value)
    first, last = "{}" if isinstance(value, dict) else "[]"
    lines = (",\n" + inner).join(entries)
    return f"{first}\n{inner}{lines}\n{indent}{last}"


def write(path, value):
    Path(path).write_text(text_of(value) + "\n")
