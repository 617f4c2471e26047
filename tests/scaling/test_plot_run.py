"""The picture of a run: what its words say, and where they lie."""

import json
from pathlib import Path

import numpy as np
from support import PHASES, ScalingTest, small_run, write_groups, write_trace

import plot_run
import trace_file

NOTE = "weighted sum over several targets in stages 0, 2"


class Losses(ScalingTest):
    def trace(self, steps, validations):
        write_trace("trace.h5", np.full((steps, 1, len(PHASES)), 0.1), 1024)
        trace = trace_file.read_trace("trace.h5")
        trace["validation_step"] = np.array(list(validations))
        trace["validation_loss"] = np.array(list(validations.values()))
        return trace

    def test_words_lie_within_the_axes(self):
        import matplotlib.pyplot as plt

        for steps, validations in ((1, {1: 5.0}), (6, {0: 6.0, 6: 12345.678}), (20, {20: 4.8116}), (3000, {3000: 1e29}),
                                   (50, {10: 3.0})):
            for against in plot_run.AXES:
                figure = plot_run.new_figure(6.6)
                axes = figure.add_gridspec(2, 2, width_ratios=[1.1, 1]).subplots()[0, 0]
                plot_run.draw_losses(axes, self.trace(steps, validations), against)
                figure.canvas.draw()
                frame = axes.get_window_extent()
                label, = axes.texts
                box = label.get_window_extent()
                with self.subTest(steps=steps, against=against, label=label.get_text()):
                    self.assertTrue(frame.x0 <= box.x0 and box.x1 <= frame.x1, (frame, box))
                plt.close(figure)

    def test_a_weighted_sum_is_named(self):
        """By the deck of the run, where that is there."""
        import matplotlib.pyplot as plt

        self.assertEqual(plot_run.note_of(Path(".").resolve()), "", "a deck without stages")
        Path("run").mkdir()
        self.assertEqual(plot_run.note_of(Path("run")), "")
        stages = ("targets = [1, 0.5]", "targets = [1]\ntargets_end = []\nprefix = 0\nprefix_end = -1", "prefix = 0.25")
        Path("run/deck.toml").write_text("".join(f"[[stage]]\n{stage}\n" for stage in stages))
        self.assertEqual(plot_run.note_of(Path("run")), NOTE)
        for note, expected in ((NOTE, f"training, each step:\n{NOTE}"), ("", "training, each step")):
            figure, axes = plt.subplots()
            plot_run.draw_losses(axes, self.trace(20, {20: 4.0}), "steps", note)
            self.assertEqual(axes.get_legend_handles_labels()[1], [expected, "validation"])
            plt.close(figure)

    def test_long_names_are_wrapped(self):
        lines = plot_run.wrapped("x$" * 200, 105).splitlines()
        self.assertEqual([len(line.replace("\\$", "$")) for line in lines], [105, 105, 105, 85])


class Levels(ScalingTest):
    def bars(self, between):
        seconds = np.full((4, 2, len(PHASES)), 0.1)
        write_trace("trace.h5", seconds, 1024, np.full((4, 2), 0.5), between)
        trace = trace_file.read_trace("trace.h5")
        plot_run.draw(Path(".").resolve(), trace, Path("run.png"))
        return plot_run.bars_of(trace, plot_run.colours(trace["phases"]))

    def test_collectives_have_bars_where_there_are_several_nodes(self):
        names, colours, mean, low, high = self.bars(np.array([[0.1, 0.3]] * 4))
        self.assertEqual(names, [*PHASES, "collectives inside nodes", "collectives between nodes"])
        self.assertEqual(len({str(colour) for colour in colours[-2:]} | {str(colour) for colour in colours[:-2]}),
                         len(names))
        np.testing.assert_allclose([values[-2:] for values in (mean, low, high)], [[0.3, 0.2], [0.2, 0.1], [0.4, 0.3]])

    def test_one_node_and_earlier_programs_have_none(self):
        for between in (np.zeros((4, 2)), None):
            names, _, *values = self.bars(between)
            self.assertEqual(names, list(PHASES))
            np.testing.assert_allclose(values, np.full((3, len(PHASES)), 0.1))

    def test_whiskers_over_groups_reach_as_far_as_over_ranks(self):
        draw = np.random.default_rng(0)
        seconds = np.broadcast_to(draw.uniform(0.1, 0.2, (1, 8, len(PHASES))), (4, 8, len(PHASES)))
        communication, between = (np.broadcast_to(draw.uniform(*range_, (1, 8)), (4, 8))
                                  for range_ in ((0.5, 0.6), (0.1, 0.2)))
        bars = []
        for write, more in ((write_trace, ()), (write_groups, (4,))):
            write("trace.h5", seconds, 1024, communication, between, *more)
            trace = trace_file.read_trace("trace.h5")
            plot_run.draw(Path(".").resolve(), trace, Path("run.png"))
            bars.append(plot_run.bars_of(trace, plot_run.colours(trace["phases"])))
        inside = list(bars[0][0]).index("collectives inside nodes")  # groups have no quantiles of it
        self.assertEqual(bars[0][0], bars[1][0])
        for of_ranks, of_groups in zip(bars[0][2:], bars[1][2:]):
            np.testing.assert_allclose(np.delete(of_groups, inside), np.delete(of_ranks, inside), rtol=1e-6)

    def test_a_collective_between_nodes_has_a_colour_of_its_own(self):
        step = {"ph": "X", "name": "step 1", "cat": "step", "pid": 0, "tid": 0, "ts": 0, "dur": 2000}
        event = step | {"name": "gather_weights", "cat": "transfer", "tid": 1}
        events = [step, *(event | {"args": {"step": 1, "level": level}} for level in ("between", "inside"))]
        Path("trace.json").write_text(json.dumps({"traceEvents": events}))
        read = plot_run.read_step(Path("trace.json"), 1, 0)
        names = [span.name for span in read.spans]
        self.assertEqual(names, ["gather_weights between nodes", "gather_weights"])
        self.assertNotEqual(*map(plot_run.colours(names).get, names))
        plot_run.draw_step("", read, Path("step.png"))


if __name__ == "__main__":
    small_run.main()
