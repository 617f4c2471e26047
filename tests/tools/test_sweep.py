"""The expansion of a sweep. Standard library only."""

import json
import os
import tomllib
from pathlib import Path

from support import DEEP_TOML, ToolTest, limit_memory, small_run

import sweep
import tool

SWEEP = """
deck = "deck.toml"
name = "lr"
seeds = [7, 8]
target = 3.5
[grid]
"optimizer.muon_lr" = [0.05, 1e-05]
"data.train" = [["a.h5", "b.h5"]]
"train.cooldown" = [0, 0.5]
"""


class SweepTest(ToolTest):
    def setUp(self):
        super().setUp()
        small_run.write_deck(self.folder)
        self.path = Path("sweep.toml")
        self.path.write_text(SWEEP)

    def read(self, text=SWEEP):
        self.path.write_text(text)
        return sweep.read_sweep(self.path)

    def finish(self, name, steps=12, **summary):
        folder = self.folder / "outputs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": steps} | summary))


class Expansion(SweepTest):
    def test_combinations(self):
        """Keys in the order of the file, seeds last. A key of one value is not in the name."""
        tasks = self.read().tasks
        self.assertEqual([task.name for task in tasks],
                         ["lr_0.05_0_7", "lr_0.05_0_8", "lr_0.05_0.5_7", "lr_0.05_0.5_8", "lr_1e-05_0_7",
                          "lr_1e-05_0_8", "lr_1e-05_0.5_7", "lr_1e-05_0.5_8"])
        self.assertEqual(tasks[6].overrides, ["optimizer.muon_lr=1e-05", 'data.train=["a.h5", "b.h5"]',
                                              "train.cooldown=0.5", "run.seed=7", 'run.name="lr_1e-05_0.5_7"'])

    def test_seeds_alone(self):
        found = self.read('deck = "deck.toml"\nname = "a \\"b\\""\nseeds = [3]\n')
        self.assertEqual([(task.name, task.overrides) for task in found.tasks],
                         [('a "b"_3', ["run.seed=3", 'run.name="a \\"b\\"_3"'])])
        self.assertIsNone(found.target)

    def test_stages_and_groups(self):
        """As the command line of the program names them, and those alone that the deck has."""
        with open("deck.toml", "a") as deck:
            deck.write("[[stage]]\nshare = 1\n" + "[[group]]\nlr = 1\n" * 11)
        grid = '[grid]\n"group.10.lr" = [0.4, 0.6]\n"stage.0.length" = [512]\n'
        found = self.read(SWEEP.partition("[grid]")[0] + grid)
        self.assertEqual(found.tasks[2].overrides[:2], ["group.10.lr=0.6", "stage.0.length=512"])
        self.assertEqual(found.tasks[2].name, "lr_0.6_7")
        for key, why in (("group.11.lr", "deck.toml has 11 \\[\\[group"), ("stage.1.length", "has 1 \\[\\[stage"),
                         ("group.lr", '"group.N.key"'), ("group.01.lr", "no "), ("train.0.steps", "no ")):
            with self.assertRaisesRegex(tool.ToolError, f"sweep.toml: grid: .*{key}.*{why}"):
                self.read(SWEEP.partition("[grid]")[0] + grid.replace("group.10.lr", key))

    def test_byte_order_mark_and_line_ends(self):
        """Of the sweep and of its deck, as editors on Windows write them."""
        expected = [task.overrides for task in self.read().tasks]
        for path in (self.path, Path("deck.toml")):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        self.assertEqual([task.overrides for task in sweep.read_sweep(self.path).tasks], expected)
        self.assertEqual(sweep.read_sweep(self.path).tasks[0].steps, 12)

    def test_values_in_names(self):
        values = {"true": "true", '"a/b c"': "a-b-c", '"größe"': "gr-e", '"//"': "-", "-1": "-1",
                  '["a.h5", "b"]': "a.h5-b"}
        for value, part in values.items():
            found = self.read(SWEEP.replace("[0, 0.5]", f'["x", {value}]'))
            self.assertEqual(found.tasks[2].name, f"lr_0.05_{part}_7", value)

    def test_list_and_task(self):
        self.finish("lr_0.05_0_8")
        code, output, _ = self.end("sweep.py", self.path, "--list")
        lines = output.splitlines()
        self.assertEqual((code, len(lines)), (0, 8))
        self.assertEqual(lines[1], '2  lr_0.05_0_8  finished  optimizer.muon_lr=0.05 data.train=["a.h5", "b.h5"] '
                                   "train.cooldown=0 run.seed=8")
        code, output, error = self.end("sweep.py", self.path, "--task", 8)
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(output.splitlines(), ["deck.toml", *self.read().tasks[7].overrides])
        self.assertEqual(self.end("sweep.py", self.path, "--task", 2), (0, "", "lr_0.05_0_8 has finished\n"))

    def test_a_task_has_finished_when_its_summary_says_so(self):
        task = self.read().tasks[0]
        self.assertEqual(task.steps, 12)
        for summary, expected in (({}, True), ({"finished": False}, False), ({"steps": 11}, False),
                                  ({"finished": "yes"}, False)):
            self.finish(task.name, **{"steps": 12} | summary)
            self.assertEqual(self.read().finished(task), expected, summary)
        (self.folder / "outputs" / task.name / "summary.json").write_text("{")
        self.assertFalse(self.read().finished(task))
        given = self.read(SWEEP + '"train.steps" = [30]\n')
        self.assertEqual(given.tasks[0].steps, 30)

    def test_directory_of_the_runs(self):
        with open("deck.toml", "a") as deck:
            deck.write("[extra]\n")
        Path("deck.toml").write_text(Path("deck.toml").read_text().replace("[run]", '[run]\noutputs = "elsewhere"'))
        found = self.read()
        self.assertEqual(found.folder(found.tasks[0]), Path("elsewhere/lr_0.05_0_7"))


