"""Plans for GPUs that are not here: staged_devices.cpp plays them for the program built for CUDA."""

import json
import os
from pathlib import Path

from harness import FaultTest, Job, small_run

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
GIB = 1 << 30


class Planned(FaultTest):
    def prepare(self, folder):
        """Plans need no data."""

    def plan(self, deck, *arguments, device="0 0 0 none", memory=0, code=0):
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_STAGED_DEVICES']}", f"RANK_0={device}",
                   f"MEMORY_0={memory}"]
        job = Job(self.folder, None, ["train", "--dry-run", INPUTS / f"{deck}.toml", *arguments], wrapper=wrapper)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def figures(self, deck, *arguments, **options):
        return json.loads("".join(self.plan(deck, *arguments, "--json", **options).output))

    def test_decks_for_small_gpus_fit(self):
        for deck, memory in (("record21_24gb", 22), ("record21_16gb", 14.5)):
            needed = self.figures(deck, "--memory", f"{memory}GiB")["memory_bytes"]["total"]
            self.assertLess(needed, memory * GIB)
            self.assert_refused(self.plan(deck, "--memory", "12GiB", code=2), "nanorun: a rank needs ",
                                " of memory and has 12 GiB; activations take most, ")

    def test_the_gpu_of_this_machine_counts(self):
        """Its memory, and that it has no products of 8-bit numbers."""
        a100 = "13000 1 80 NVIDIA A100"
        in_bf16 = self.figures("record21", "head.precision=bf16", device=a100, memory=40 * GIB)
        for memory, code in ((40, 0), (16, 0), (12, 2)):
            plan = self.figures("record21", device=a100, memory=memory * GIB, code=code)
            self.assertEqual(plan["available_bytes"], memory * GIB)
            self.assertEqual(plan["memory_bytes"], in_bf16["memory_bytes"])

    def test_without_a_gpu_the_plan_is_that_of_an_h100(self):
        """NANORUN_TIER makes it that of another."""
        text = "".join(self.plan("record21").output)
        self.assertIn("\nmemory that a rank has           not known, as no GPU is here: ", text)
        in_fp8, in_bf16 = (self.figures("record21", *head)["memory_bytes"]["total"]
                           for head in ((), ("head.precision=bf16",)))
        self.assertGreater(in_fp8, in_bf16)
        os.environ["NANORUN_TIER"] = "8.0"
        try:
            self.assertEqual(self.figures("record21")["memory_bytes"]["total"], in_bf16)
        finally:
            del os.environ["NANORUN_TIER"]


if __name__ == "__main__":
    small_run.main()
