"""What the trace says of ranks on several nodes, which one machine emulates (comm.ranks_per_node)."""

import json
import subprocess
import sys
from pathlib import Path

from harness import FaultTest, small_run

# 16 sequences of 128 tokens.
SMALL = ("model.layers=2", "window.last=128", "train.sequences=16", "train.length=128", "validation.tokens=0")


class Traces(FaultTest):
    def setUp(self):
        super().setUp()
        try:
            import h5py  # noqa: F401
        except ImportError:
            self.skipTest("needs h5py")

    def datasets(self, folder, *names):
        import h5py

        with h5py.File(folder / "trace.h5") as trace:
            return [trace[name][...] for name in names]

    def transfers(self, folder):
        """(rank, level, seconds) of each collective in trace.json."""
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        return [(event["pid"], event["args"]["level"], event["dur"] / 1e6)
                for event in events if event.get("cat") == "transfer"]

    def test_time_of_each_level(self):
        for layout, levels in ((2, {"inside", "between"}), (0, {"inside"}), (1, {"between"})):
            with self.subTest(ranks_per_node=layout):
                job = self.train(4, *SMALL, "train.steps=3", "trace.json_steps=[0,1,2]",
                                 f"comm.ranks_per_node={layout}", f"run.name=nodes{layout}")
                self.check_levels(job, self.folder / "outputs" / f"nodes{layout}", levels)

    def check_levels(self, job, folder, levels):
        communication, between = self.datasets(folder, "communication", "communication_between")
        self.assertEqual(between.shape, (3, 4))
        transfers = self.transfers(folder)
        self.assertEqual({level for _, level, _ in transfers}, levels)
        for rank in range(4):
            for level, values in (("inside", communication - between), ("between", between)):
                shown = sum(seconds for pid, at, seconds in transfers if (pid, at) == (rank, level))
                self.assertEqual(shown > 0, level in levels)
                self.assertAlmostEqual(shown, values[:, rank].sum(), places=5)
        told = json.loads((folder / "summary.json").read_text())["communication"]
        self.assertAlmostEqual(told["avg_seconds"], communication.sum() / 4, places=5)
        self.assertAlmostEqual(told["between_seconds"], between.sum() / 4, places=5)
        self.assertEqual("  between nodes  " in job.text(), "between" in levels)


    def test_each_start_keeps_the_timelines_of_earlier_ones(self):
        for stop in (2, 4, 5):
            self.train(1, "train.steps=6", f"stop.step={stop}", "trace.json_steps=[1,3]", code=75)
        texts = [json.loads((self.run_folder() / name).read_text()) for name in ("trace.json.1", "trace.json")]
        self.assertEqual([{event["args"]["step"] for event in text["traceEvents"] if "step" in event.get("args", {})}
                          for text in texts], [{1}, {3}])
        self.assertFalse((self.run_folder() / "trace.json.2").exists(), "no step of the last start was chosen")

    def test_quantiles_of_sixteen_ranks(self):
        """Nodes of 5 ranks, the last of one; then 8 ranks with a column each, then 16 again."""
        for ranks, steps, kept in ((16, 2, "quantiles"), (8, 4, "all"), (16, 6, "quantiles")):
            job = self.train(ranks, *SMALL, "train.steps=6", "comm.ranks_per_node=5", f"trace.ranks={kept}",
                             "trace.flush_every=2", *([] if steps == 6 else [f"stop.step={steps}"]),
                             code=0 if steps == 6 else 75)
            self.assertEqual(job.messages(), [])
        folder = self.run_folder()
        ranks, members, seconds, quantiles, slowest = self.datasets(folder, "ranks", "group_ranks", "seconds",
                                                                    "quantiles", "slowest")
        self.assertEqual(list(ranks), [16, 16, 8, 8, 16, 16])
        self.assertEqual(seconds.shape[1], 8)
        for step in range(6):
            grouped = step not in (2, 3)
            self.assertEqual(members[step].tolist(), [5, 5, 5, 1] if grouped else [0] * 4)
            columns = seconds[step].sum(axis=1) > 0
            self.assertEqual(columns.tolist(), [i < (4 if grouped else 8) for i in range(8)])
            for group in range(4 if grouped else 0):
                mean, (least, most) = seconds[step, group], quantiles[step, group, :13, ::4].T
                self.assertTrue((least <= mean * 1.00001).all() and (mean <= most * 1.00001).all())
                self.assertTrue(set(slowest[step, group]) <= set(range(5 * group, min(5 * group + 5, 16))))
        self.check_tools(folder)

    def check_tools(self, folder):
        """The Python tools read and draw it."""
        tools = Path(__file__).resolve().parents[2] / "jobscripts" / "tools"
        job = subprocess.run([sys.executable, "-B", tools / "plot_run.py", folder], text=True, capture_output=True)
        if "matplotlib" in job.stderr:
            return
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertTrue((folder / "run.png").is_file())


if __name__ == "__main__":
    small_run.main()