class Damage(SweepTest):
    def test_files_that_are_no_sweep(self):
        changes = [("deck = ", "deck = 1 #"), ('"deck.toml"', '"none.toml"'), ('"deck.toml"', '"a\\u0000b"'),
                   ("name = ", "names = "), ('"lr"', '"a/b"'), ('"lr"', '""'), ('"lr"', '"a\\nb"'),
                   ('"lr"', json.dumps("x" * 300)), ("[7, 8]", "[]"), ("[7, 8]", "[7, 7]"), ("[7, 8]", '["7"]'),
                   ("[7, 8]", "[-1]"), ("[7, 8]", "7"), ("3.5", '"3.5"'), ("3.5", "nan"), ("[grid]", "grid = 1 #"),
                   ("[grid]", "[grids]"), ('"train.cooldown"', "train.cooldown"), ('"train.cooldown"', '"run.seed"'),
                   ('"train.cooldown"', '"run.name"'), ('"train.cooldown"', '"a=b.c"'), ("[0, 0.5]", "[]"),
                   ("[0, 0.5]", "0"), ("[0, 0.5]", "[nan]"), ("[0, 0.5]", "[1979-05-27]"), ("[0, 0.5]", "[{}]"),
                   ("[0, 0.5]", '["a/b", "a-b"]'), ("[0, 0.5]", '["a\\nb"]'),
                   ("[0, 0.5]", json.dumps(list(range(5000))))]
        for old, new in changes:
            with self.subTest(new=new[:40]):
                self.assertIn(old, SWEEP)
                with self.assertRaisesRegex(tool.ToolError, r"^(sweep|none)\.toml: |^\S+: not a path"):
                    self.read(SWEEP.replace(old, new))
        self.path.write_text("[")
        self.assert_refused("sweep.py", self.path, "--list", names=["sweep.toml"])
        self.path.write_bytes(b"\xff")
        self.assert_refused("sweep.py", self.path, "--page", names=["sweep.toml"])
        self.assert_refused("sweep.py", "none.toml", "--list", names=["none.toml"])

    def test_toml_that_nests_deep(self):
        for text in DEEP_TOML:
            with self.subTest(text=text[:40]):
                self.path.write_text(text)
                self.assert_refused("sweep.py", self.path, "--list", names=["sweep.toml: "], preexec_fn=limit_memory)

    def test_brackets_in_strings_are_no_nesting(self):
        """Brackets and dots in strings and comments, and one after the other."""
        dots = "[.{" * 100
        text = "\n".join([
            f"# {dots}", f'a = "{dots}\\"{dots}"', f"b = '{dots}'", f'c = """\n{dots}"\\"{dots}""""',
            f"d = \'\'\'{dots}\n{dots}\'\'\'", "e = [" + "[1.5], {a.b = 2.5}, " * 100 + "]",
            "f = " + "[" * 16 + "]" * 16])
        self.path.write_text(text)
        self.assertEqual(tool.read_toml(self.path), tomllib.loads(text))
        self.path.write_text("f = " + "[" * 17 + "]" * 17)
        with self.assertRaisesRegex(tool.ToolError, "sweep.toml: line 1: .*more than 16 deep"):
            tool.read_toml(self.path)

    def test_task_numbers_out_of_range(self):
        for task in (0, 9, -1):
            self.assert_refused("sweep.py", self.path, f"--task={task}", names=["tasks 1 to 8"])


class ThePage(SweepTest):
    def test_when_all_have_finished(self):
        from support import write_run

        found = self.read()
        losses = {0: 6.0, 12: 3.4}
        for task in found.tasks[:-1]:
            write_run(found.folder(task), losses)
        self.assertEqual(self.end("sweep.py", self.path, "--page"),
                         (0, "1 of 8 tasks have not finished, and there is no page yet\n", ""))
        write_run(found.folder(found.tasks[-1]), losses)
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        (self.folder / "scipy.py").write_text("raise ImportError('broken')\n")
        code, output, error = self.end("sweep.py", self.path, "--page", env=environment)
        self.assertEqual((code, output), (2, ""))
        self.assertIn("no module scipy", error)
        (self.folder / "scipy.py").unlink()
        code, output, _ = self.end("sweep.py", self.path, "--page")
        self.assertEqual((code, output), (0, "outputs/lr.html\n"))
        page = Path("outputs/lr.html").read_text()
        self.assertIn("Comparison of 8 runs", page)
        self.assertIn("target validation loss 3.5", page)
        self.path.write_text(SWEEP.replace("target = 3.5", ""))
        self.assertEqual(self.end("sweep.py", self.path, "--page")[0], 0)
        self.assertNotIn("target", Path("outputs/lr.html").read_text())


if __name__ == "__main__":
    small_run.main()
