"""Has another compiler read the sources of the program with the flags of a default build; warnings are errors. Exit
code 77 where that compiler is not installed.

Usage: test_compilers.py CASE CMAKE SOURCE_DIR BUILD_DIR. CASE is clang, or arm: g++ for ARM, which reads the sources
that depend on the processor, those of kernels/. BUILD_DIR is a finished configuration for this machine; it says where
the libraries are.
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

COMPILERS = {"clang": ("clang", "clang++"), "arm": ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def cross_options(found):
    """Options of a build for ARM with the libraries of this machine, whose headers serve both."""
    for file in Path(found["Kokkos_DIR"]).glob("KokkosConfig*.cmake"):
        if re.search(r"^set\(Kokkos_ARCH +\S+\)", file.read_text(), re.IGNORECASE | re.MULTILINE):
            skip(f"{file}: this Kokkos is for one processor")
    # CMake itself would look among the libraries for ARM.
    names = [name for name in found if name.endswith(("_DIR", "_LIBRARY")) and not name.startswith("CMAKE")]
    places = {name: found[name] for name in names if found[name] and not found[name].endswith("NOTFOUND")}
    # Nothing can be linked.
    return ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", *(f"-D{name}={place}" for name, place in places.items())]


def check(item):
    """What the compiler says of a source that it refuses; empty of others."""
    source, command = item
    job = subprocess.run([*command, "-fsyntax-only"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{source}\n{job.stdout}" if job.returncode != 0 else ""


def main():
    case, cmake, source, host = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    c, cxx = COMPILERS[case]
    if shutil.which(cxx) is None:
        skip(f"no {cxx}")
    options = cross_options(cache(host)) if case == "arm" else []
    with tempfile.TemporaryDirectory(prefix="nanorun-compiler-") as build:
        configure(cmake, source, build, f"-DCMAKE_C_COMPILER={c}", f"-DCMAKE_CXX_COMPILER={cxx}",
                  "-DCMAKE_CXX_COMPILER_LAUNCHER=", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *options)
        sources = commands(build)
        if case == "arm":
            sources = {path: command for path, command in sources.items() if path.is_relative_to(source / "kernels")}
        for name in ("kernels/device/device.cpp", *(["src/main.cpp"] if case == "clang" else [])):
            assert source / name in sources, f"{name} is not among {list(sources)}"
        with ThreadPoolExecutor(min(2, os.cpu_count())) as pool:
            refused = "".join(pool.map(check, sources.items()))
    print(refused or f"{cxx} reads {len(sources)} sources")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
