"""Checkpoints that are a run's own, whatever it was called and whatever was changed since, and what of them must stay."""

import shutil

from harness import FaultTest, restarted_from, small_run

STEPS = ("train.steps=40", "validation.tokens=0")


class OwnCheckpoints(FaultTest):
    def partial(self, step):
        return self.checkpoint(step).with_suffix(".h5.partial")

    def test_pruned_after_the_run_was_renamed_and_changed(self):
        """Restarts stop where no checkpoint is due, so that each leaves one more beside those that are kept."""
        often = (*STEPS, "checkpoint.every=4", "checkpoint.keep=2")
        self.train(None, *often, "stop.step=8", code=75)
        (self.folder / "outputs" / "run").rename(self.folder / "outputs" / "moved")
        moved = (*often, "run.name=moved")
        folder = self.folder / "outputs" / "moved" / "checkpoints"
        for stop, changed in ((9, ()), (12, ("optimizer.adam_beta1=0.85",)), (20, ("run.log_every=2",))):
            job = self.train(None, *moved, *changed, f"stop.step={stop}", code=75)
            self.assertNotIn("another training", job.text())
            self.assertLessEqual(len(list(folder.iterdir())), 2)
        self.assertEqual(sorted(path.name for path in folder.iterdir()),
                         [self.checkpoint(16).name, self.checkpoint(20).name])

    def test_files_that_a_key_names_are_not_removed(self):
        self.train(None, *STEPS, "stop.step=2", code=75)
        shutil.copy(self.checkpoint(2), self.partial(4))
        (self.folder / "kept.h5").symlink_to(self.partial(4))
        for key, file, said in (("restart", self.partial(4).relative_to(self.folder), "this start would rename outputs/run"),
                                ("weights", self.partial(4).relative_to(self.folder), "rename the file"),
                                ("weights", "kept.h5", "rename the file")):
            for command in ((), ("--dry-run",)):
                job = self.train(None, *command, *STEPS, f"checkpoint.{key}={file}", code=2)
                self.assert_refused(job, f"{file}: checkpoint.{key} names it, but ", said)
        self.assertEqual(self.partial(4).read_bytes(), self.checkpoint(2).read_bytes())

    def test_first_weights_are_not_pruned(self):
        self.train(None, *STEPS, "stop.step=2", code=75)
        first = f"checkpoint.weights={self.checkpoint(2).relative_to(self.folder)}"
        self.train(None, *STEPS, first, "checkpoint.every=2", "checkpoint.keep=1", "stop.step=8", code=75)
        self.assertEqual(self.files(), [self.checkpoint(2).name, self.checkpoint(8).name])

    def test_whole_checkpoints_of_another_run_are_no_rest_of_a_write(self):
        self.train(None, *STEPS, "run.name=other", "run.seed=2", "stop.step=2", code=75)
        other = (self.folder / "outputs" / "other" / "checkpoints" / self.checkpoint(2).name).read_bytes()
        self.train(None, *STEPS, "stop.step=2", code=75)
        for step in (5, 9):
            self.partial(step).write_bytes(other)
        self.partial(7).write_bytes(other[:-512] + bytes(512))  # cut short: of this run, maybe, with another deck
        said = self.train(None, *STEPS, "stop.step=5", code=75).text()
        self.assertIn(f"{self.partial(9).name}: a checkpoint of another run; the file is kept", said)
        for kept in (self.partial(9), self.partial(5).with_name(self.partial(5).name + ".1")):
            self.assertEqual(kept.read_bytes(), other)
        self.assertFalse(self.partial(7).exists())

    def test_what_a_kill_leaves_of_a_write_is_removed(self):
        """Also a file of which only the beginning is there, and the lock that Open MPI makes beside it."""
        self.train(None, *STEPS, "stop.step=2", code=75)
        whole = self.checkpoint(2).read_bytes()
        self.partial(4).write_bytes(whole[:48] + bytes(len(whole) - 48))
        self.partial(6).write_bytes(whole)
        locks = [self.partial(4).with_name(self.partial(4).name + end) for end in ("-1-4711.lock", ".locktest.0")]
        notes = self.partial(4).with_name(self.partial(4).name + "-notes.lock")
        for path in (*locks, notes):
            path.touch()
        job = self.train(None, *STEPS, "stop.step=5", code=75)
        self.assertEqual(restarted_from(job), 2)
        self.assertEqual(self.files(), [self.checkpoint(2).name, notes.name, self.checkpoint(5).name])


if __name__ == "__main__":
    small_run.main()
