#!/usr/bin/env python3
"""Checks that ops are declared once, for all implementations. Usage: check_ops.py SOURCE_DIR; exit 1 names each breach.

The headers that kernels/ops.hpp includes declare functions of an implementation in NANORUN_DECLARE_OPS alone; see
kernels/device/op.hpp. Functions that one implementation has and the others do not stand in headers of their own. A
function with a body for each tier of GPUs is compared in tests/cuda/test_cuda_tiers*.cpp: by name, or where its header
is for nvcc alone, through the op whose header the test includes.
"""

import re
import sys
from pathlib import Path


def implementations(root):
    """The namespaces into which NANORUN_DECLARE_OPS puts a declaration."""
    return re.findall(r"^\s*NANORUN_DECLARE_IN\((\w+), __VA_ARGS__\)", (root / "kernels/device/op.hpp").read_text(), re.M)


def op_headers(root):
    """The headers that kernels/ops.hpp includes."""
    return re.findall(r'#include "(kernels/[^"]+)"', (root / "kernels/ops.hpp").read_text())


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def code_of(text):
    """The text with comments, directives and what ops are declared in blanked, line by line."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)
    text = re.sub(r"^\s*#[^\n]*(?:\\\n[^\n]*)*", blank, text, flags=re.M)
    return re.sub(r"\bNANORUN_DECLARE_(?:TIERED_)?OPS\(\{.*?\n?\}\)", blank, text, flags=re.S)


def block_end(text, begin):
    """Where the brace is that closes the one before `begin`."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def functions_of(text, names):
    """Offset and name of each function that is declared in one of the namespaces."""
    for match in re.finditer(r"\bnamespace (?:\w+::)*(%s)(?:::\w+)* *\{" % "|".join(names), text):
        end = block_end(text, match.end())
        body = text[match.end():end]
        while re.search(r"\{[^{}]*\}", body):
            body = re.sub(r"\{[^{}]*\}", blank, body)
        for function in re.finditer(r"\b(\w+)\s*\(", body):
            if "=" not in body[:function.start()].rpartition(";")[2]:  # else the value of a constant
                yield match.end() + function.start(), function.group(1)


def bodies(root):
    """Header and name of each function that has a body for each tier."""
    for header in sorted((root / "kernels").rglob("*.*")):
        if header.suffix not in (".hpp", ".cuh"):
            continue
        text = re.sub(r"//[^\n]*", "", header.read_text())
        for declared in re.findall(r"^NANORUN_DECLARE_(?:TIERED(?:_OPS)?|BODIES)\(\{(.*?)\n\}\)", text, re.M | re.S):
            for name in sorted(set(re.findall(r"\b(\w+)\s*\(", declared))):
                yield header.relative_to(root), name


def not_compared(root):
    tests = "".join(path.read_text() for path in sorted((root / "tests/cuda").glob("test_cuda_tiers*.cpp")))
    for header, name in bodies(root):
        by_name = header.suffix == ".hpp"
        wanted = rf"\bhopper::{name}\b" if by_name else re.escape(f'#include "{header.with_suffix(".hpp")}"')
        if not re.search(wanted, tests):
            yield f"{header}: no tests/cuda/test_cuda_tiers*.cpp compares the bodies of {name}()"


def breaches(root):
    names = implementations(root)
    if len(names) < 2:
        yield "kernels/device/op.hpp: NANORUN_DECLARE_OPS has fewer than two implementations"
        return
    for header in op_headers(root):
        text = code_of((root / header).read_text())
        for at, function in functions_of(text, names):
            yield f"{header}:{text.count(chr(10), 0, at) + 1}: {function}() is declared for one implementation alone"
    yield from not_compared(root)


def main():
    root = Path(sys.argv[1])
    found = list(breaches(root))
    print("\n".join(found) or f"{len(op_headers(root))} headers of ops in order")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
