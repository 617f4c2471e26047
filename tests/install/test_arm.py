"""Checks that the program compiles for ARM: a cross compiler reads every source with the flags that a default build
there has. Exit code 77 without that compiler.

Usage: test_arm.py CMAKE SOURCE_DIR BUILD_DIR. BUILD_DIR is a finished configuration for this machine; it says where the
libraries are, whose headers serve both.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configure import cache, commands, configure

PREFIX = "aarch64-linux-gnu-"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def places(found):
    """Options that name the libraries of this machine: CMake itself would look among those for ARM."""
    names = [name for name in found if name.endswith(("_DIR", "_LIBRARY")) and not name.startswith("CMAKE")]
    settings = {name: found[name] for name in names if found[name] and not found[name].endswith("NOTFOUND")}
    # Debian links it into a directory that also holds this machine's headers of the C library.
    settings["OpenBLAS_INCLUDE_DIR"] = (Path(found["OpenBLAS_INCLUDE_DIR"]) / "cblas.h").resolve().parent
    return [f"-D{name}={value}" for name, value in settings.items()]


def check(item):
    """What the compiler says of a source that it refuses; empty of others."""
    source, command = item
    job = subprocess.run([*command, "-fsyntax-only"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{source}\n{job.stdout}" if job.returncode != 0 else ""


def main():
    cmake, source, host = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if shutil.which(PREFIX + "g++") is None:
        skip(f"no {PREFIX}g++; Debian has it in g++-aarch64-linux-gnu")
    found = cache(host)
    for file in Path(found["Kokkos_DIR"]).glob("KokkosConfig*.cmake"):
        if re.search(r"^set\(Kokkos_ARCH +\S+\)", file.read_text(), re.IGNORECASE | re.MULTILINE):
            skip(f"{file}: this Kokkos is for one processor")

    with tempfile.TemporaryDirectory(prefix="nanorun-arm-") as build:
        # Nothing can be linked with this machine's libraries.
        configure(cmake, source, build, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
                  f"-DCMAKE_C_COMPILER={PREFIX}gcc", f"-DCMAKE_CXX_COMPILER={PREFIX}g++",
                  "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DCMAKE_CXX_COMPILER_LAUNCHER=",
                  "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *places(found))
        sources = commands(build)
        for name in ("kernels/device.cpp", "src/main.cpp"):
            assert source / name in sources, f"{name} is not among {list(sources)}"
        with ThreadPoolExecutor(min(2, os.cpu_count())) as pool:
            refused = "".join(pool.map(check, sources.items()))
    print(refused or f"{len(sources)} sources compile for ARM")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
