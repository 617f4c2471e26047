"""machine.json: the dry run predicts the step that the study's model gives."""

import json
import types
from dataclasses import replace

from support import ScalingTest, small_run

from study import machine, plan, program
from study.model import Forecast, Link, Model

FITTED = Model(per_sequence=0.05, constant=0.004, muon=2e-11, adam=3e-9, spread=0.04, inside=Link(5e-6, 1 / 2e9),
               between=Link(8e-6, 1 / 3e9), all_reduce=4e-6, overlap=0.25)


class MachineFile(ScalingTest):
    def setUp(self):
        super().setUp()
        self.study = self.read_study(sequences=48)
        self.planner = plan.Planner(small_run.PROGRAM)
        measured = plan.plan_of(self.planner.accepted(self.study, 1), "plan")
        base = types.SimpleNamespace(ranks=1, run=self.study.run(1, 1))
        self.analysis = types.SimpleNamespace(study=self.study, plans={1: measured}, base=base, largest_error=0.125,
                                              forecast=Forecast(FITTED, "strong", 48, [measured]))
        self.file = self.folder / "machine.json"

    def write(self, fitted=FITTED, **changes):
        self.analysis.forecast.model = fitted
        self.file.write_text(json.dumps(machine.table(self.analysis) | changes))

    def test_the_dry_run_predicts_as_the_model_does(self):
        for fitted in (FITTED, replace(FITTED, between=None, overlap=0.0)):
            self.write(fitted)
            for ranks, per_node in ((1, 1), (3, 3), (6, 4), (16, 4), (48, 8)):
                with self.subTest(ranks=ranks, known=fitted.between):
                    found = self.planner.accepted(self.study, ranks, "--ranks-per-node", str(per_node), "--machine",
                                                  str(self.file))
                    self.planner.known.clear()
                    wanted = fitted.step(plan.plan_of(found, "plan"), 48 / ranks)
                    self.assertAlmostEqual(found["predicted_step_seconds"] / wanted, 1, delta=1e-9)
        shown, refusal = program.dry_run(small_run.PROGRAM, self.study.run(1, 1), "--machine", str(self.file))
        self.assertEqual(refusal, "")
        self.assertRegex(shown, r"\npredicted step +\d+(\.\d+)? ms; the study was off by up to 1[23] %\n")

    def refusal(self, *overrides):
        study = self.read_study(sequences=48, more=f"overrides = {json.dumps(overrides)}")
        return program.dry_run(small_run.PROGRAM, study.run(1, 1), "--machine", str(self.file))[1]

    def test_other_decks_are_refused(self):
        self.write()
        self.assertIn("machine.json: tells no step of this deck: the study trained another model",
                      self.refusal("model.layers=2"))
        self.assertIn("train.length or the windows differ", self.refusal("train.length=512"))

    def test_files_that_are_no_machine(self):
        for text, why in (("[", "no machine.json of a scaling study"), ("{}", "no machine.json of a scaling study"),
                          ('{"format": "nanorun plan", "format_version": 1}', "another format")):
            self.file.write_text(text)
            self.assertIn(f"machine.json: {why}", self.refusal())

    def test_none_without_a_forecast(self):
        self.analysis.forecast = None
        self.assertIsNone(machine.table(self.analysis))


if __name__ == "__main__":
    small_run.main()
