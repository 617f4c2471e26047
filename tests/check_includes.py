#!/usr/bin/env python3
"""Checks the include directions of src/ and kernels/. Usage: check_includes.py SOURCE_DIR; exit 1 names each breach."""

import re
import sys
from pathlib import Path

# The folders and what they hold. A file includes files of its own folder and of the lines above. docs/architecture.md
# shows the same lines.
FOLDERS = """
kernels/device     device, streams, views of tensors; helpers of all kernels; ops on memory
kernels/hopper     what Hopper alone has: TMA, wgmma, mbarrier; the fused GEMM
kernels/ampere     what takes its place on other GPUs: cp.async, mma.sync; the fused GEMM
kernels/linear     products with weights, and what is fused with them
kernels/attention  attention, its projection, and what is done to its heads
kernels/lm_head    the LM head and the loss
kernels/stream     the residual stream: embedding, norms, mixes, coefficient nets
kernels/optimizer  Adam and Muon, outer steps and averages of weights
kernels            the dispatcher of ops
src/base           files, text, errors, memory, the process
src/config         the deck: its keys and rules, and what changes with the step
src/storage        HDF5 files and .bin files
src/comm           collectives, transports, watchdog
src/tokenizer      text to tokens and back
src/measure        trace, metrics, state of GPUs, time left
src/data           what a run reads: shards, sequences, masks, uploads
src/shard          nanorun shard, verify and export SHARD
src/model          the model: parameters, layers, passes
src/optimizer      updates of parameters, and what travels for them
src/run            a training run: setup, steps, validation, checkpoints, log
src/commands       the other commands on models: eval, sample, import, export
src                command line and main
"""
LEVEL = {line.split()[0]: level for level, line in enumerate(FOLDERS.strip().splitlines())}

# Which folders, or modules of one, may see a header.
MAY_SEE = {
    "mpi.h": {"src/comm", "src/storage"},
    "nccl.h": {"src/comm"},
    "kernels/device/peer_memory.hpp": {"src/comm", "kernels/device"},
    "hdf5.h": {"src/storage"},
    "toml++/toml.h": {"src/config"},
    "CLI/": {"src/command_line", "src/help_format"},
    "nlohmann/json.hpp": {"src/base", "src/tokenizer", "src/measure", "src/shard", "src/run", "src/commands"},
    "pcre2.h": {"src/tokenizer"},
    "dlfcn.h": {"src/base/early", "src/comm", "src/measure", "src/run/stop", "kernels/device/blas"},
    "kernels/device/cblas.hpp": {"kernels/device"},
    "Kokkos": {"kernels/device"},
    # Whoever asks the file system elsewhere may drop its errors.
    "filesystem": {"src/base/files", "src/base/paths"},
    "fstream": {"src/base/files"},
    "fcntl.h": {"src/base", "src/storage"},
    "glob.h": {"src/base/paths"},
    "dirent.h": {"src/base/paths"},
    "sys/stat.h": {"src/base"},
    # CUDA ops of other GPUs do without.
    "kernels/hopper/": {"kernels/hopper"},
    "kernels/ampere/": {"kernels/ampere"},
}

# What src/ may see of kernels/: the dispatcher, the views, the BLAS, the mask that the host builds, the memory of peers, signs of
# life, what CUDA implementations take, the variables of the environment, and how compute capabilities are written.
KERNEL_HEADERS = {
    f"kernels/{name}.hpp"
    for name in ("ops", "attention/attention", "device/types", "device/blas", "device/peer_memory", "device/life", "device/cuda_limits",
                 "device/variables", "device/code_ranges")
}

GENERATED = r"nanorun_(commit|code)\.h"  # CMake makes them

ENDINGS = (".hpp", ".cpp", ".cu", ".cuh")


def sources(root):
    return [p for top in ("src", "kernels") for p in sorted((root / top).rglob("*")) if p.suffix in ENDINGS]


def includes_of(path):
    """Number and header of each line that includes one."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1)


def may_see(module, header):
    """Who may see the header where this module may not."""
    for of, seers in MAY_SEE.items():
        if header.startswith(of) and not any(module == seer or module.startswith((f"{seer}/", f"{seer}_"))
                                             for seer in seers):
            endings = {"kernels/hopper/": "_sm90", "kernels/ampere/": ("_sm80", "_sm89")}
            if not module.endswith(endings.get(of, "/")):
                return seers
    return None


def breaches_of(path, root):
    file = path.relative_to(root)
    folder, module = str(file.parent), str(file.with_suffix(""))
    in_kernels = file.parts[0] == "kernels"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "print(stderr" in line:
            yield f"{file}:{number}: throws where standard error is closed; warn() does not"
        if re.match(rf'\s*#\s*include\s*"(?!src/|kernels/|{GENERATED}")', line):
            yield f"{file}:{number}: the include does not begin with src/ or kernels/"
    for number, header in includes_of(path):
        where = f"{file}:{number}: {header}"
        other = str(Path(header).parent)
        if seers := may_see(module, header):
            yield f"{where} belongs to {', '.join(sorted(seers))}"
        elif in_kernels and header.startswith("src/"):
            yield f"{where}: kernels never include src"
        elif path.suffix in (".cu", ".cuh") and header.startswith("Kokkos"):
            yield f"{where}: CUDA implementations see no Kokkos"
        elif not in_kernels and header.startswith("kernels/") and header not in KERNEL_HEADERS:
            yield f"{where} is private to kernels; src sees only {', '.join(sorted(KERNEL_HEADERS))}"
        elif header.startswith(("src/", "kernels/")) and other not in LEVEL:
            yield f"{where}: its folder has no place among the folders"
        elif header.startswith(("src/", "kernels/")) and LEVEL[other] > LEVEL[folder]:
            yield f"{where} does not lie below {folder}"


def circles(headers, root):
    """Headers that include each other, directly or not."""
    graph = {str(path.relative_to(root)): [header for _, header in includes_of(path)] for path in headers}
    seen, found = set(), []

    def visit(header, path):
        if header in path:
            found.append(" -> ".join(path[path.index(header):] + [header]))
        elif header in graph and header not in seen:
            seen.add(header)
            for other in graph[header]:
                visit(other, path + [header])

    for header in graph:
        visit(header, [])
    return [f"a circle of includes: {circle}" for circle in found]


def main():
    root = Path(sys.argv[1])
    files = sources(root)
    homeless = [p.relative_to(root) for p in files if str(p.parent.relative_to(root)) not in LEVEL]
    breaches = [f"{file}: its folder has no place among the folders" for file in homeless]
    if not homeless:
        breaches = [breach for path in files for breach in breaches_of(path, root)]
    breaches += circles([p for p in files if p.suffix in (".hpp", ".cuh")], root)
    print("\n".join(breaches) or f"{len(files)} files in order")
    sys.exit(1 if breaches or not files else 0)


if __name__ == "__main__":
    main()
