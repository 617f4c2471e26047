"""The memory that --dry-run plans beside the memory that a run takes, on the first GPU. Skipped where there is none, and
where another process uses its memory."""

import json
import shutil
import subprocess
from pathlib import Path

from harness import FaultTest, Job, small_run

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
SHARE = 0.03  # that plan and run may differ by
IDLE_BYTES = 700 << 20  # of a GPU that nobody uses


def bytes_in_use():
    """Of the first GPU; -1 without one."""
    if shutil.which("nvidia-smi") is None:
        return -1
    shown = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
                           stdout=subprocess.PIPE, text=True, timeout=60)
    return int(shown.stdout.split()[0]) << 20 if shown.returncode == 0 else -1


class Memory(FaultTest):
    def setUp(self):
        if not 0 <= bytes_in_use() <= IDLE_BYTES:
            self.skipTest("no idle GPU")
        super().setUp()

    def prepare(self, folder):
        shard = Job(folder, None, ["shard", "data", "--synthetic", "400000", "--seed", "1"])
        self.assertEqual(shard.wait(), 0, shard.text())

    def command(self, deck, *overrides):
        return ["train", INPUTS / f"{deck}.toml", "run.name=run", "run.outputs=outputs", 'data.train=["data.h5"]',
                'data.validation=["data.h5"]', "data.end=wrap", "validation.tokens=0", "train.sequences=1",
                "stop.step=3", *overrides]

    def compare(self, deck, *overrides):
        command = self.command(deck, *overrides)
        plan = Job(self.folder, None, [*command, "--dry-run", "--json"])
        self.assertEqual(plan.wait(), 0, plan.text())
        planned = json.loads("".join(plan.output))["memory_bytes"]["total"]
        run = Job(self.folder, 1, command, wrapper=["env", "CUDA_VISIBLE_DEVICES=0"])
        self.assertEqual(run.wait(), 75, run.text())
        taken = json.loads((self.folder / "outputs/run/summary.json").read_text())["peak_device_memory_bytes"]
        self.assertLess(abs(planned / taken - 1), SHARE, f"planned {planned}, taken {taken}")

    def without_prefixes(self, deck, stages):
        self.compare(deck, 'data.prefix_table=""', "validation.length=131072",
                     *(f"stage.{k}.prefix=0" for k in range(stages)))

    def test_record21(self):
        self.compare("record21")

    def test_record21_that_recomputes(self):
        self.compare("record21", "train.recompute=mlp")

    def test_record89(self):
        self.without_prefixes("record89", 4)

    def test_fastest(self):
        self.without_prefixes("fastest", 9)

    def test_medium18(self):
        self.compare("medium18")

    def test_gpt2_124m(self):
        self.compare("gpt2/124m")

    def test_gpt2_350m(self):
        self.compare("gpt2/350m")

    def test_gpt2_800m(self):
        self.compare("gpt2/800m")

    def test_gpt2_1536x24(self):
        self.compare("gpt2/1536x24")

    def test_gpt2_1558m(self):
        self.compare("gpt2/1558m")


if __name__ == "__main__":
    small_run.main()
