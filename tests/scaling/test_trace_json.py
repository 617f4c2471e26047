"""trace.json of a run on two ranks, against the trace event format of Chrome."""

import copy
import json
import math
import subprocess
import sys

from support import TOOLS, ScalingTest, small_run

import deadline
import plot_run

RANKS, STEPS, CHOSEN = 2, 4, [1, 3]
COLLECTIVES = ("reduce_gradients", "gather_weights")
ROUNDING = 2e-3  # microseconds: the file holds three decimals


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_event(event):
    """What the format asks of a complete event and of metadata; other kinds are not written."""
    assert event["ph"] in ("X", "M"), event
    assert isinstance(event["name"], str) and event["name"], event
    assert isinstance(event["args"], dict), event
    for key in ("pid", "tid"):
        assert type(event[key]) is int and event[key] >= 0, event
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name"), event
        assert isinstance(event["args"]["name"], str), event
        return
    assert isinstance(event["cat"], str), event
    assert is_number(event["ts"]) and event["ts"] >= 0, event
    assert is_number(event["dur"]) and event["dur"] >= 0, event


def check_nesting(events):
    """Any two events of a rank, on whichever track, follow one another or lie one in the other."""
    reach = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while reach and reach[-1] <= begin + ROUNDING:
            reach.pop()
        assert not reach or end <= reach[-1] + ROUNDING, event
        reach.append(end)


def check_trace(trace):
    assert isinstance(trace, dict) and isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    for event in events:
        check_event(event)
    complete = [e for e in events if e["ph"] == "X"]
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    for event in complete:
        assert event["tid"] == {"transfer": 1, "upload": 2}.get(event["cat"], 0), event
        assert ("thread_name", event["pid"], event["tid"]) in named, event
    for rank in {e["pid"] for e in complete}:
        assert named["process_name", rank, 0] == f"rank {rank}"
        assert named["thread_name", rank, 0] == "compute"
        assert named["thread_name", rank, 1] == "collectives"
        assert named["thread_name", rank, 2] == "upload"
        check_nesting([e for e in complete if e["pid"] == rank])


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


