"""Weak scaling by jobscripts/benchmark.sh: one reference for any multiple of its sequences, which a run misses as soon as
the contribution of a rank, or of a node, is lost or is taken twice in place of another."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from unittest import mock

from harness import FaultTest, small_run

import deadline  # of tests/support, as small_run

SCRIPT = Path(__file__).resolve().parents[2] / "jobscripts" / "benchmark.sh"
COLUMNS = 384  # of the LM head: the vocabulary, padded; no other matrix of the model has a side of as many
FILE = """
[benchmark]
deck = "deck.toml"
vocabulary = 300
seed = 3
entropy_rate = 1.9
sequences = 4
length = 128
checked = 4
steps = 8
overrides = ["window.first=128", "window.last=128", "optimizer.muon_lr=0.005", "optimizer.lr_embedding=0.06",
             "optimizer.lr_head=0.0008"]
[weak]
sequences = 16
"""
REFERENCE = """
[weak.reference.cpu]
ranks = [16]
losses = [{loss}]
gradient_norms = [{gradient_norm}]
tolerance = 2e-6
norm_tolerance = 1e-5
machine = "a test"
date = "2026-11-26"
commit = "none"
command = "none"
"""
NODES = ("--", "comm.ranks_per_node=8")


class WeakBenchmark(FaultTest):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "tiny.toml"
        self.file.write_text(FILE)
        # Ranks leave the cores to other tests while they wait.
        self.enterContext(mock.patch.dict(os.environ, {
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PATH": f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"}))
        found = self.bench("--ranks", 1, "--sequences", 16, verdict="NO REFERENCE")
        self.file.write_text(FILE + REFERENCE.format(**found))

    def prepare(self, folder):
        small_run.write_deck(folder)

    def bench(self, *arguments, verdict="PASSED", contributions=""):
        """The result of a benchmark that ends with the verdict. `contributions`: factors on the gradients of ranks, as
        faulty_gemm.cpp reads them."""
        program = self.folder / "program.sh"
        fault = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", f"FAULT_CONTRIBUTIONS={contributions}",
                 f"FAULT_COLUMNS={COLUMNS}"] if contributions else []
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*fault, small_run.PROGRAM])} "$@"\n')
        program.chmod(0o755)
        self.count = getattr(self, "count", 0) + 1
        out = self.folder / f"out{self.count}"
        job = deadline.run([SCRIPT, "--weak", "--program", program, "--size", self.file, "--out", out,
                            *map(str, arguments)], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=900)
        self.assertTrue(job.stdout.rpartition("\n\n")[2].startswith(verdict), job.stdout + job.stderr)
        return json.loads((out / "benchmark.json").read_text())

    def assert_checked(self, ranks, alone):
        """That so many ranks pass, as nodes of eight and, with `alone`, as one node, and that faults of a rank and of a
        node show."""
        found = self.bench("--ranks", ranks, *NODES)
        self.assertEqual((found["ranks"], found["sequences"], found["kind"]), (ranks, ranks, "weak"))
        if alone:
            self.bench("--ranks", ranks)
        lost, twice = (",".join(f"{rank}={factor}" for rank in node) for node, factor in ((range(8), 0), (range(8, 16), 2)))
        for fault, contributions in (("a rank lost", "5=0"), ("a rank taken twice in place of another", "5=2,6=0"),
                                     ("a node lost", lost), ("a node taken twice in place of another", f"{lost},{twice}")):
            with self.subTest(fault=fault):
                nodes = () if alone and "rank" in fault else NODES
                found = self.bench("--ranks", ranks, *nodes, verdict="FAILED", contributions=contributions)
                self.assertRegex(found["why"], "^fixed: the (loss|gradient norm) .* is off the reference")

    def test_sixteen_ranks(self):
        self.assert_checked(16, alone=True)

    def test_thirty_two_ranks(self):
        self.assert_checked(32, alone=True)

    def test_sixty_four_ranks(self):
        self.assert_checked(64, alone=False)


if __name__ == "__main__":
    small_run.main()
