"""A small study from end to end: strong scaling on one and two ranks."""

import csv
import json

from support import ScalingTest, small_run


class RealStudy(ScalingTest):
    def test_one_and_two_ranks(self):
        small_run.write_data(self.folder)
        study = self.write_study(steps=6, warmup=2, more="[prediction]\nlatency = 1e-6\nbandwidth = 1e10")
        said = self.script(study, "--program", small_run.PROGRAM)
        self.assertIn("[2/2] ranks2_repeat1: done", said)
        folder = self.folder / "outputs/test"
        self.assertIn("outputs/test/report.html", said)
        self.assertIn("All runs of the study have finished.", (folder / "report.html").read_text())
        with open(folder / "runs.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(r["ranks"], r["repeat"]) for r in rows], [("1", "1"), ("2", "1")])
        for row in rows:
            self.assertEqual(int(row["tokens"]), 4 * 256)
            self.assertGreater(float(row["forward_seconds"]), 0)
            parts = sum(float(row[f"{name}_seconds"]) for name in ("computing", "communication", "waiting"))
            self.assertLessEqual(parts, float(row["step_seconds"]) * (1 + 1e-4))
        self.assertEqual([row["overlap"] for row in rows], ["nan", "0"])  # on CPUs collectives block
        self.check_resumption(study, folder)

    def check_resumption(self, study, folder):
        """Only what is missing runs again; other settings are refused."""
        kept = (folder / "ranks1_repeat1/summary.json").stat().st_mtime_ns
        (folder / "ranks2_repeat1/summary.json").unlink()
        said = self.script(study, "--program", small_run.PROGRAM)
        self.assertIn("[1/1] ranks2_repeat1: done", said)
        self.assertEqual((folder / "ranks1_repeat1/summary.json").stat().st_mtime_ns, kept)
        self.assertTrue(json.loads((folder / "ranks2_repeat1/summary.json").read_text())["finished"])
        said = self.script(self.write_study(steps=7), "--program", small_run.PROGRAM, code=2)
        self.assertIn("steps changed", said)

    def test_runs_that_fail_are_named(self):
        study = self.write_study()  # there is no data.h5
        said = self.script(study, "--program", small_run.PROGRAM, code=1)
        self.assertIn("[1/2] ranks1_repeat1: failed with exit code 3, see outputs/test/ranks1_repeat1.log", said)
        self.assertIn("no run has finished", said)
        self.assertIn("data.h5", (self.folder / "outputs/test/ranks1_repeat1.log").read_text())

    def test_a_deck_that_the_program_refuses(self):
        study = self.write_study(more='overrides = ["model.widht=64"]')
        said = self.script(study, "--program", small_run.PROGRAM, code=2)
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("widht", said)


if __name__ == "__main__":
    small_run.main()
