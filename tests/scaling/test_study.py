"""Study files: expansion into runs, and the mistakes they may hold."""

import tomllib

from support import ROOT, ScalingTest, small_run, study_text

import tool
from study import StudyError
from study.program import dry_run
from study.study_file import OWNED, claim_folder, read_study


class Study(ScalingTest):
    def read(self, **values):
        return read_study(self.write_study(**values))

    def assert_refused(self, text, *parts):
        (self.folder / "bad.toml").write_text(text)
        with self.assertRaises(StudyError) as caught:
            read_study("bad.toml")
        for part in ("bad.toml", *parts):
            self.assertIn(part, str(caught.exception))

    def test_strong_keeps_the_sequences_of_a_step(self):
        runs = self.read(ranks=(1, 2, 4), sequences=8, repeats=2).runs()
        self.assertEqual([(r.ranks, r.repeat) for r in runs], [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)])
        for run in runs:
            self.assertEqual(run.sequences, 8)
            self.assertIn("train.sequences=8", run.arguments)

    def test_weak_keeps_the_sequences_of_a_rank(self):
        runs = self.read(kind="weak", ranks=(1, 3, 4), sequences=2).runs()
        self.assertEqual([r.sequences for r in runs], [2, 6, 8])
        for run in runs:
            self.assertIn(f"train.sequences={2 * run.ranks}", run.arguments)

    def test_runs_side_by_side(self):
        """So many that they fill the cores, on any number of ranks."""
        study = self.read(ranks=(1, 3, 4), sequences=12, repeats=2, more="[launch]\ncores = 4\nfill = true")
        self.assertEqual([[(r.ranks, r.repeat) for r in runs] for runs in study.rounds()],
                         [[(1, 1), (1, 2), (1, 3), (1, 4)], [(3, 1)], [(4, 1)],
                          [(1, 5), (1, 6), (1, 7), (1, 8)], [(3, 2)], [(4, 2)]])
        self.assertEqual([r.name for r in study.runs()], [r.name for runs in study.rounds() for r in runs])
        self.assert_refused(study_text(ranks=(1, 8), sequences=8, more="[launch]\ncores = 4\nfill = true"),
                            "launch.fill: 8 ranks do not fit on 4 cores")
        self.assert_refused(study_text(more="[launch]\nfill = true"), "launch.fill: launch.cores must say")

    def test_more_ranks_than_sequences_have_shorter_ones(self):
        runs = self.read(ranks=(1, 2, 4, 8, 16), sequences=4, more="length = 1024").runs()
        self.assertEqual([r.sequences for r in runs], 5 * [4])
        for run, sequences, length in zip(runs, (4, 4, 4, 8, 16), (1024, 1024, 1024, 512, 256)):
            self.assertIn(f"train.sequences={sequences}", run.arguments)
            self.assertIn(f"train.length={length}", run.arguments)
        self.assert_refused(study_text(ranks=(4, 6), sequences=4, more="length = 1024"), "4 sequences", "6 ranks")
        self.assert_refused(study_text(ranks=(4, 64), sequences=4, more="length = 1024"), "1024 tokens", "64 ranks")
        self.assert_refused(study_text(more="length = 1000"), "study.length must be a multiple of 128")
        self.assert_refused(study_text(kind="weak", more="length = 1024"), "for strong scaling")
        self.assert_refused(study_text(more='length = 1024\noverrides = ["train.length=128"]'), "train.length is set by")

    def test_arguments_of_a_run(self):
        run = self.read(name="abc", steps=9, more='overrides = ["model.width=64"]').runs()[1]
        self.assertEqual(run.arguments[:3], ("train", "deck.toml", "model.width=64"))
        for argument in ('run.name="ranks2_repeat1"', 'run.outputs="outputs/abc"', "train.steps=9",
                         "validation.tokens=0", "trace.json_steps=[8]", "checkpoint.restart=none",
                         "checkpoint.at_end=false"):
            self.assertIn(argument, run.arguments)
        self.assertEqual(str(run.folder), "outputs/abc/ranks2_repeat1")
        self.assertEqual(str(run.log), "outputs/abc/ranks2_repeat1.log")
        keys = [argument.split("=")[0] for argument in run.arguments[2:]]
        self.assertEqual(len(keys), len(set(keys)))

    def test_paths_are_strings_of_toml(self):
        for name in ("a é #$x", "it's [1]*", 'quotes " and \\'):
            run = self.read(name=name.replace("\\", "\\\\").replace('"', '\\"')).runs()[0]
            values = dict(argument.split("=", 1) for argument in run.arguments[2:])
            self.assertEqual(tomllib.loads(f"outputs = {values['run.outputs']}"), {"outputs": f"outputs/{name}"})
            self.assertEqual(str(run.folder), f"outputs/{name}/ranks1_repeat1")
        self.assertEqual(tool.toml_string("\x7f\x01\U0001f600"), '"\\u007f\\u0001\U0001f600"')

    def test_unknown_and_missing_keys(self):
        self.assert_refused(study_text(more="stpes = 3"), "study.stpes is no key", "steps")
        self.assert_refused(study_text(more="[launch]\ncpus = 3"), "launch.cpus is no key", "cores")
        for line, *parts in (("exclusive = 1", "launch.exclusive must be true or false"),
                             ("ranks_per_node = true", "launch.ranks_per_node must be an integer"),
                             ("ranks_per_node = -1", "launch.ranks_per_node must be at least 0"),
                             ("gpus_per_node = 1000001", "launch.gpus_per_node must be at least 0 and at most 1000000"),
                             ("ranks_per_node = 9\ngpus_per_node = 8", "launch.ranks_per_node: 9 ranks", "8 of launch.gpus")):
            self.assert_refused(study_text(more=f"[launch]\n{line}"), *parts)
        self.assert_refused(study_text() + "[model]\nwidth = 3\n", "[model] is no section")
        self.assert_refused('[study]\nname = "a"\n', "study.kind is missing")

    def test_values_that_cannot_be(self):
        self.assert_refused(study_text(kind="sideways"), "study.kind", "strong, weak")
        self.assert_refused(study_text(steps='"four"'), "study.steps must be an integer")
        self.assert_refused(study_text(steps="true"), "study.steps must be an integer")
        self.assert_refused(study_text(warmup=4), "study.warmup", "less than study.steps")
        self.assert_refused(study_text(ranks=(2, 1)), "study.ranks", "ascending")
        self.assert_refused(study_text(ranks=()), "study.ranks")
        self.assert_refused(study_text(name="a/b"), "study.name")
        self.assert_refused(study_text(repeats=0), "study.repeats")
        self.assert_refused(study_text(more="[prediction]\nlatency = -1"), "negative")
        self.assert_refused(study_text().replace("deck.toml", "none.toml"), "study.deck", "none.toml", "no such file")
        self.assert_refused("[study\n", "bad.toml")

    def test_ranks_that_do_not_divide_the_sequences(self):
        self.assert_refused(study_text(ranks=(1, 2, 3), sequences=12 - 4), "8 sequences", "3 ranks", "1, 2, 4, 8")

    def test_overrides_of_keys_that_the_study_sets(self):
        self.assertIn("train.sequences", OWNED)
        self.assertIn("validation.tokens", OWNED)
        for key in OWNED:
            self.assert_refused(study_text(more=f'overrides = ["{key}=1"]'), key, "set by the study itself")
        self.assert_refused(study_text(more='overrides = ["width"]'), "'width'", "section.key=value")

    def test_no_study_file(self):
        with self.assertRaisesRegex(StudyError, "nothing.toml: No such file"):
            read_study("nothing.toml")

    def test_a_folder_belongs_to_one_study(self):
        claim_folder(self.read())
        claim_folder(self.read(ranks=(1, 2, 4), repeats=3, warmup=2))  # more of the same
        with self.assertRaisesRegex(StudyError, "outputs/test holds .*steps changed"):
            claim_folder(self.read(steps=7))
        with self.assertRaisesRegex(StudyError, "outputs/test holds .*fill changed"):
            claim_folder(self.read(more="[launch]\ncores = 4\nfill = true"))
        (self.folder / "deck.toml").write_text("[model]\nwidth = 64\n")
        with self.assertRaisesRegex(StudyError, "deck changed"):
            claim_folder(self.read())

    def test_studies_of_inputs(self):
        studies = [path for folder in ("studies", "scaling") for path in (ROOT / "inputs" / folder).glob("*.toml")]
        self.assertGreaterEqual(len(studies), 6)
        decks = {*(ROOT / "inputs").glob("*.toml"), *(ROOT / "inputs" / "gpt2").glob("*.toml")}
        for path in studies:
            study = read_study(path)
            self.assertEqual(study.name, path.stem)
            self.assertIn(study.kind, path.stem)
            self.assertIn(study.deck.resolve(), decks)

    def test_studies_of_thousands_of_ranks_fit_the_program(self):
        """Each run can be trained on its ranks; the step of the strong ones has the same tokens on all."""
        for path in sorted((ROOT / "inputs" / "scaling").glob("*.toml")):
            study = read_study(path)
            self.assertEqual((study.ranks[0], study.ranks[-1]), (1, 4096))
            tokens = set()
            for run in study.runs()[:len(study.ranks)]:
                self.assertEqual(dry_run(small_run.PROGRAM, run, "--ranks", str(run.ranks))[1], "")
                values = dict(argument.split("=", 1) for argument in run.arguments[2:])
                tokens.add(int(values["train.sequences"]) * int(values.get("train.length", 0)))
            self.assertEqual(len(tokens), 1)


if __name__ == "__main__":
    small_run.main()
