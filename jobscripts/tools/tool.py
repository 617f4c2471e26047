"""What the Python tools share: how they read and write files, and how they end.

Whatever a user can meet, such as a damaged file, a missing module or Ctrl-C, ends a tool in one line on standard error.
A traceback is a defect of the tool.
"""

import argparse
import contextlib
import fcntl
import importlib
import json
import logging
import multiprocessing
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

MAX_TOML_BYTES, MAX_NESTING = 1 << 20, 16  # nanorun's limits on decks; deeper nesting exhausts the parser's stack
# What is skipped when nesting is counted: strings, closed or not, and comments; and what changes it.
TOML_PART = re.compile(r'''
    (?P<skipped> \"{3} (?:\\.|[^\\])*? (?:\"{3,5}|\Z) | \'{3} .*? (?:\'{3,5}|\Z) | "(?:\\.|[^"\\\n])*"? | '[^'\n]*'?
      | \#[^\n]*)
    | [][{}.,\n]''', re.DOTALL | re.VERBOSE)
READ_SECONDS = 60  # after which a file counts as one that cannot be read
# Pictures go to files, whatever display the user's settings name; matplotlib need not say where it keeps its fonts.
os.environ["MPLBACKEND"] = "Agg"
logging.getLogger("matplotlib").setLevel(logging.ERROR)
WRONG, NOT_DONE = 2, 1  # exit codes: arguments or files are not what they should be; the work was left undone


class ToolError(Exception):
    """A message for the user that ends the tool."""

    def __init__(self, message, code=WRONG):
        super().__init__(one_line(message))
        self.code = code


def one_line(text):
    """Text without line ends and control characters, cut to a moderate length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in visible(text)).split())
    return line if len(line) <= 400 else line[:397] + "..."


def visible(text):
    """Text or a path as UTF-8 can hold it: bytes of a name that are not UTF-8 are shown in hexadecimal."""
    try:
        data = str(text).encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a pair, as JSON can hold it
        data = str(text).encode(errors="backslashreplace")
    return data.decode(errors="backslashreplace")


@contextlib.contextmanager
def using(name, *damage, kind=""):
    """Turns errors of the system into a ToolError that names the file. The exceptions `damage`, which contents raise,
    become one too: "NAME: not KIND"."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror or error}") from None
    except damage as error:
        why = error.args[0] if isinstance(error, KeyError) else error  # h5py's messages
        raise ToolError(f"{name}: not {kind}: {why}") from None


def require_regular(path):
    """Throws ToolError unless the path is a regular file: directories cannot be read, and pipes and devices may never
    end."""
    with using(path, ValueError, kind="a path"):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path}: not a regular file")


def has_locks(path):
    """Whether flock(2) works on the file's file system."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def read_text(path):
    """The text of a file, without a byte-order mark and with line feeds at the ends of lines."""
    require_regular(path)
    with using(path, UnicodeDecodeError, kind="UTF-8"):
        return Path(path).read_text(encoding="utf-8-sig")


def read_json(path):
    """The object in a JSON file."""
    text = read_text(path)
    with using(path, ValueError, RecursionError, kind="JSON"):
        value = json.loads(text)
    return require(value, dict, path, "the file")


def require_shallow(path, text):
    """Throws ToolError if brackets and dotted keys nest deeper than a parser can follow."""
    depth, outside = 0, []  # the depth around each open bracket
    for part in TOML_PART.finditer(text):
        mark = part[0]
        if part["skipped"]:
            continue
        if mark in "[{":
            outside.append(depth)
            depth += 1
        elif mark in "]}":
            depth = outside.pop() if outside else depth
        elif mark == ".":
            depth += 1
        else:
            depth = outside[-1] + 1 if outside else 0
        if depth > MAX_NESTING:
            line = 1 + text.count("\n", 0, part.start())
            raise ToolError(f"{path}: line {line}: brackets or dotted keys nest more than {MAX_NESTING} deep")


def read_toml(path):
    tomllib = need("tomllib")
    require_regular(path)
    with using(path):
        size = os.path.getsize(path)
    if size > MAX_TOML_BYTES:
        raise ToolError(f"{path}: {size} bytes; a TOML file has at most {MAX_TOML_BYTES}")
    text = read_text(path)
    require_shallow(path, text)
    with using(path, ValueError, RecursionError, kind="TOML"):
        return tomllib.loads(text)


def answer(sender, function, path):
    try:
        sender.send(function(path))
    except Exception as error:
        sender.send(error)


def read_apart(function, path):
    """Calls `function(path)` in a process of its own: HDF5 may crash or never end if the file is damaged."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    reader = multiprocessing.get_context("fork").Process(target=answer, args=(sender, function, path), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process alone
    reader.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    sender.close()
    try:
        ended = receiver.poll(READ_SECONDS)
        value = receiver.recv() if ended else ToolError(f"{path}: damaged: reading it does not end")
    except EOFError:
        value = ToolError(f"{path}: damaged: reading it crashes")
    finally:
        reader.kill()
        reader.join()
    if isinstance(value, Exception):
        raise value
    return value


