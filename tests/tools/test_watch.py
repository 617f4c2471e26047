"""Following runs: the page, its end, and what TensorBoard and Weights & Biases get, with stubs in their place. Standard
library only."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import (DEEP_TOML, TOOLS, WRONG_JSON, Page, ToolTest, limit_memory, metrics_text, small_run, step_line,
                     validation_line, write_run)

import chart
import deadline
import watch

LOSSES = {0: 6.0, 10: 4.0, 20: 3.5}
# Each call is a line of calls.jsonl.
RECORDER = """
import json
def note(*call):
    with open("calls.jsonl", "a") as file:
        file.write(json.dumps(call) + "\\n")
"""
WRITER = RECORDER + """
class SummaryWriter:
    def __init__(self, folder, purge_step=None):
        note("open", folder, purge_step)
        self.folder = folder
    def add_scalar(self, name, value, step):
        note(self.folder, name, value, step)
    def flush(self):
        pass
    def close(self):
        note("close", self.folder)
"""
WANDB = RECORDER + """
class Run:
    def __init__(self, name):
        self.name = name
    def log(self, values, step):
        note(self.name, values, step)
    def finish(self):
        note("finish", self.name)
def init(project, name, config, reinit):
    if project == "broken":
        raise RuntimeError("no key\\nin sight")
    note("init", project, name, config["train.steps"], reinit)
    return Run(name)
