#!/usr/bin/env python3
"""Times nanorun on 2 ranks beside the PyTorch reference on 2 threads: same deck, same tokens, same initial values.

--record89 trains a small record 89 in the place of small_gpt2.toml. The programs run in turn, so that both meet the
same state of the machine; the first step of each run is left out. Memory is the sum over ranks of the largest resident
size. Needs python3-torch and python3-h5py."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py

ROOT = Path(__file__).resolve().parents[2]
# What makes inputs/record89.toml the config "benchmark" of tests/golden/record89.
RECORD89 = [
    "run.log_every=1", "model.width=384", "model.head_dim=64", "model.bigram_rows=50304", "head.precision=fp32",
    "train.mlp_precision=working", "train.steps=5", "train.extension_steps=1", "train.sequences=2",
    "train.untie_step=3", "validation.tokens=0", "validation.length=2048", "optimizer.muon_momentum_cooldown=0",
    'data.prefix_table=""', "checkpoint.at_end=false", "checkpoint.restart=none",
    *(f"stage.{i}.{key}={value}" for i in range(4) for key, value in (
        ("length", 2048), ("longest_document", 896), ("short_window", 128), ("long_window", 384), ("prefix", 0),
        ("prefix_end", 0)))]


def run_nanorun(arguments, folder):
    shard, out = folder / "train.h5", folder / "nanorun"
    if not shard.exists():
        subprocess.run([arguments.nanorun, "shard", shard, arguments.bin], check=True, stdout=subprocess.DEVNULL)
    name = f"run{len(list(folder.glob('nanorun/run*')))}"
    command = ["mpirun", "-n", "2", arguments.nanorun, "train", arguments.deck, f'data.train=["{shard}"]',
               f"run.outputs={out}", f"run.name={name}", *arguments.override]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((out / name / "summary.json").read_text())
    with h5py.File(out / name / "trace.h5") as trace:
        seconds = trace["seconds"][:].sum(axis=2).max(axis=1)[1:]
        tokens, losses = trace["tokens"][:][1:], trace["loss"][:]
    return tokens.sum() / seconds.sum(), summary["peak_memory_bytes_all_ranks"], list(losses)


def run_pytorch(arguments, folder):
    out = folder / "pytorch.json"
    common = ["--bin", arguments.bin, "--threads", "2", "--timing", "--out", out]
    if arguments.record89:
        command = [sys.executable, ROOT / "tests/golden/reference89.py", "--config", "benchmark", "--single",
                   "--steps", "3", "--gradients", "", *common]
    else:
        command = [sys.executable, ROOT / "tests/golden/reference.py", arguments.deck, *arguments.override,
                   "--end-of-text", "50256", *common]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = json.loads(out.read_text())
    return result["tokens_per_second"], result["peak_memory_bytes"], result["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", help="speedrun .bin file with GPT-2 tokens")
    parser.add_argument("override", nargs="*", help="section.key=value")
    parser.add_argument("--record89", action="store_true", help="a small record 89; takes no deck and no override")
    parser.add_argument("--deck", default=ROOT / "tests/bench/small_gpt2.toml")
    parser.add_argument("--nanorun", default=ROOT / "build/cpu/bin/nanorun")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_intermixed_args()
    if arguments.record89:
        arguments.deck, arguments.override = ROOT / "inputs/record89.toml", RECORD89
    if os.geteuid() == 0:
        os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(arguments.pairs):
            ours = run_nanorun(arguments, Path(folder))
            theirs = run_pytorch(arguments, Path(folder))
            worst = max(abs(a - b) / b for a, b in zip(ours[2], theirs[2]))
            rows.append((*ours[:2], *theirs[:2]))
            print(f"pair {pair + 1}: nanorun {ours[0]:.0f} tokens/s, {ours[1] / 1e9:.2f} GB; PyTorch {theirs[0]:.0f} "
                  f"tokens/s, {theirs[1] / 1e9:.2f} GB; losses differ by at most {worst:.1e}", flush=True)
    speed = statistics.median(row[0] / row[2] for row in rows)
    memory = statistics.median(row[1] / row[3] for row in rows)
    print(f"nanorun / PyTorch, median of {len(rows)}: {speed:.2f} times the tokens/s, {memory:.2f} times the memory")


if __name__ == "__main__":
    main()
