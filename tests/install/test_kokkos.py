"""Compiles the program against one installation of Kokkos, and runs it.

Usage: test_kokkos.py CMAKE SOURCE_DIR BUILD_DIR KOKKOS_ROOT [arguments of cmake]. KOKKOS_ROOT is a prefix or the
directory of KokkosConfig.cmake. The build directory stays, so that later runs are short.
"""

import re
import subprocess
import sys
from pathlib import Path


def main():
    cmake, source, build, root = sys.argv[1], *map(Path, sys.argv[2:5])
    options = [
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DNANORUN_TESTS=OFF",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
        f"-DKokkos_ROOT={root}",
        *sys.argv[5:],
    ]
    configured = subprocess.run(
        [cmake, "-S", source, "-B", build, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if configured.returncode != 0:
        sys.exit(configured.stdout)

    # CMake falls back on other places when the root holds no Kokkos.
    found = re.search(r"^Kokkos_DIR:PATH=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    if not found or not Path(found[1]).resolve().is_relative_to(root.resolve()):
        sys.exit(f"{root}: no Kokkos there; CMake found {found and found[1]}")

    subprocess.run([cmake, "--build", build, "--parallel", "2", "--target", "nanorun"], check=True)
    dry_run = [build / "bin" / "nanorun", "train", "--dry-run", source / "inputs" / "quickstart.toml"]
    subprocess.run(dry_run, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