def write(path, data):
    """Writes text or bytes to a file."""
    with using(path, ValueError, kind="a path"):
        Path(path).write_bytes(visible(data).encode() if isinstance(data, str) else data)


def replace(path, text):
    """Replaces the text of a file as a whole: other readers see the old or the new one. Writes directly to what is no
    regular file."""
    path = Path(path)
    if os.path.lexists(path) and not os.path.isfile(path):
        write(path, text)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial, text)
        with using(path):
            os.replace(partial, path)
    except ToolError as error:
        raise ToolError(str(error).replace(str(partial), str(path))) from None
    finally:
        with contextlib.suppress(OSError, ValueError):
            partial.unlink()


KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string", dict: "a table", list: "a list"}


def require(value, kind, path, key, least=-1e15, most=1e15):
    """Returns `value` if it is of the kind and, for a number, within the bounds. Throws ToolError otherwise."""
    accepted = (int, float) if kind is float else kind
    right = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if right and kind in (int, float):
        right = least <= value <= most  # also refuses integers that no float can hold
    if not right:
        raise ToolError(f"{path}: {key} should be {KINDS[kind]}, not {json.dumps(value, default=str)[:60]}")
    return value


def field(table, key, kind, path, **bounds):
    """The value of a key of a table in a file, checked by require()."""
    if key not in table:
        raise ToolError(f"{path}: {key} is missing")
    return require(table[key], kind, path, key, **bounds)


def toml_string(text):
    """Text as a TOML string. It is a JSON string but for one control character, which JSON does not escape."""
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def other_python(module):
    """A hint at the system's Python where that has the module and this one, such as pyenv's, does not."""
    system = "/usr/bin/python3"
    imports = [system, "-c", f"import {module}"]
    if not os.path.exists(system) or subprocess.run(imports, capture_output=True).returncode != 0:
        return ""
    return f"; or run {system} {shlex.quote(sys.argv[0])}, which has it"


def need(*names):
    """Imports modules that may be missing, and returns the last one."""
    for name in names:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            package = name.partition(".")[0]
            how = ("take Python 3.11 or newer" if name == "tomllib" else
                   f"apt-get install python3-{package}, or pip install {package}")
            raise ToolError(f"{sys.executable} has no module {name} ({error}): {how}{other_python(name)}") from None
        except (OSError, ValueError) as error:  # from the module's own settings
            raise ToolError(f"the module {name} cannot be loaded: {error}") from None
    return module


def summary(documentation):
    """The first paragraph of a tool's documentation; empty under -OO, where Python leaves it out."""
    return (documentation or "").split("\n\n")[0]


def parse(parser, words=None):
    """The arguments of the command line, or of words."""
    with printing():  # for help
        return parser.parse_args(words)
    sys.exit()


def directory(text):
    """A path, for argparse. Refuses an empty one, which an unset variable of the shell leaves."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the directory is empty")
    return Path(text)


@contextlib.contextmanager
def printing():
    """A context in which standard output may be written. If nobody reads it any more, as behind `head`, the tool goes
    on and the output is lost."""
    with using("standard output"):
        try:
            yield
        except BrokenPipeError:
            discard(1)


def say(text):
    """Prints a line at once."""
    with printing():
        print(visible(text), flush=True)


def aligned(rows, text=1):
    """Rows as lines of a terminal: the first `text` columns to the left, the others to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) if i < text else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def warn(text):
    """Prints a line on standard error, if that can be written."""
    try:
        if sys.stderr:
            print(visible(text), file=sys.stderr, flush=True)
    except OSError:
        discard(2)


def discard(descriptor):
    """Redirects a descriptor that cannot be written to /dev/null, so that Python does not try again at the end of the
    process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def run(main, name=""):
    """Runs a tool and ends the process. `main` returns the exit code, None for 0. `name`: what the user has started, if
    it is not the tool itself."""
    name = name or Path(sys.argv[0]).name
    if sys.stdout:
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = call(main)
    except ToolError as error:
        code = fail(f"{name}: {error}", error.code)
    except KeyboardInterrupt:
        code = fail(f"{name}: interrupted", NOT_DONE)
    sys.exit(code)


def call(main):
    try:
        code = main()
    except SystemExit as end:  # argparse exits so
        code = end.code
    with printing():
        if sys.stdout:
            sys.stdout.flush()
    return code


def fail(message, code):
    warn(message)
    discard(1)
    return code
