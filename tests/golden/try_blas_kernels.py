#!/usr/bin/env python3
"""Runs the golden tests with each of OpenBLAS' kernels that this processor can run, one after the other, and prints a
table for README.md. OPENBLAS_CORETYPE names the kernels. First each multiplies small matrices, and the product is
compared with that of the reference BLAS: kernels that fail here are broken, and the goldens are not tried with them.
Standard library only; for processors of x86-64."""

import argparse
import ctypes
import datetime
import os
import platform
import random
import re
import subprocess
import sys
from pathlib import Path

# Names that OpenBLAS gives its kernels, and what they need beyond what every processor of x86-64 has, as /proc/cpuinfo
# says it. Some processors of AMD have instructions that later ones lack.
AVX512 = "avx512f avx512cd avx512bw avx512dq avx512vl"
KERNELS = {
    "Prescott": "pni", "Core2": "ssse3", "Penryn": "sse4_1", "Dunnington": "sse4_1", "Nehalem": "sse4_2",
    "Sandybridge": "avx", "Haswell": "avx2 fma", "SkylakeX": AVX512, "Cooperlake": AVX512 + " avx512_bf16",
    "SapphireRapids": AVX512 + " avx512_bf16 amx_tile amx_bf16", "Atom": "ssse3", "Nano": "ssse3", "Opteron": "3dnow",
    "Opteron_SSE3": "3dnow pni", "Barcelona": "3dnow sse4a", "Bobcat": "sse4a ssse3", "Bulldozer": "avx fma4",
    "Piledriver": "avx fma fma4", "Steamroller": "avx fma fma4", "Excavator": "avx2 fma fma4", "Zen": "avx2 fma",
}
SHAPES = ((64, 64, 64), (127, 65, 259), (33, 200, 1), (1, 31, 300), (256, 129, 384))


def cpu():
    """Model name and flags of the processor."""
    text = Path("/proc/cpuinfo").read_text()
    found = {key: re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE) for key in ("model name", "model", "flags")}
    model = f"{found['model name'][1]}, model {found['model'][1]}"
    return model, set(found["flags"][1].split())


def gemm(library, transposed_a, transposed_b, m, n, k, a, b):
    """C = op(A) op(B) in column order, as a list."""
    c = (ctypes.c_float * (m * n))()
    lda, ldb = (k if transposed_a else m), (n if transposed_b else k)
    letters = [ctypes.c_char(b"T" if transposed else b"N") for transposed in (transposed_a, transposed_b)]
    numbers = [ctypes.byref(ctypes.c_int(number)) for number in (m, n, k)]
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    library.sgemm_(*map(ctypes.byref, letters), *numbers, one, a, ctypes.byref(ctypes.c_int(lda)), b,
                   ctypes.byref(ctypes.c_int(ldb)), zero, c, ctypes.byref(ctypes.c_int(m)))
    return c


def worst_of_gemms(blas, reference):
    """Largest difference of the products, in units of what rounding may make of their sums."""
    tried, known = ctypes.CDLL(blas), ctypes.CDLL(reference)
    draw = random.Random(1)
    worst = 0.0
    for m, n, k in SHAPES:
        a = (ctypes.c_float * (m * k))(*(draw.uniform(-1, 1) for _ in range(m * k)))
        b = (ctypes.c_float * (k * n))(*(draw.uniform(-1, 1) for _ in range(k * n)))
        sizes = [(ctypes.c_float * len(x))(*map(abs, x)) for x in (a, b)]
        for kinds in ((False, False), (False, True), (True, False), (True, True)):
            ours, theirs = (gemm(library, *kinds, m, n, k, a, b) for library in (tried, known))
            for x, y, size in zip(ours, theirs, gemm(known, *kinds, m, n, k, *sizes)):
                error = abs(x - y) / (size * k * 2.0**-24)
                worst = max(worst, error if error == error else float("inf"))
    return worst


def linked_blas(program):
    """The library that a program computes with."""
    text = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.search(r"=> (\S*(?:openblas|libblas)\S*)", text)
    if found is None:
        raise SystemExit(f"{program}: is not linked with OpenBLAS as a shared library")
    return found[1]


def run(command, kernel, **more):
    environment = os.environ | {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_VERBOSE": "2", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def golden_results(programs, kernel):
    """Tests that failed, and the largest differences that the programs print, by what they compare."""
    failed, largest, passed = [], {}, 0
    for program in programs:
        done = run([program], kernel)
        failed += re.findall(r"^\[  FAILED  \] (\w+\.\w+) \(", done.stdout, re.MULTILINE)
        passed += len(re.findall(r"^\[       OK \]", done.stdout, re.MULTILINE))
        if done.returncode not in (0, 1):
            failed.append(f"{Path(program).name} ended with {done.returncode}")
        test = ""
        for line in done.stdout.splitlines():
            if found := re.match(r"\[ RUN      \] (\S+)", line):
                test = found[1]
            elif found := re.match(r"largest relative difference, (.*): (\S+)$", line):
                if "Fp8" not in test:
                    largest[found[1]] = max(largest.get(found[1], 0.0), float(found[2]))
    return failed, largest, passed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="directory of the build, such as build/cpu")
    parser.add_argument("kernels", nargs="*", help="kernels to try (default: all that the processor can run)")
    parser.add_argument("--reference", default="/usr/lib/x86_64-linux-gnu/blas/libblas.so.3",
                        help="shared library of the reference BLAS (default: %(default)s)")
    parser.add_argument("--gemm", metavar="BLAS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gemm:
        print("worst", worst_of_gemms(arguments.gemm, arguments.reference))
        return
    programs = [str(arguments.build / "bin" / name) for name in ("test_golden", "test_record89")]
    blas = linked_blas(programs[0])
    model, flags = cpu()
    commit = subprocess.run(["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"], text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    print(f"{model}; {platform.platform()}; {Path(blas).resolve().name}; {datetime.date.today()}, commit {commit}\n")
    print("| kernels | GEMM against reference BLAS | goldens | loss | gradient norm | final norm |")
    print("|---|---|---|---|---|---|")
    for kernel in arguments.kernels or KERNELS:
        if not set(KERNELS[kernel].split()) <= flags:
            continue
        done = run([sys.executable, __file__, arguments.build, "--reference", arguments.reference, "--gemm", blas], kernel)
        core, found = (re.search(rf"^{word} (\S+)", done.stdout, re.MULTILINE) for word in ("Core:", "worst"))
        if core and core[1].lower() != kernel.lower():
            print(f"| {kernel} | not in this library, which takes {core[1]} | | | | |", flush=True)
        elif found is None or float(found[1]) > 1:
            error = f"{float(found[1]):.1e}" if found else f"ends with {done.returncode}"
            print(f"| {kernel} | **broken**: {error} | not tried | | | |", flush=True)
        else:
            failed, largest, passed = golden_results(programs, kernel)
            said = f"{passed} pass" + (f", {', '.join(failed)} fail" if failed else "")
            figures = [f"{largest.get(what, float('nan')):.1e}" for what in ("loss", "gradient norm", "final norm")]
            print(f"| {kernel} | {float(found[1]):.1e} | {said} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