class TraceJson(ScalingTest):
    trace = seconds = None  # from one run, which all tests look at

    def setUp(self):
        super().setUp()
        if TraceJson.trace is None:
            TraceJson.trace, TraceJson.seconds = self.train()
        self.complete = [e for e in self.trace["traceEvents"] if e["ph"] == "X"]

    def train(self):
        """trace.json and the times of trace.h5."""
        import h5py

        small_run.write_data(self.folder)
        job = subprocess.run(
            [small_run.MPIRUN, "-n", str(RANKS), small_run.PROGRAM, "train", "deck.toml", f"train.steps={STEPS}",
             "train.sequences=4", f"trace.json_steps={CHOSEN}", "validation.tokens=0", "checkpoint.at_end=false"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(job.returncode, 0, job.stdout)
        text = (self.folder / "outputs/run/trace.json").read_text()
        with h5py.File("outputs/run/trace.h5") as file:
            return json.loads(text, parse_constant=no_constant), file["seconds"][...]

    def test_format(self):
        check_trace(self.trace)
        self.assertEqual({e["pid"] for e in self.complete}, set(range(RANKS)))

    def test_steps_hold_their_phases(self):
        for rank in range(RANKS):
            mine = [e for e in self.complete if e["pid"] == rank]
            steps = {e["args"]["step"]: e for e in mine if e["cat"] == "step"}
            self.assertEqual({n: e["name"] for n, e in steps.items()}, {n: f"step {n}" for n in CHOSEN})
            for event in mine:
                step = steps[event["args"]["step"]]
                self.assertGreaterEqual(event["ts"], step["ts"] - ROUNDING)
                self.assertLessEqual(event["ts"] + event["dur"], step["ts"] + step["dur"] + ROUNDING)
            names = [e["name"] for e in mine if e["cat"] == "phase" and e["args"]["step"] == CHOSEN[0]]
            for name, count in (("forward", 2), ("backward", 2), ("sync", 1)):
                self.assertEqual(names.count(name), count, names)
            self.assertLessEqual({"data", "forward", "head", "backward", "muon", *COLLECTIVES}, set(names))
            transfers = [e["name"] for e in mine if e["cat"] == "transfer" and e["args"]["step"] == CHOSEN[0]]
            self.assertEqual(set(transfers), set(COLLECTIVES))
            self.assertEqual(*map(transfers.count, COLLECTIVES))
            # A step uploads its second sequence and the first one of the step after it.
            for number, count in ((CHOSEN[0], 2), (CHOSEN[1], 1)):
                uploads = [e["name"] for e in mine if e["cat"] == "upload" and e["args"]["step"] == number]
                self.assertEqual(uploads, ["data"] * count)

    def test_collectives_overlap_in_time_across_ranks(self):
        """The ranks count from one moment: none can leave the reduction of a step before all have come."""
        for step in CHOSEN:
            sync = [e for e in self.complete if e["name"] == "sync" and e["args"]["step"] == step]
            self.assertEqual(len(sync), RANKS)
            slack = 5e4  # microseconds between the ranks' departures from the barrier at which the clocks start
            self.assertLess(max(e["ts"] for e in sync), min(e["ts"] + e["dur"] for e in sync) + slack)

    def test_lengths_are_those_of_the_trace_file(self):
        for event in self.complete:
            if event["cat"] == "step":
                whole = self.seconds[event["args"]["step"], event["pid"]].sum()
                self.assertAlmostEqual(event["dur"] * 1e-6, whole, delta=1e-8)

    def test_picture_of_a_step(self):
        """It shows every phase and transfer of that rank and step, where the trace has it, and no others."""
        path, picture = self.folder / "trace.json", self.folder / "step.png"
        path.write_text(json.dumps(self.trace))
        for number, rank in ((CHOSEN[0], 0), (CHOSEN[1], 1)):
            step = plot_run.read_step(path, number, rank)
            mine = [e for e in self.complete if e["pid"] == rank and e["args"]["step"] == number]
            whole = next(e for e in mine if e["cat"] == "step")
            self.assertEqual(step.length, whole["dur"] / 1e3)
            self.assertEqual(step.tracks, {0: "compute", 1: "collectives", 2: "upload"})
            expected = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in mine if e["cat"] != "step" and e["dur"] > 0]
            self.assertEqual(len(step.spans), len(expected))
            found = sorted((s.name, s.track, s.begin, s.end - s.begin) for s in step.spans)
            for (name, track, begin, length), (*event, ts, dur) in zip(found, sorted(expected)):
                self.assertEqual([name, track], event)
                self.assertAlmostEqual(begin, (ts - whole["ts"]) / 1e3, delta=1e-5)
                self.assertAlmostEqual(length, dur / 1e3, delta=1e-5)
        job = deadline.run([sys.executable, "-B", TOOLS / "plot_run.py", self.folder, "--step", "3", "--rank", "1"],
                           text=True, capture_output=True, timeout=60)
        self.assertEqual((job.returncode, job.stdout, job.stderr), (0, f"{picture}\n", ""))
        self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))

    def test_picture_has_a_row_for_every_stream(self):
        import matplotlib.pyplot as plt

        path = self.folder / "trace.json"
        path.write_text(json.dumps(self.trace))
        plot_run.draw_step("", plot_run.read_step(path, CHOSEN[0], 0), self.folder / "step.png")
        axes = plt.gcf().axes[0]
        self.assertEqual([label.get_text() for label in axes.get_yticklabels()], ["compute", "collectives", "upload"])
        rows = [round(bar.get_y() + bar.get_height() / 2, 3) for bar in axes.patches]
        self.assertEqual(set(rows), {0, 1, 2})
        self.assertEqual(rows.count(2), 2)

    def test_picture_shows_what_is_narrower_than_a_pixel(self):
        import matplotlib.pyplot as plt

        picture = self.folder / "step.png"
        spans = [plot_run.Span("forward", 0, 0, 100), plot_run.Span("data", 2, 50, 50.01)]
        plot_run.draw_step("", plot_run.Step(100, spans, {0: "compute", 2: "upload"}), picture)
        x, y = plt.gcf().axes[0].transData.transform((50, 1))
        pixels = plt.imread(picture)
        row = pixels[round(len(pixels) - y)]
        self.assertGreater(row[round(x) - 40].min(), 0.9)
        self.assertLess(row[round(x) - 2:round(x) + 3].min(), 0.6)

    def test_the_check_finds_faults(self):
        def damaged(change):
            trace = copy.deepcopy(self.trace)
            change(trace, [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "forward"])
            return trace

        faults = [
            lambda trace, found: found[0].update(dur=-1.0),
            lambda trace, found: found[0].update(ts=float("inf")),
            lambda trace, found: found[0].update(tid=1),
            lambda trace, found: found[0].update(ph="B"),
            lambda trace, found: found[0].update(dur=found[0]["dur"] + 10),  # runs into the next phase
            lambda trace, found: found[0].pop("pid"),
            lambda trace, found: trace["traceEvents"].pop(0),  # the name of rank 0
            lambda trace, found: trace.pop("displayTimeUnit"),
        ]
        for fault in faults:
            with self.assertRaises((AssertionError, KeyError)):
                check_trace(damaged(fault))


if __name__ == "__main__":
    small_run.main()
