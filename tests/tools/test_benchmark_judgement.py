"""Verdicts of the benchmark on runs that are given, and what it says of machines that cannot begin one."""

import math
from types import SimpleNamespace

from support import small_run
from test_benchmark import FILE, REFERENCE, WEAK, BenchmarkTest

import benchmark
import benchmark_memory
import program
import tool


class Judgement(BenchmarkTest):
    def test_one_reference(self):
        work = self.read(FILE + REFERENCE.format(3.0))
        none = ("NO REFERENCE", "has no [reference.gpu]")
        for loss, with_reference, without in (
                (3.0000009, ("PASSED", ""), none), (2.9999991, ("PASSED", ""), none),
                (3.000002, ("FAILED", "is off the reference"), none),
                (2.999998, ("FAILED", "is off the reference"), none),
                (1.8, *2 * [("FAILED", "is below the entropy rate")]), (math.nan, *2 * [("FAILED", "finite number")]),
                (math.inf, *2 * [("FAILED", "finite number")])):
            for build, (verdict, why) in (("cpu", with_reference), ("gpu", without)):
                with self.subTest(loss=loss, build=build):
                    found, said = benchmark.judge(work, build, self.runs(3.0, loss))
                    self.assertEqual(found, verdict)
                    self.assertIn(why, said)
        runs = self.runs(3.0, 3.0)
        runs[1].trouble = "exit code 6: a rank died"
        self.assertEqual(benchmark.judge(work, "cpu", runs), ("FAILED", "fixed: exit code 6: a rank died"))

    def runs(self, *losses, provenance=()):
        return [SimpleNamespace(name="fixed", loss=loss, trouble="", sequences=4,
                                summary={"provenance": dict(provenance)}) for loss in losses]

    def test_other_products_in_fp8(self):
        """GPUs that compute in bf16 what the deck has in fp8, or in another fp8 than Hopper's, have references of their
        own, or none."""
        gpu, bf16, other = (REFERENCE.replace("cpu", name).format(loss)
                            for name, loss in (("gpu", 3.0), ("gpu_bf16", 3.1), ("gpu_8_9", 3.2)))
        hopper, lacking, ada = ({"fp8": kernels} for kernels in ("9.0a", "bf16", "8.0"))
        for text, loss, provenance, verdict, why, reference in (
                (gpu + bf16, 3.0, {}, "PASSED", "", 3.0), (gpu + bf16, 3.1, lacking, "PASSED", "", 3.1),
                (gpu + bf16, 3.1, {}, "FAILED", "off the reference 3.000000", 3.0),
                (gpu + bf16, 3.0, lacking, "FAILED", "off the reference 3.100000", 3.1),
                (bf16, 3.0, {}, "NO REFERENCE", "has no [reference.gpu]", None),
                (gpu + bf16 + other, 3.0, hopper, "PASSED", "", 3.0), (gpu + bf16 + other, 3.2, ada, "PASSED", "", 3.2),
                (gpu + bf16 + other, 3.0, ada, "FAILED", "off the reference 3.200000", 3.2),
                (gpu, 3.0, ada, "NO REFERENCE",
                 "has no [reference.gpu_8_9]: these GPUs have other products in fp8 than Hopper", None),
                (gpu, 3.1, lacking, "NO REFERENCE",
                 "has no [reference.gpu_bf16]: these GPUs compute in bf16 what the deck has in fp8", None)):
            with self.subTest(text=text, loss=loss, provenance=provenance):
                work, runs = self.read(FILE + text), self.runs(loss, provenance=provenance)
                found, said = benchmark.judge(work, "gpu", runs)
                self.assertEqual(found, verdict)
                self.assertIn(why, said)
                facts = benchmark.reference_facts(work, "gpu", runs[0])
                self.assertEqual(facts["loss"] if facts else None, reference)

    def test_growing_work(self):
        """Each number of different sequences has a reference of its own, of the loss and of the gradient norm."""
        work = self.read(FILE + WEAK, weak=True)
        for sequences, loss, norm, verdict, why in (
                (1, 3.0, 0.5, "PASSED", ""), (2, 2.9, 0.4, "PASSED", ""), (16, 2.8, 0.3, "PASSED", ""),
                (4096, 2.8, 0.3, "PASSED", ""), (48, 2.80002, 0.3, "FAILED", "loss 2.800020 is off"),
                (48, 2.8, 0.3004, "FAILED", "gradient norm 0.3004 is off the reference 0.3 by +1.3e-01 %"),
                (48, 2.8, 0.2996, "FAILED", "gradient norm"), (48, 2.8, math.nan, "FAILED", "gradient norm"),
                (4, 2.9, 0.4, "NO REFERENCE", "no [weak.reference.cpu] for steps of 4 sequences")):
            with self.subTest(sequences=sequences, loss=loss, norm=norm):
                run = SimpleNamespace(name="fixed", loss=loss, gradient_norm=norm, trouble="", sequences=sequences,
                                      summary={})
                found, said = benchmark.judge(work, "cpu", [run])
                self.assertEqual(found, verdict)
                self.assertIn(why, said)
        self.assertIn("has no [weak.reference.gpu]", benchmark.judge(work, "gpu", [run])[1])
        run.summary = {"provenance": {"fp8": "bf16"}}
        self.assertIn("has no [weak.reference.gpu_bf16]: ", benchmark.judge(work, "gpu", [run])[1])
        work = self.read(FILE + WEAK + WEAK[WEAK.index("[weak.ref"):].replace("cpu", "gpu_bf16"), weak=True)
        run.sequences, run.loss, run.gradient_norm = 2, 2.9, 0.4
        self.assertEqual(benchmark.judge(work, "gpu", [run]), ("PASSED", ""))
        run.sequences = 4
        self.assertIn("has no [weak.reference.gpu_bf16] for steps of 4 sequences: ",
                      benchmark.judge(work, "gpu", [run])[1])


