#!/usr/bin/env python3
"""Checks the lengths of files and functions. Usage: check_lengths.py SOURCE_DIR; exit 1 names each that is too long.

A function's lines are those from its opening brace to its closing one, in Python from `def` to its end. Functions within
functions count for the outer one.
"""

import ast
import re
import sys
from pathlib import Path

from check_comments import CODE, split

FILE_LIMITS = {"src": 450, "kernels": 450, "jobscripts": 450, "tests": 500}
FUNCTION_LIMIT = 60
SCRIPTS = (".py", ".sh", ".sbatch")

DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
# What ends before the brace of a function: its parameters and qualifiers, or the captures of a lambda.
SIGNATURE = re.compile(r"(?:\)|\])\s*(?:(?:const|override|final|mutable|try|&&?|noexcept(?:\([^()]*\))?)\s*)*(?:->[^;=]*)?$")


def functions_of_cpp(text):
    """(first line, number of lines) of each function of a C++ source."""
    code = DIRECTIVE.sub(lambda match: "\n" * match[0].count("\n"), split(text)[0])
    opened, begin, function = [], 0, None
    for brace in re.finditer(r"[{};]", code):
        line = code.count("\n", 0, brace.start()) + 1
        before = code[begin:brace.start()].strip()
        if brace[0] == "{":
            # After a brace that closes, as in `: member_{value} {`, comes the body of a constructor.
            after_member = not before and begin > 0 and code[begin - 1] == "}"
            if function is None and (after_member or SIGNATURE.search(before)):
                function = (len(opened), line)
            opened.append(line)
        elif brace[0] == "}":
            if not opened:
                raise ValueError(f"line {line}: a brace closes that was never opened")
            opened.pop()
            if function and function[0] == len(opened):
                yield function[1], line - function[1] + 1
                function = None
        begin = brace.end()
    if opened:
        raise ValueError(f"line {opened[-1]}: a brace is never closed")


def functions_of_python(text):
    """(first line, number of lines) of each function of a Python source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def breaches_of(file, text, limit):
    lines = len(text.splitlines())
    if lines > limit:
        yield f"{file} has {lines} lines, more than {limit}"
    of = {".py": functions_of_python, **dict.fromkeys(CODE, functions_of_cpp)}.get(file.suffix)
    try:
        for line, length in of(text) if of else ():
            if length > FUNCTION_LIMIT:
                yield f"{file}:{line}: a function of {length} lines, more than {FUNCTION_LIMIT}"
    except (SyntaxError, ValueError) as error:
        yield f"{file}: cannot be read: {error}"


def main():
    root, found, files = Path(sys.argv[1]), [], 0
    for folder, limit in FILE_LIMITS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (*CODE, *SCRIPTS) and path.is_file():
                files += 1
                found += breaches_of(path.relative_to(root), path.read_text(), limit)
    print("\n".join(found) or f"{files} files within the limits")
    sys.exit(1 if found or not files else 0)


if __name__ == "__main__":
    main()
