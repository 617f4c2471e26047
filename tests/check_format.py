#!/usr/bin/env python3
"""Checks the layout of src/, kernels/ and tests/ with clang-format 14, whose versions differ in what they ask for.

Usage: check_format.py SOURCE_DIR; exit 1 names each file, exit 77 says that there is no clang-format 14.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = 14
ENDINGS = {".hpp", ".cpp", ".cu", ".cuh"}


def find_clang_format():
    """The path of clang-format 14, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], text=True, capture_output=True).stdout
        if re.search(rf"version {VERSION}\.", said):
            return path
    return None


def main():
    root = Path(sys.argv[1])
    files = sorted(path for folder in ("src", "kernels", "tests") for path in (root / folder).rglob("*")
                   if path.suffix in ENDINGS)
    if not files:
        sys.exit(f"{root}: no sources")
    program = find_clang_format()
    if program is None:
        print(f"skipped: no clang-format {VERSION}; apt-get install clang-format on Debian 12")
        sys.exit(77)
    run = subprocess.run([program, "--dry-run", "-Werror", *files], text=True, capture_output=True)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error:", run.stderr, re.MULTILINE)))
    for path in wrong:
        print(f"{Path(path).relative_to(root)}: run {Path(program).name} -i on it")
    if run.returncode and not wrong:
        print(run.stderr, file=sys.stderr)
    sys.exit(1 if run.returncode else 0)


if __name__ == "__main__":
    main()
