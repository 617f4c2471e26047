"""run.reproducible: small models of the kinds of records 21 and 89 train to the same bits twice, and after restarts.
Where the program computes on GPUs, so do these tests; one is skipped where there are fewer GPUs than ranks."""

import functools
import json
import re
import shutil

from harness import differing_windows, restarted_from, small_run, without_start
from small_record89 import DECK, SMALL, Record89FaultTest

COMMON = ("run.reproducible=true", "run.name=run", "run.log_every=1", "trace.enabled=false", "checkpoint.every=5",
          "checkpoint.keep=100", "model.vocabulary=257", "train.sequences=4", "data.end=wrap", "validation.every=5",
          'data.train=["data.h5"]', 'data.validation=["data.h5"]')
WIDE = ("model.width=256", "model.heads=2", "model.head_dim=128", "head.precision=auto")  # what GPUs take
STEPS = 20

SMALL21 = ("model.width=32", "model.heads=2", "model.head_dim=16", f"train.steps={STEPS}", "train.length=256",
           "validation.tokens=1024", "validation.length=256", "window.last=384")
WIDE21 = (*WIDE, "train.length=1024", "validation.tokens=2048", "validation.length=1024")

# Windows and documents over several of the tiles in which GPUs attend.
STAGES = [(512, 400, 128, 256), (1024, 900, 256, 640), (1536, 1200, 384, 896), (1536, 1200, 512, 1024)]
WIDE89 = (*WIDE, "model.coefficient_width=16", "validation.tokens=3072", "validation.length=1536",
          "validation.last_long_window=1280",
          *(f"stage.{i}.{key}={value}" for i, values in enumerate(STAGES)
            for key, value in zip(("length", "longest_document", "short_window", "long_window"), values)))


@functools.cache
def gpu_count():
    """GPUs that the program finds, or None where it computes without."""
    gpus = small_run.build_facts().get("gpus")
    return gpus and sum(int(number) for number in re.findall(r"(\d+) x ", gpus))


def tensors(file):
    """The datasets of a checkpoint by name, as bytes; none without h5py."""
    try:
        import h5py
    except ModuleNotFoundError:
        return {}
    found = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, item: found.update({name: item[()].tobytes()})
                          if isinstance(item, h5py.Dataset) else None)
    return found


def figures(run):
    """Of each line of a run's metrics, what does not depend on the time, as JSON."""
    keys = ("step", "loss", "gradient_norm", "validation_loss")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({key: line[key] for key in keys if key in line}) for line in lines]


class Reproducible(Record89FaultTest):
    def assert_identical(self, run, whole, what):
        """The same figures of each step, tensors, and bytes of the last checkpoint but for the seconds of training."""
        found, expected = figures(run), figures(whole)
        for ours, theirs in zip(found, expected):
            self.assertEqual(ours, theirs, f"the first line of metrics.jsonl that differs {what}")
        self.assertEqual(len(found), len(expected))
        ours, theirs = (folder / "checkpoints" / f"checkpoint_{STEPS:08}.h5" for folder in (run, whole))
        found, expected = tensors(ours), tensors(theirs)
        self.assertEqual(sorted(found), sorted(expected))
        self.assertEqual([name for name in found if found[name] != expected[name]], [], f"tensors that differ {what}")
        ours, theirs = without_start(ours), without_start(theirs)
        self.assertEqual(len(ours), len(theirs))
        # The attribute train_seconds and, because of it, the checksum of the attributes and HDF5's of the whole block.
        self.assertLessEqual(differing_windows(ours, theirs), 3, what)

    def aside(self, name):
        """The finished run's folder makes room for another run of its name, whose deck is then the same."""
        return self.run_folder().rename(self.folder / "outputs" / name)

    def reproduce(self, ranks, deck, small, wide):
        gpus = gpu_count()
        if gpus is not None and gpus < ranks:
            self.skipTest(f"{gpus} GPUs")
        shutil.copy(deck, self.folder / "deck.toml")
        overrides = (*small, *COMMON, *(() if gpus is None else wide))

        def train(*more, code=0):
            return super(Record89FaultTest, self).train(ranks, *overrides, *more, code=code)

        train()
        whole = self.aside("whole")
        train()
        self.assert_identical(self.aside("again"), whole, "between two runs")

        # The first run loses its checkpoints of steps 10 and 13, so the second continues at step 5, and the third at
        # 13. In both checkpoints Adam of record 89 has half of the gradients of an update. Stages begin at 6 and 12.
        train("stop.step=13", code=75)
        for step in (10, 13):
            self.checkpoint(step).unlink()
        self.assertEqual(restarted_from(train("stop.step=13", code=75)), 5)
        self.assertEqual(restarted_from(train()), 13)
        self.assert_identical(self.run_folder(), whole, "after restarts")

    def test_record21_on_one_rank(self):
        self.reproduce(1, DECK.with_name("record21.toml"), SMALL21, WIDE21)

    def test_record21_on_two_ranks(self):
        self.reproduce(2, DECK.with_name("record21.toml"), SMALL21, WIDE21)

    def test_record89_on_one_rank(self):
        self.reproduce(1, DECK, SMALL, WIDE89)

    def test_record89_on_two_ranks(self):
        self.reproduce(2, DECK, SMALL, WIDE89)


if __name__ == "__main__":
    small_run.main()
