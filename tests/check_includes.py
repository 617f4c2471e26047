#!/usr/bin/env python3
"""Checks the include directions of src/ and kernels/. Usage: check_includes.py SOURCE_DIR; exit 1 names each breach."""

import re
import sys
from pathlib import Path

# A module may include modules of the lines above its own, and itself. docs/architecture.md shows the same lines.
LAYERS = """
text utf8 known_formats
error json_mend
arena build early files files_own json_text launch slab walltime
output_file h5_library bin_file hellaswag nvml safetensors export_files
file_lock growing_file watchdog
config config_keys config_toml comm h5 h5_shared h5_structure
config_values config_check
config_text config_check_layers config_check_stages config_check_cuda
context transport mask schedule topology bigram stop data data_steps data_documents
agreement trace trace_file run_directory metrics time_left
transport_mpi transport_nccl transport_peers tensor_comm gpu_monitor
transport_devices params uploader tokenizer tokenizer_added tokenizer_split tokenizer_table tokenizer_table_json synthetic
token_origin shard_record
import_documents import_documents_json import_plan prefixes touched_rows
import import_bin import_encoded import_inputs import_inspect import_synthetic import_text coefficients update_rules run_data run_data_documents run_data_opener checkpoint_file
activations rotary_table mlp_scales muon_blocks checkpoint checkpoint_place
mixes branches head_mixing mlp_layer input_layer optimizer optimizer_rows optimizer_slabs optimizer_state optimizer_transfers
values
attention_layer
model
learner validation provenance
trained_model exported_config
report evaluate evaluate_hellaswag export_model first_weights
earlier_run sample imported_model dry_run
command_line
run_setup
run_log
train
main
"""
LEVEL = {name: level for level, line in enumerate(LAYERS.splitlines()) for name in line.split()}

# Which modules may see a library.
ROOMS = {
    "mpi.h": {"context", "comm", "h5", "h5_shared", "transport_mpi"},
    "nccl.h": {"transport_nccl"},
    "kernels/device/peer_memory.hpp": {"transport_peers", "peer_memory"},
    "hdf5.h": {"h5", "h5_library"},
    "src/storage/h5.hpp": {"h5", "h5_structure", "context", "data", "checkpoint", "checkpoint_file", "trace_file",
                   "import", "import_bin", "tokenizer"},
    "toml++/toml.h": {"config_toml"},
    "CLI/": {"command_line"},
    "nlohmann/json.hpp": {"report", "provenance", "trace", "metrics", "tokenizer_table_json", "import_documents_json",
                          "export_model", "json_text"},
    "pcre2.h": {"tokenizer_split"},
    "dlfcn.h": {"nvml", "stop", "comm"},
    "cblas.h": {"portable"},
    "Kokkos": {"portable", "device", "fp8", "vector_math"},
    # Whoever asks the file system elsewhere may drop its errors.
    "filesystem": {"files"},
    "fstream": {"files"},
    "fcntl.h": {"files", "files_own", "output_file", "file_lock", "early", "launch", "h5_structure"},
    "glob.h": {"files"},
    "dirent.h": {"files"},
    "sys/stat.h": {"files", "files_own", "output_file"},
}

# What src/ may see of kernels/: the dispatcher, the views, the mask that the host builds, the memory of peers, signs of
# life, and what CUDA implementations take.
KERNEL_HEADERS = {
    f"kernels/{name}.hpp"
    for name in ("ops", "attention/attention", "device/types", "device/peer_memory", "device/life", "device/limits")
}


def parts_of_one(a, b):
    """Whether a module has both as parts, or is one of them: a_b is a part of a."""
    wholes = [{name[:i] for i in range(1, len(name) + 1) if name[:i] in LEVEL and f"{name}_"[i] == "_"} for name in (a, b)]
    return bool(wholes[0] & wholes[1])


def breaches_of(path, root):
    module = path.stem
    in_kernels = path.relative_to(root).parts[0] == "kernels"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "print(stderr" in line:
            yield f"{path.relative_to(root)}:{number}: throws where standard error is closed; warn() does not"
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if not match:
            continue
        header = match.group(1)
        where = f"{path.relative_to(root)}:{number}: {header}"
        for library, rooms in ROOMS.items():
            if header.startswith(library) and module not in rooms:
                yield f"{where} belongs to {', '.join(sorted(rooms))}"
        if in_kernels and header.startswith("src/"):
            yield f"{where}: kernels never include src"
        if path.suffix in (".cu", ".cuh") and header.startswith("Kokkos"):
            yield f"{where}: CUDA implementations see no Kokkos"
        if not in_kernels and header.startswith("kernels/") and header not in KERNEL_HEADERS:
            yield f"{where} is private to kernels; src sees only {', '.join(sorted(KERNEL_HEADERS))}"
        if not in_kernels and header.startswith("src/"):
            other = Path(header).stem
            if other != module and LEVEL[other] >= LEVEL[module] and not parts_of_one(module, other):
                yield f"{where} does not lie below {module}"


def main():
    root = Path(sys.argv[1])
    files = [p for folder in ("src", "kernels") for p in sorted((root / folder).rglob("*"))]
    files = [p for p in files if p.suffix in (".hpp", ".cpp", ".cu", ".cuh")]
    unknown = [p.name for p in files if p.relative_to(root).parts[0] == "src" and p.stem not in LEVEL]
    breaches = [f"src/{name} has no place among the layers" for name in unknown]
    if not unknown:
        breaches = [breach for path in files for breach in breaches_of(path, root)]
    long = [(p, len(p.read_text().splitlines())) for p in files]
    breaches += [f"{p.relative_to(root)} has {n} lines, more than 500" for p, n in long if n > 500]
    print("\n".join(breaches) or f"{len(files)} files in order")
    sys.exit(1 if breaches or not files else 0)


if __name__ == "__main__":
    main()
