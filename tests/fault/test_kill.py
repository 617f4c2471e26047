"""All ranks killed at random moments, again and again."""

import random
import re
import time

from harness import FaultTest, losses, restarted_from, small_run


class Kill(FaultTest):
    arguments = ("train.steps=80", "checkpoint.every=3")

    def test_twenty_kills_change_nothing(self):
        whole = self.folder / "whole"
        self.prepare(whole)
        uninterrupted = self.train(2, *self.arguments, folder=whole)
        draw = random.Random(5)
        seen, newest = {}, None
        for kill in range(20):
            job = self.start(2, *self.arguments)
            if kill % 4 == 3:
                time.sleep(draw.uniform(0, 0.6))  # perhaps before the first step
            else:
                steps = draw.randint(1, 4)
                job.until(lambda: len(losses(job)) >= steps, f"{steps} steps")
                time.sleep(draw.uniform(0, 0.02))
            self.assertIsNone(job.process.poll(), job.text())
            job.kill()
            if "restarted from" in job.text() or losses(job):
                self.assertEqual(restarted_from(job), newest)
            seen |= losses(job)
            complete = [name for name in self.files_if_any() if name.endswith(".h5")]
            newest = int(re.search(r"\d+", complete[-1])[0]) if complete else None
        self.assertIsNotNone(newest)
        last = self.train(2, *self.arguments)
        self.assertEqual(restarted_from(last), newest)
        seen |= losses(last)
        self.assertEqual(seen, losses(uninterrupted))
        for key in ("final_train_loss", "final_val_loss", "tokens", "steps"):
            self.assertEqual(self.summary()[key], self.summary(whole)[key], key)
        self.assertEqual(list(self.run_folder().rglob("*.partial")), [])

    def files_if_any(self):
        return self.files() if (self.run_folder() / "checkpoints").exists() else []


if __name__ == "__main__":
    small_run.main()
