"""Reading metrics.jsonl while a program writes it. Standard library only."""

import json
import math
import os

from support import WRONG_JSON, ToolTest, metrics_text, small_run, step_line, validation_line

import tool
from metrics import Metrics


class Reading(ToolTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "metrics.jsonl"
        self.metrics = Metrics(self.path)

    def add(self, *lines, end="\n"):
        with open(self.path, "a") as file:
            file.write("\n".join(json.dumps(line) for line in lines) + end)

    def read(self):
        """Steps and validations by their step."""
        self.metrics.poll()
        return ([line["step"] for line in self.metrics.steps],
                [(line["step"], line["validation_loss"]) for line in self.metrics.validations])

    def test_a_file_that_is_not_there_yet(self):
        self.assertEqual(self.read(), ([], []))
        self.add(step_line(1))
        self.assertEqual(self.read(), ([1], []))

    def test_lines_that_are_added(self):
        self.add(validation_line(0, 5.5), step_line(1))
        self.assertEqual(self.read(), ([1], [(0, 5.5)]))
        self.add(step_line(2), validation_line(2, 4.5))
        self.assertEqual(self.read(), ([1, 2], [(0, 5.5), (2, 4.5)]))
        self.assertEqual(self.metrics.steps[1]["loss"], 4.8)
        self.assertEqual(self.metrics.restarts, 0)

    def test_a_line_that_is_half_written_is_left_for_later(self):
        line = json.dumps(step_line(2))
        self.add(step_line(1))
        self.add(end=line[:20])
        self.assertEqual(self.read(), ([1], []))
        self.add(end=line[20:] + "\n")
        self.assertEqual(self.read(), ([1, 2], []))

    def test_a_file_that_was_begun_anew(self):
        """Shorter than before, as long, or longer when it is looked at again."""
        for steps in (2, 5, 9):
            self.path.write_text(metrics_text({5: 4.0}))
            self.assertEqual(self.read()[0], [1, 2, 3, 4, 5])
            before = self.metrics.restarts
            self.path.write_text("".join(json.dumps(step_line(step, loss=7.0)) + "\n" for step in range(1, steps + 1)))
            self.assertEqual(self.read(), (list(range(1, steps + 1)), []))
            self.assertEqual({line["loss"] for line in self.metrics.steps}, {7.0})
            self.assertEqual(self.metrics.restarts, before + 1)

    def test_steps_that_are_repeated_hold(self):
        self.add(step_line(1), step_line(2), validation_line(2, 4.0), step_line(3))
        self.add(step_line(2, loss=9.0), validation_line(2, 8.0))
        self.assertEqual(self.read(), ([1, 2], [(2, 8.0)]))
        self.assertEqual(self.metrics.steps[1]["loss"], 9.0)

    def test_losses_that_are_no_numbers(self):
        self.path.write_text('{"step": 1, "loss": NaN, "ms": null}\n{"step": 2, "loss": Infinity}\n{"step": 2}\n')
        self.assertEqual(self.read(), ([1, 2], []))
        self.assertTrue(all(math.isnan(value) for value in (self.metrics.steps[0]["loss"], self.metrics.steps[0]["ms"],
                                                            self.metrics.steps[1]["loss"])))

    def test_damaged_lines_are_named(self):
        good = json.dumps(step_line(1)).encode() + b"\n"
        wrong = [*WRONG_JSON, "", '{"loss": 1}', '{"step": "1", "loss": 1}', '{"step": -1, "loss": 1}',
                 '{"step": 1, "loss": "1"}', '{"step": 1, "loss": [1]}', '{"step": 1, "loss": 1, "ms": true}',
                 '{"step": 1, "validation_loss": 1e300}']
        for line in wrong:
            with self.subTest(line=line[:60]):
                line = line if isinstance(line, bytes) else line.encode()
                self.path.write_bytes(good + line + b"\n")
                with self.assertRaisesRegex(tool.ToolError, r"metrics\.jsonl: line 2: "):
                    Metrics(self.path).poll()

    def test_files_that_are_none(self):
        for make in (self.path.mkdir, lambda: os.mkfifo(self.path), lambda: self.path.symlink_to("/dev/zero")):
            make()
            with self.assertRaisesRegex(tool.ToolError, r"metrics\.jsonl: not a regular file"):
                self.metrics.poll()
            self.path.rmdir() if self.path.is_dir() else self.path.unlink()


if __name__ == "__main__":
    small_run.main()
