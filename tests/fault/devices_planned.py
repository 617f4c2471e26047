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

    def call(self, *arguments, device="0 0 0 none", memory=0, code=0):
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_STAGED_DEVICES']}", f"RANK_0={device}",
                   f"MEMORY_0={memory}"]
        job = Job(self.folder, None, arguments, wrapper=wrapper)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def plan(self, deck, *arguments, **options):
        return self.call("train", "--dry-run", INPUTS / f"{deck}.toml", *arguments, **options)

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

    def remarks(self, deck, *arguments, **options):
        """Notes and warnings of the JSON, which the text has too; without the warnings of absent data."""
        found = self.figures(deck, *arguments, **options)
        warnings = [line for line in found["warnings"] if not line.startswith("data/")]
        text = "".join(self.plan(deck, *arguments, **options).output)
        for line in (*found["notes"], *(f"warning: {line}" for line in warnings)):
            self.assertIn(f"\n{line}\n", text)
        return found["notes"], warnings

    def test_kernels_are_named(self):
        """And whether products in fp8 are computed in bf16."""
        in_bf16 = "no products in fp8 here: those of the deck are computed in bf16"
        for device, deck, head, notes in (
                ("80 NVIDIA A100", "record21", (), ["planned for NVIDIA A100, with the kernels for 8.0", in_bf16]),
                ("80 NVIDIA A100", "record21", ("head.precision=bf16",),
                 ["planned for NVIDIA A100, with the kernels for 8.0"]),
                ("89 NVIDIA L40S", "record21", (), ["planned for NVIDIA L40S, with the kernels for 8.0"]),
                ("90 NVIDIA H100", "record21", (), ["planned for NVIDIA H100, with the kernels for 9.0a"])):
            with self.subTest(device=device, head=head):
                self.assertEqual(self.remarks(deck, *head, device=f"13000 1 {device}", memory=80 * GIB), (notes, []))
        self.assertEqual(self.remarks("record21"), ([], []))

    def test_what_no_run_can_use_is_warned_of(self):
        notes, (warning,) = self.remarks("record21", "head.precision=bf16", device="13000 1 70 Tesla V100",
                                         memory=32 * GIB)
        self.assertEqual(notes, [])
        self.assertTrue(warning.startswith("no run can begin here: Tesla V100 has compute capability 7.0; this build has "
                                           "kernels for 9.0a, 8.0 and higher: "), warning)
        old = "11080 1 90 NVIDIA H100"
        notes, (warning,) = self.remarks("record21", device=old, memory=80 * GIB)
        self.assertTrue(warning.startswith("no run can begin here: the driver supports CUDA 11.8, this nanorun needs "),
                        warning)
        text = "".join(self.plan("record21", device=old).output)
        self.assertIn("\nmemory that a rank has           not known, as the driver is too old: name it by --memory", text)

    def test_info_names_the_driver(self):
        for device, said in (("11080 1 90 NVIDIA H100", r"none: the driver supports CUDA 11\.8, this nanorun needs "),
                             ("0 0 0 none", "none\n"), ("13000 1 90 NVIDIA H100", r"1 x NVIDIA H100 \(kernels for 9\.0a\)"),
                             ("13000 1 70 Tesla V100", r"1 x Tesla V100 \(no kernels\)")):
            self.assertRegex("".join(self.call("info", device=device).output), f"\ngpus +{said}")
        os.environ["NANORUN_TIER"] = "8.0"
        try:
            text = "".join(self.call("info", device="13000 1 90 NVIDIA H100").output)
        finally:
            del os.environ["NANORUN_TIER"]
        self.assertRegex(text, r"\nkernels +9\.0a, 8\.0 and higher\ngpus +1 x NVIDIA H100 \(kernels for 8\.0\)\n")


if __name__ == "__main__":
    small_run.main()