"""


class WatchTest(ToolTest):
    def write_modules(self, **modules):
        """Modules that a tool finds first; returns its environment. None: a module that is missing."""
        for name, text in modules.items():
            path = self.folder / "modules" / Path(*name.split("__"))
            for parent in list(path.parents)[:len(name.split("__")) - 1]:
                parent.mkdir(parents=True, exist_ok=True)
                (parent / "__init__.py").touch()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text("raise ImportError('none')\n" if text is None else text)
        return os.environ | {"PYTHONPATH": str(self.folder / "modules")}

    def calls(self):
        return [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()]

    def unfinished(self, name="a"):
        folder = write_run(Path(name), LOSSES)
        (folder / "summary.json").unlink()
        return folder

    def end_run(self, folder, **summary):
        """As the program does, after the last lines of the metrics."""
        (folder / "summary.json").write_text(json.dumps({"finished": True, "stopped_by": "", "steps": 20} | summary))


class Drawing(WatchTest):
    def test_once_prints_a_line_for_each_run(self):
        folders = [write_run(Path("a"), LOSSES), self.unfinished("b"), Path("none")]
        self.assert_refused("watch.py", *folders, "--once", names=["none: no such directory"])
        folders[-1].mkdir()
        code, output, error = self.end("watch.py", *folders, "--once", "--html", "page.html")
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(output, "a: finished, step 20/20\nb: running, step 20/20\nnone: not begun, step 0\n")
        text = Path("page.html").read_text()
        page = Page(text)
        self.assertEqual(page.texts["h1"], ["3 runs"])
        self.assertEqual(page.texts["td"][:10], ["a", "finished", "20/20", "—", "3.00000", "3.50000", "100.0 ms",
                                                 "10,240", "—", "—"])
        self.assertEqual(page.texts["td"][21:25], ["not begun", "0", "—", "—"])
        charts = [element["aria-label"] for element in page.elements["svg"] if "aria-label" in element]
        self.assertEqual(charts, ["Loss by steps", "Loss by seconds of training", "Time of a step", "Throughput"])
        self.assertEqual(page.addresses, [])
        self.assertNotIn("http", text)
        self.assertNotIn("reload", text)

    def test_figures_that_only_gpus_have(self):
        folder = self.unfinished()
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(step_line(21, mfu=0.415, device_memory_bytes=15.3e9, gradient_norm=0.5)) + "\n")
        (folder / "log.txt").write_text("first\n" + "step <1>  ETA 02:07\n" * 5)
        watched = watch.Watched(folder, "a")
        watched.poll()
        page = Page(watch.document([watched], 5, live=True))
        self.assertEqual(page.texts["td"][8:10], ["41.5 %", "15.30 GB"])
        charts = [element["aria-label"] for element in page.elements["svg"] if "aria-label" in element]
        self.assertEqual(charts[4:], ["Model FLOPs utilisation", "Memory of the GPU of rank 0", "Norm of the gradient",
                                      "Learning rate"])
        self.assertEqual(page.texts["pre"], ["\n".join(["step <1> ETA 02:07"] * 5)])
        self.assertIn("location.reload", page.texts["script"][0])
        self.assertIn("}, 5000);", page.texts["script"][0])

    def test_time_that_is_left(self):
        """Ten steps of 0.1 s."""
        folder = self.unfinished()
        (folder / "deck.toml").write_text("[train]\nsteps = 3620\n")
        watched = watch.Watched(folder, "a")
        watched.poll()
        self.assertAlmostEqual(watched.seconds_left(), 360, places=9)
        self.assertEqual([watch.clock(s) for s in (360, 59.6, 3600, 86399, float("nan"))],
                         ["06:00", "01:00", "1:00:00", "23:59:59", "—"])

    def test_time_that_is_left_counts_validations(self):
        """Steps of 0.1 s and 1024 tokens, validations of as many tokens as 30 steps have."""
        folder = write_run(Path("v"), {20: 4.0})
        (folder / "summary.json").unlink()
        deck = "[train]\nsteps = 50\n[validation]\ntokens = 30720\nevery = {}\n[data]\nvalidation = [\"v.h5\"]\n"

        def left(every, lines):
            (folder / "deck.toml").write_text(deck.format(every))
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            watched = watch.Watched(folder, "v")
            watched.poll()
            return watched.seconds_left()

        steps = [step_line(step) for step in range(1, 51)]
        made = [validation_line(step, 4.0, validation_ms=7000.0) for step in (0, 20)]
        self.assertAlmostEqual(left(20, [made[0], *steps[:20]]), 3 + 3 * 7, msg="of steps 20, 40 and 50")
        self.assertAlmostEqual(left(20, [made[0], *steps[:20], made[1]]), 3 + 2 * 7)
        self.assertAlmostEqual(left(25, [made[0], *steps[:20]]), 3 + 2 * 7, msg="of steps 25 and 50")
        self.assertAlmostEqual(left(25, [made[0], *steps]), 7, msg="the last one is still to come")
        self.assertAlmostEqual(left(0, steps[:20]), 3 + 1, msg="a third of the time of 30 steps")
        self.assertAlmostEqual(left(1, [made[0], *steps[:20]]), 3 + 31 * 7)

    def test_a_weighted_sum_is_named(self):
        folder = self.unfinished()
        with open(folder / "deck.toml", "a") as file:
            file.write("[[stage]]\ntargets = [1]\nprefix = 0\nprefix_end = -1\n[[stage]]\ntargets = [1, 0.5]\n")
        watched = watch.Watched(folder, "a")
        watched.poll()
        page = Page(watch.document([watched], 5, live=True))
        charts = [element["aria-label"] for element in page.elements["svg"] if "aria-label" in element]
        self.assertEqual(charts[:2], ["Loss by steps; that of training is a weighted sum",
                                      "Loss by seconds of training; that of training is a weighted sum"])
        self.assertNotIn("(weighted)", page.texts["td"][4])
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(step_line(21, loss_weights=1.5)) + "\n")
        watched.poll()
        self.assertEqual(Page(watch.document([watched], 5, live=True)).texts["td"][4], "2.90000 (weighted)")
        self.assertEqual(watch.scalars(watched.metrics.steps[-1])["loss/training_weighted"], 2.9)
        self.assertEqual(watch.scalars(watched.metrics.steps[-2])["loss/training"], 3.0)

    def test_lines_of_many_points_are_averaged(self):
        line = chart.Line([(i, 2.0 * i) for i in range(4000)], "red")
        self.assertEqual(len(line.shown), 400)
        self.assertEqual(line.shown[:2], [(4.5, 9.0), (14.5, 29.0)])
        self.assertEqual(chart.smooth([(i, i % 2) for i in range(60)])[0], (0.5, 0.5))

    def test_top_of_losses(self):
        """The end of a short run is in the picture beside a long one, and what diverges leaves it."""
        short = chart.Line([(0, 11.0), (10, 6.0), (20, 5.0)], "red")
        long = chart.Line([(0, 11.0), (10, 6.5), (300, 4.0), (1000, 3.3)], "red")
        self.assertEqual(chart.top_of_losses([long]), 4.0)
        self.assertEqual(chart.top_of_losses([short, long]), 6.0)
        diverging = chart.Line([(0, 11.0), (10, float("nan")), (20, 1e9)], "red")
        self.assertEqual(chart.top_of_losses([long, diverging]), 11.0)
        self.assertIsNone(chart.top_of_losses([chart.Line([], "red")]))

    def test_ticks_are_round(self):
        self.assertEqual(chart.ticks(0, 105, 6), ([0, 20, 40, 60, 80, 100], 0))
        self.assertEqual(chart.ticks(3.1, 3.4, 6)[1], 2)
        for low, high in ((0, 1e-9), (-5, 1e15), (3.28, 3.2800001), (1e29, 1e30)):
            values, _ = chart.ticks(low, high, 6)
            self.assertTrue(2 <= len(values) <= 8, values)

    def test_figures_that_are_close_or_tiny_are_drawn(self):
        """Below the precision of floats, and of what ticks can show."""
        for values in ((1e-320, 2e-320), (0, 5e-324), (-1e-310, 0), (1e-12, 3e-12), (3.0, 3.0 + 4e-16),
                       (1e15, 1e15 + 0.125), (1e-9, 1e-9)):
            low, high = chart.bounds(values)
            self.assertTrue(low <= values[0] and values[1] <= high)
            found, decimals = chart.ticks(low, high, 6)
            self.assertTrue(2 <= len(found) <= 8 and decimals < 12, (found, decimals))
            for points in ([(0, values[0]), (1, values[1])], [(values[0], 3.0), (values[1], 2.0)]):
                text = chart.draw("a", [chart.Line(points, "red")], "x", "y")
                self.assertLess(max(map(len, Page(text).texts["text"])), 30)

    def test_losses_that_are_no_numbers_are_drawn(self):
        nan, inf = float("nan"), float("inf")
        for losses in ([nan] * 3, [inf, 3, nan], [1e30, -1e30, 0], []):
            Page(chart.draw("a", [chart.Line(list(enumerate(losses)), "red", dots=True)], "x", "y", target=3.28))


class Ends(WatchTest):
    def start(self, *arguments):
        """A tool at work, and its page."""
        page = self.folder / "page.html"
        job = subprocess.Popen([sys.executable, "-B", TOOLS / "watch.py", *map(str, arguments), "--html", page,
                                "--every", "0.1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        self.until(job, page.exists)
        return job, page

    def until(self, job, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertIsNone(job.poll(), "the tool has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_follows_until_all_runs_have_finished(self):
        """One has not begun, one begins anew."""
        first, second = self.unfinished(), Path("b")
        job, page = self.start(first, second)
        self.until(job, lambda: "not begun" in page.read_text())
        self.assertIn("reload", page.read_text())
        write_run(second, LOSSES)
        self.until(job, lambda: "1 of 2 ended" in page.read_text())
        (first / "metrics.jsonl").write_text(json.dumps(step_line(7)) + "\n")
        self.until(job, lambda: "7/20" in page.read_text())
        (first / "metrics.jsonl").write_text(metrics_text(LOSSES))
        self.end_run(first)
        output, error = deadline.communicate(job, 60)
        self.assertEqual((job.returncode, error), (0, ""))
        self.assertTrue(output.endswith("\na: finished, step 20/20\nb: finished, step 20/20\n"), output)
        self.assertEqual(output.count("no such directory"), 1, output)
        self.assertIn("b: no such directory yet, waiting for it\n", output)
        self.assertNotIn("reload", page.read_text())
        self.assertEqual([path for path in os.listdir() if "partial" in path], [])

    def test_interrupt(self):
        job, page = self.start(self.unfinished())
        job.send_signal(signal.SIGINT)
        output, error = deadline.communicate(job, 60)
        self.assertEqual((job.returncode, error), (0, ""))
        self.assertTrue(output.endswith("\na: running, step 20/20\n"), output)
        self.assertIn("not watched any more", page.read_text())

    def test_when_a_run_has_ended(self):
        folder = self.unfinished()
        stop = {"finished": False, "stopped_by": "SIGTERM received"}
        self.end_run(folder, **stop)
        watched = watch.Watched(folder, "a")
        watched.poll()
        self.assertEqual((watched.ended, watched.state), (False, "running"), "it had stopped before and may continue")
        looked_at = watch.Watched(folder, "a", once=True)
        looked_at.poll()
        self.assertEqual((looked_at.ended, looked_at.state), (True, "stopped: SIGTERM received"))
        os.utime(folder / "summary.json", ns=(2 * 10**18, 2 * 10**18))
        watched.poll()
        self.assertEqual((watched.ended, watched.state), (True, "stopped: SIGTERM received"))
        os.utime(folder / "metrics.jsonl", ns=(2 * 10**18 + 1, 2 * 10**18 + 1))
        watched.poll()
        self.assertFalse(watched.ended, "it has been continued")
        self.end_run(folder)
        os.utime(folder / "summary.json", ns=(2 * 10**18 + 2, 2 * 10**18 + 2))
        again = watch.Watched(folder, "a")
        again.poll()
        self.assertEqual((again.ended, again.state), (True, "finished"))

    def test_decks_that_nest_deep(self):
        for text in DEEP_TOML[:2]:
            with self.subTest(text=text[:40]):
                (write_run(self.folder / f"run{len(text)}", {0: 6.0, 10: 5.0}) / "deck.toml").write_text(text)
                for script, options in (("watch.py", ["--once", "--html", "a.html"]), ("compare.py", ["-o", "a.html"])):
                    self.assert_refused(script, f"run{len(text)}", *options, names=["deck.toml: line 1: "],
                                        preexec_fn=limit_memory)

    def test_damage_is_one_line(self):
        folder = self.unfinished()
        for line in WRONG_JSON[:4]:
            (folder / "metrics.jsonl").write_text(line + "\n")
            self.assert_refused("watch.py", folder, "--once", names=["a/metrics.jsonl: line 1: "])
        (folder / "metrics.jsonl").write_text("")
        (folder / "deck.toml").write_text("[")
        self.assert_refused("watch.py", folder, "--once", names=["a/deck.toml"])
        Path("b").mkdir()
        for output in ("none/x.html", self.folder):
            self.assert_refused("watch.py", "b", "--once", "--html", output, names=[output])
        self.assert_refused("watch.py", "b", "--every", "nan", names=["--every"])


class Services(WatchTest):
    def test_tensorboard(self):
        for module, missing in (("torch__utils__tensorboard", {"tensorboardX": None}),
                                ("tensorboardX", {"torch": None})):
            with self.subTest(module=module):
                environment = self.write_modules(**{module: WRITER}, **missing)
                folder = write_run(Path(module), {0: 6.0, 2: 4.0})
                code, _, error = self.end("watch.py", folder, "--tensorboard", "events", env=environment)
                self.assertEqual((code, error), (0, ""))
                calls = self.calls()
                place = f"events/{module}"
                self.assertEqual((calls[0], calls[-1]), (["open", place, 0], ["close", place]))
                for call in ([place, "loss/training", 4.9, 1], [place, "loss/training", 4.8, 2],
                             [place, "loss/validation", 6.0, 0], [place, "loss/validation", 4.0, 2],
                             [place, "run/ms", 100.0, 1]):
                    self.assertEqual(calls.count(call), 1, call)
                self.assertFalse(Path("watch.html").exists())
                Path("calls.jsonl").unlink()
                for path in sorted(Path("modules").rglob("*.py")):
                    path.unlink()

    def test_wandb(self):
        environment = self.write_modules(wandb=WANDB)
        folder = write_run(Path("a"), {0: 6.0, 2: 4.0})
        Path("none").mkdir()
        code, _, error = self.end("watch.py", folder, "none", "--once", "--wandb", "project", env=environment)
        self.assertEqual((code, error), (0, ""))
        calls = self.calls()
        self.assertEqual((calls[0], calls[-1]), (["init", "project", "a", 2, "create_new"], ["finish", "a"]))
        self.assertEqual([(step, values["loss/validation"]) for _, values, step in calls[1:-1]
                          if "loss/validation" in values], [(0, 6.0), (2, 4.0)])
        self.assertEqual([(step, values["loss/training"]) for _, values, step in calls[1:-1]
                          if "loss/training" in values], [(1, 4.9), (2, 4.8)])
        self.assert_refused("watch.py", folder, "--once", "--wandb", "broken", env=environment, code=1,
                            names=["wandb: no key in sight"])

    def test_steps_that_are_repeated_are_not_sent_again(self):
        sent = []

        class Module:
            def init(self, **_):
                return self

            def log(self, values, step):
                sent.append((step, values))

        sink = watch.WeightsAndBiases.__new__(watch.WeightsAndBiases)
        sink.project, sink.runs, sink.sent, sink.module = "p", {}, {}, Module()
        watched = watch.Watched(self.unfinished(), "a")
        begun = [step_line(1), step_line(2)]
        for lines in (begun, [*begun, validation_line(2, 4.0)], [step_line(1, ms=9.0), step_line(2), step_line(3)]):
            (watched.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            watched.poll()
            sink.update([watched], live=True)
        self.assertEqual([step for step, _ in sent], [1, 2, 2, 2, 3])
        self.assertEqual(sent[2][1]["loss/validation"], 4.0, "it came after its step")

    def test_modules_that_are_missing(self):
        environment = self.write_modules(torch=None, tensorboardX=None, wandb=None)
        Path("a").mkdir()
        self.assert_refused("watch.py", "a", "--once", "--tensorboard", "events", env=environment,
                            names=["neither torch.utils.tensorboard nor tensorboardX"])
        self.assert_refused("watch.py", "a", "--once", "--wandb", "project", env=environment,
                            names=["no module wandb", "pip install wandb"])


if __name__ == "__main__":
    small_run.main()
