"""What the trace says of ranks on several nodes, which one machine emulates (comm.ranks_per_node)."""

import json

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


if __name__ == "__main__":
    small_run.main()
