#!/usr/bin/env python3
"""Independent PyTorch implementation of record 89, for golden files; the parts are in record89/.

It shares no code with the C++ program. Attention uses dense masks, gradients come from autograd, work is in double, or
in fp32 with --single. README.md states the conventions. `reference89.py test` runs its own tests.
"""

import argparse
import json
import sys
import unittest
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import golden_file
from make_goldens import write_shard
from record89 import data, parameters
from record89.config import CONFIGS, SWITCHES, override
from record89.run import train
from reference import read_shard


def longest_sequence(c):
    return max(stage.length for stage in c.stages)


def validation_shape(c):
    """(sequences, length), of whole attention blocks where the training sequences are."""
    return 4, 96 if longest_sequence(c) == 192 else 128


def synthetic_shards(c, folder):
    """Two training shards and one for validation; written to `folder` as .bin where it is given."""
    names = ["tokens89_0", "tokens89_1", "tokens89_validation"]
    count = data.SHARD_TOKENS * longest_sequence(c) // 192
    shards = [data.synthetic_documents(count, c.vocabulary, c.end_of_text, seed) for seed in (89, 90, 91)]
    if folder:
        for name, shard in zip(names, shards):
            write_shard(Path(folder) / f"{name}.bin", shard.tolist())
    return shards[:2], shards[2]


def make_switches(out):
    """Losses and final norms of every config of SWITCHES, in one file; the tokens too where it has stages of its own."""
    config = CONFIGS["blocks_alive"]
    shards, validation = synthetic_shards(config, None)
    prefixes = data.synthetic_prefixes(config.vocabulary, config.padded_vocabulary)
    results = {}
    for name, changes in SWITCHES.items():
        result, _ = train(replace(config, **changes), shards, (validation, *validation_shape(config)), prefixes,
                          torch.float64, config.total_steps, set(), set(), progress=lambda line: None, sequences=True)
        results[name] = {"losses": result["losses"], "final_norms": result["final_norms"]}
        if [s.length for s in replace(config, **changes).stages] != [s.length for s in config.stages]:
            results[name]["sequences"] = result["sequences"]
    lines = [f'"{name}": {json.dumps(result)}' for name, result in results.items()]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="fields of record89/config.py")
    parser.add_argument("--config", default="tiny", choices=sorted(CONFIGS))
    parser.add_argument("--steps", type=int, help="stop early; the schedules still end where the config says")
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--gradients", default="0,1", help="steps whose streams and gradients are measured")
    parser.add_argument("--validations", default="", help="steps before which to validate; the end always is")
    parser.add_argument("--bin", help="training shards, separated by commas (default: synthetic ones)")
    parser.add_argument("--validation-bin", help="validation shard")
    parser.add_argument("--prefixes", help=".npy with the prefix token of each token of the padded vocabulary, or -1")
    parser.add_argument("--start", help=".npz with the initial parameters")
    parser.add_argument("--save", help=".npz to write the last parameters to")
    parser.add_argument("--write-data", metavar="FOLDER", help="write the synthetic shards as .bin")
    parser.add_argument("--sequences", action="store_true", help="write the tokens of the sequences too")
    parser.add_argument("--switches", metavar="FILE", help="write the results of every config of SWITCHES, and end")
    parser.add_argument("--table", action="store_true", help="print the parameters of the config and end")
    parser.add_argument("--single", action="store_true", help="work in fp32")
    parser.add_argument("--threads", type=int, help="threads of PyTorch")
    parser.add_argument("--timing", action="store_true", help="add tokens per second and peak memory")
    return parser.parse_intermixed_args()


def main():
    if sys.argv[1:2] == ["test"]:
        modules = ["test_record89_parts", "test_record89_training", "test_script_weights"]
        unittest.main(module=None, argv=["reference89.py test", *(sys.argv[2:] or modules)])
    a = arguments()
    if a.switches:
        make_switches(Path(a.switches))
        return
    c = override(CONFIGS[a.config], a.overrides)
    if a.table:
        for row in parameters.parameter_table(c):
            print(row.name, list(row.shape), row.group, row.start, *([row.bound] if isinstance(row.start, str) else []))
        return
    if a.threads:
        torch.set_num_threads(a.threads)
    shards, validation = synthetic_shards(c, a.write_data)
    if a.bin:
        shards = [read_shard(path) for path in a.bin.split(",")]
    if a.validation_bin:
        validation = read_shard(a.validation_bin)
    size = c.padded_vocabulary
    prefixes = np.load(a.prefixes) if a.prefixes else data.synthetic_prefixes(c.vocabulary, size)
    steps = c.total_steps if a.steps is None else min(a.steps, c.total_steps)
    chosen = [{int(text) for text in texts.split(",") if text} for texts in (a.gradients, a.validations)]
    dtype = torch.float32 if a.single else torch.float64
    values = dict(np.load(a.start)) if a.start else None
    shape = validation_shape(c)
    result, run = train(c, shards, (validation, *shape), prefixes, dtype, steps, chosen[0], chosen[1] | {steps}, values,
                        progress=lambda line: print(line, flush=True), sequences=a.sequences, timing=a.timing)
    if a.sequences:
        result["validation_sequences"] = data.rows(data.plain_sequences(validation, *shape))
    print(f"validation {result['validation_losses'][steps]:.9f}")
    if a.save:
        parameters.save(a.save, run.p)
    if a.out:
        head = {"config_name": a.config, "overrides": a.overrides, "precision": "fp32" if a.single else "double"}
        golden_file.write(a.out, head | result)


if __name__ == "__main__":
    main()
