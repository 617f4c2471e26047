"""Nodes that see another file under the same path: a deck or a shard that somebody has copied to each of them."""

import os
import shutil
import subprocess

from harness import FaultTest, Job, small_run

# Rank 1 sees the first file in the place of the second.
STALE = ("if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then exec unshare -m sh -c 'mount --bind \"$1\" \"$2\" && shift 2 && "
         "exec \"$@\"' sh \"$@\"; else shift 2; exec \"$@\"; fi")


class Stale(FaultTest):
    def setUp(self):
        super().setUp()
        may_mount = ["unshare", "-m", "mount", "--bind", "deck.toml", "data.h5"]
        if shutil.which("unshare") is None or subprocess.run(may_mount, cwd=self.folder, capture_output=True).returncode:
            self.skipTest("needs the right to mount")

    def train_stale(self, stale, path, *overrides):
        arguments = ["train", "deck.toml", *overrides]
        job = Job(self.folder, 2, arguments, ["sh", "-c", STALE, "sh", stale, path])
        code = job.wait()
        return job, code

    def assert_named(self, stale, path, code, *parts, overrides=()):
        job, ended = self.train_stale(stale, path, *overrides)
        self.assertEqual(ended, code, job.text())
        self.assert_refused(job, f"rank 1 on node {os.uname().nodename}: {path}: ", *parts)

    def make_other_data(self):
        folder = self.folder / "other"
        folder.mkdir()
        small_run.write_data(folder, seed=1)

    def test_deck(self):
        (self.folder / "stale.toml").write_text(small_run.DECK.replace("steps = 12", "steps = 13"))
        self.assert_named("stale.toml", "deck.toml", 2, "another deck", f"rank 0 on node {os.uname().nodename}")
        self.assertFalse(self.run_folder().exists())

    def test_deck_that_one_rank_alone_has(self):
        """The ranks that see none have the deck of rank 0."""
        (self.folder / "none").mkdir()
        wrapper = ["sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 0 ] || mount --bind none away; exec \"$@\"", "sh"]
        (self.folder / "away").mkdir()
        (self.folder / "deck.toml").rename(self.folder / "away" / "deck.toml")
        job = Job(self.folder, 2, ["train", "away/deck.toml"], ["unshare", "-m", *wrapper])
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(job.messages(), [])

    def test_shard(self):
        self.make_other_data()
        self.assert_named("other/data.h5", "data.h5", 3, "another node has another copy", overrides=["validation.tokens=0"])

    def test_validation_shard(self):
        self.make_other_data()
        shutil.copy(self.folder / "data.h5", self.folder / "validation.h5")
        self.assert_named("other/data.h5", "validation.h5", 3, "another node has another copy",
                          overrides=["data.validation=['validation.h5']", "validation.every=1"])


if __name__ == "__main__":
    small_run.main()
