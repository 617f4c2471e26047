"""Two ranks of a record's deck as one node and as two nodes, for the tests of several scripts. Where the program computes
on GPUs, the decks have their full size, and a test is skipped where there are fewer than two GPUs."""

import json
import shutil

from harness import Job, losses
from small_record89 import DECK, SMALL
from test_reproducible import SMALL21, gpu_count

STEPS, TRACED = 20, 12
FIRST, ALL = 1e-5, 3e-3  # how much losses may differ in the first step, and in all
TOKENS = 8_000_000
COMMON = (f"train.steps={STEPS}", "train.sequences=2", "run.reproducible=true", "run.log_every=1",
          "checkpoint.at_end=false", "checkpoint.every=0", "validation.every=0", "validation.tokens=0", "data.end=wrap",
          'data.train=["tokens.h5"]', "trace.enabled=true", f"trace.json_steps=[{TRACED}]")
# All stages of record 89, without the table of prefixes.
FULL89 = ("train.extension_steps=2", "train.untie_step=13", "optimizer.muon_momentum_steps=5",
          "optimizer.muon_momentum_cooldown=4", 'data.prefix_table=""',
          *(f"stage.{i}.{key}=0" for i in (0, 1) for key in ("prefix", "prefix_end")))
RECORDS = {"record21": ((*SMALL21, "model.vocabulary=257"), ()), "record89": (SMALL, FULL89)}  # overrides of a small run, and of one on GPUs


class TwoNodes:
    """Mix into a FaultTest."""

    def prepare(self, folder):
        folder.mkdir(exist_ok=True)
        vocabulary = () if gpu_count() is not None else ("--vocabulary", 257, "--end-of-text", 256)
        tokens = TOKENS if gpu_count() is not None else TOKENS // 100
        job = Job(folder, None, ["shard", "tokens.h5", "--synthetic", tokens, *vocabulary])
        self.assertEqual(job.wait(), 0, job.text())

    def run_of(self, name, overrides, per_node, wrapper):
        """Losses by step, seconds of communication, and the levels of its collectives in the timeline."""
        job = self.train(2, *overrides, *COMMON, f"comm.ranks_per_node={per_node}", f"run.name={name}", wrapper=wrapper)
        folder = self.folder / "outputs" / name
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        found = {line["step"]: line["loss"] for line in lines}
        self.assertEqual(list(found), list(range(1, STEPS + 1)), job.text())
        self.assertEqual(list(losses(job)), list(found))
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        levels = {event["args"]["level"] for event in events if "level" in event.get("args", {})}
        return found, json.loads((folder / "summary.json").read_text())["communication"], levels

    def compare(self, record, *wrapper):
        """`wrapper` starts the program on two nodes."""
        gpus = gpu_count()
        if gpus is not None and gpus < 2:
            self.skipTest(f"needs two GPUs; {gpus} found")
        shutil.copy(DECK.with_name(f"{record}.toml"), self.folder / "deck.toml")
        overrides = RECORDS[record][gpus is not None]
        one, inside, levels = self.run_of("one", overrides, 0, ())
        self.assertEqual((levels, inside["between_seconds"]), ({"inside"}, 0))
        self.assertGreater(inside["avg_seconds"], 0)
        two, between, levels = self.run_of("two", overrides, 1, wrapper)
        self.assertEqual(levels, {"between"})
        self.assertAlmostEqual(between["between_seconds"], between["avg_seconds"])
        self.assertGreater(between["avg_seconds"], 0)
        differences = {step: abs(two[step] - one[step]) for step in one}
        said = (f"{record}: {STEPS} steps, last loss {one[STEPS]:.6f}; two nodes differ by {differences[1]:.2g} in the "
                f"first step and by up to {max(differences.values()):.2g}; communication {inside['avg_seconds']:.3f} s on one "
                f"node, {between['avg_seconds']:.3f} s between two")
        print(said)
        self.assertLessEqual(differences[1], FIRST, said)
        self.assertLessEqual(max(differences.values()), ALL, said)