class Possible(BenchmarkTest):
    def test_what_serves_where_memory_does_not_suffice(self):
        """A key that the benchmark leaves free, never those that the program names."""
        shortage = ("nanorun: a rank needs 15.6 GiB of memory and has 14.7 GiB; activations take most, 10.5 GiB: set "
                    'train.recompute = "mlp" or lower train.length')

        def said(fitting, why=shortage):
            def dry_run(path, run, *options):
                self.assertEqual((path, options), ("nanorun", ("--ranks", "2")))
                return "", "" if fitting in run.arguments else why

            benchmark_memory.dry_run, kept = dry_run, benchmark_memory.dry_run
            try:
                benchmark_memory.require_possible("nanorun", benchmark.Run(self.folder / "fixed", 2, 12, 4, ("train", "deck")))
            except tool.ToolError as error:
                return str(error)
            finally:
                benchmark_memory.dry_run = kept

        self.assertIsNone(said("deck"))
        needs = "a rank needs 15.6 GiB of memory and has 14.7 GiB; "
        for key in benchmark_memory.RECOMPUTATION:
            self.assertEqual(said(key), f"{needs}with -- {key} at the end of the command it fits")
        self.assertEqual(said("nothing"), f"{needs}it does not fit with train.recompute=mlp or train.recompute=block "
                                          "either: take a smaller --size")
        self.assertEqual(said("nothing", "nanorun: model.width: ..."), "nanorun: model.width: ...")

    def test_gpus_without_kernels_do_not_count(self):
        for lines, expected in (
                (["8 x NVIDIA H100 (kernels for 9.0a)"], (8, "8 x NVIDIA H100 (kernels for 9.0a)")),
                (["2 x NVIDIA A40 (kernels for 8.0)", "1 x Tesla V100 (no kernels)"],
                 (2, "2 x NVIDIA A40 (kernels for 8.0), 1 x Tesla V100 (no kernels)")),
                (["1 x Tesla V100 (no kernels)"], (0, "1 x Tesla V100 (no kernels)")), (["none"], (0, "it sees none")),
                (["none: the driver supports CUDA 12.4"], (0, "the driver supports CUDA 12.4"))):
            self.assertEqual(program.usable_gpus(lines), expected)


if __name__ == "__main__":
    small_run.main()
