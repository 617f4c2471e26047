"""A dry run says with which checkpoint the run begins, and why it would be refused: the run then does just that."""

import shutil

from harness import FaultTest, Job, restarted_from, small_run

STEPS = ("train.steps=6", "checkpoint.every=3", "checkpoint.keep=9", "validation.tokens=0")


class DryRun(FaultTest):
    def begin(self):
        """A finished run of six steps."""
        self.train(1, *STEPS)

    def dry(self, *overrides):
        """The lines that follow the plan, and those on standard error."""
        job = Job(self.folder, 1, ["train", "deck.toml", "--dry-run", *STEPS, *overrides])
        self.assertEqual(job.wait(), 0, job.text())
        plan = next(i for i, line in enumerate(job.output) if line.startswith("bytes sent per rank"))
        return job.output[plan + 1:], job.messages()

    def assert_refused_alike(self, *overrides, code):
        before = self.content()
        planned, said = self.dry(*overrides)
        self.assertEqual(self.content(), before)
        self.assertEqual(said, [])
        message, = self.train(1, *STEPS, *overrides, code=code).messages()
        self.assertEqual(planned, ["warning: " + message.removeprefix("nanorun: ") + "\n"])

    def assert_continues(self, step, *overrides):
        before = self.content()
        planned, (skipped,) = self.dry(*overrides)
        self.assertEqual(self.content(), before)
        self.assertEqual(planned, [
            f"continues from the checkpoint outputs/run/checkpoints/checkpoint_{step:08}.h5, step {step}\n"])
        self.assertEqual(restarted_from(self.train(1, *STEPS, *overrides)), step)
        return skipped

    def content(self):
        return {path: path.read_bytes() for path in self.run_folder().rglob("*") if path.is_file()}

    def test_other_state_of_the_optimizer(self):
        self.begin()
        for changed in ("optimizer.adam_period=2", "optimizer.normuon_beta=0.9"):
            self.assert_refused_alike("train.steps=9", changed, code=4)

    def test_too_few_steps(self):
        self.begin()
        self.assert_refused_alike("train.steps=3", code=2)
        self.assert_refused_alike("train.steps=3", f"checkpoint.restart={self.checkpoint(6)}", code=2)

    def test_another_training(self):
        self.begin()
        shutil.copy(self.checkpoint(3), self.folder / "first.h5")
        self.assert_refused_alike("train.steps=9", "checkpoint.weights=first.h5", code=2)
        self.assert_refused_alike("train.steps=9", "run.seed=2", code=2)

    def test_another_step_than_that_of_the_name(self):
        self.begin()
        shutil.copy(self.checkpoint(6), self.checkpoint(9))
        self.assertIn("contains step 6, not that of its name; skipped", self.assert_continues(6, "train.steps=12"))

    def test_newest_is_damaged(self):
        self.begin()
        with self.checkpoint(6).open("r+b") as file:
            file.seek(-64, 2)
            file.write(b"x" * 64)
        (self.run_folder() / "summary.json").unlink()
        self.assertRegex(self.assert_continues(3), r"checkpoint_00000006\.h5: .*; skipped")

    def test_other_shards(self):
        self.begin()
        self.assertEqual(len(self.dry("train.steps=9")[0]), 1)
        (self.folder / "data.h5").unlink()
        small_run.write_data(self.folder, seed=1)
        planned, _ = self.dry("train.steps=9")
        message, = self.train(1, *STEPS, "train.steps=9", code=3).messages()
        self.assertEqual(planned[1:], ["warning: " + message.removeprefix("nanorun: ") + "\n"])

    def test_checkpoints_of_another_run(self):
        self.begin()
        other = self.folder / "outputs" / "other"
        other.mkdir()
        (other / "checkpoints").symlink_to(self.run_folder() / "checkpoints")
        self.assert_refused_alike("run.name=other", code=4)

    def test_finished(self):
        self.begin()
        self.assertIn("the run is finished: all 6 steps are made\n", self.dry()[0])
        self.assertIn("the run is finished", self.train(1, *STEPS).text())


if __name__ == "__main__":
    small_run.main()
