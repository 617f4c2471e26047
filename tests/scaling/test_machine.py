"""machine.json: the dry run predicts the step that the study's model gives."""

import json
import subprocess
import types
from dataclasses import replace

import numpy as np
from support import PHASES, ROOT, ScalingTest, deadline, small_run, write_run

from study import StudyError, gather, machine, plan, program
from study.model import Forecast, Link, Model

FITTED = Model(per_sequence=0.05, constant=0.004, muon=2e-11, adam=3e-9, spread=0.04, inside=Link(5e-6, 1 / 2e9),
               between=Link(8e-6, 1 / 3e9), all_reduce=4e-6, overlap=0.25)

STAGES = """[[stage]]
share = 0.5
length = 128
short_window = 32
long_window = 64
[[stage]]
share = 0.5
length = 256
short_window = 32
long_window = 64
"""


class MachineFile(ScalingTest):
    def setUp(self):
        super().setUp()
        self.use(self.read_study(sequences=48))

    def use(self, study):
        """The study that writes a machine.json."""
        self.study = study
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

    def test_the_machine_in_inputs(self):
        """It predicts a step that its study has measured (docs/scaling.md); the CPU build sends other formats."""
        out = deadline.run([small_run.PROGRAM, "train", "--dry-run", "--json", "--ranks", "4", "--ranks-per-node", "2",
                            "--machine", ROOT / "inputs/machines/h200_record21.json", ROOT / "inputs/record21.toml",
                            "train.sequences=8", "window.first=896", "window.last=896"], 60, check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
        self.assertAlmostEqual(json.loads(out)["predicted_step_seconds"] / 0.1328, 1, delta=0.03)

    def refusal(self, *overrides):
        study = self.read_study(sequences=48, more=f"overrides = {json.dumps(overrides)}")
        return program.dry_run(small_run.PROGRAM, study.run(1, 1), "--machine", str(self.file))[1]

    def test_other_decks_are_refused(self):
        self.write()
        self.assertIn("machine.json: tells no step of this deck: the study trained another model",
                      self.refusal("model.layers=2"))
        self.assertIn("train.length or the windows differ", self.refusal("train.length=512"))

    def test_numbers_that_no_study_finds_are_refused(self):
        self.write()
        given = json.loads(self.file.read_text())
        for change in ({"overlap": 40}, {"spread": -0.1}, {"seconds": given["seconds"] | {"sequence": -1}},
                       {"seconds": given["seconds"] | {"between": {"latency": -1e-6, "seconds_per_byte": 0}}}):
            with self.subTest(change):
                self.file.write_text(json.dumps(given | change))
                self.assertIn("machine.json: no machine.json of a scaling study: it has numbers that no study finds",
                              self.refusal())

    def staged(self, stage, **values):
        """A study of a deck of two stages, the steps of one of which count."""
        text = (self.folder / "deck.toml").read_text()
        if STAGES not in text:
            text = text.replace("sequences = 4\nlength = 256\n", "sequences = 4\n" + STAGES)
            text = text.replace("first = 128\nlast = 256\n", 'kind = "tokens_before"\n')
            (self.folder / "deck.toml").write_text(text)
        return self.read_study(sequences=48, more=f"stage = {stage}", **values)

    def machine_of_stage(self, stage, **changes):
        self.use(self.staged(stage))
        self.file = self.folder / machine.file_name(self.study)
        self.write(**changes)
        return self.file

    def test_each_stage_is_predicted_by_its_own_study(self):
        files = [self.machine_of_stage(stage, largest_error=0.125 + stage / 8) for stage in (0, 1)]
        self.assertEqual([file.name for file in files], ["machine_stage0.json", "machine_stage1.json"])
        self.assertGreater(*(json.loads(file.read_text())["flops_per_sequence"] for file in reversed(files)))
        for given in (files, files[::-1], files[:1], files[1:]):
            words = [word for file in given for word in ("--machine", str(file))]
            found = self.planner.accepted(self.study, 6, *words)
            wanted = FITTED.step(plan.plan_of(found, "plan"), 48 / 6)
            for file, stage in zip(files, found["stages"]):
                with self.subTest(given=given, file=file):
                    self.assertEqual(file in given, "predicted_step_seconds" in stage)
                    self.assertEqual(file in given, "not_predicted" not in stage)
                    self.assertAlmostEqual(stage.get("predicted_step_seconds", wanted) / wanted, 1, delta=1e-9)
            self.assertNotIn("predicted_step_seconds", found)
        shown, _ = program.dry_run(small_run.PROGRAM, self.study.run(1, 1), "--machine", str(files[1]))
        self.assertRegex(shown, r"\npredicted step of stage 0 +not known: its sequences take other work: ")
        self.assertRegex(shown, r"\npredicted step of stage 1 +\d+(\.\d+)? ms; the study was off by up to 25 %\n")

    def test_nothing_is_predicted_without_a_machine(self):
        shown, _ = program.dry_run(small_run.PROGRAM, self.staged(0).run(1, 1))
        self.assertNotIn("predicted step", shown)
        self.assertNotIn("predicted", json.dumps(self.planner.accepted(self.study, 6)))

    def test_a_study_of_all_stages_tells_no_step(self):
        """Its steps take different times."""
        self.use(self.staged(-1))
        self.assertIsNone(machine.table(self.analysis))

    def test_steps_of_a_stage(self):
        study = self.staged(1, steps=8, warmup=1, ranks=(1,))
        study.folder.mkdir(parents=True)
        plan.write_plans(study, small_run.PROGRAM)
        seconds = np.full((8, 1, len(PHASES)), 1.0)
        seconds[5:] = 3.0
        run, = study.runs()
        write_run(run.folder, seconds, 1000)
        (measured,), missing = gather.gather(study)
        self.assertEqual(missing, [])
        self.assertAlmostEqual(measured.phases["forward"], 3.0)
        for stage, steps, why in ((2, 8, "the deck has no stage 2; its stages are 0 to 1"),
                                  (0, 2, "stage 0 has 1 of the 2 steps, of which study.warmup = 1 do not count")):
            with self.assertRaisesRegex(StudyError, why):
                plan.write_plans(self.staged(stage, steps=steps, ranks=(1,)), small_run.PROGRAM)

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
