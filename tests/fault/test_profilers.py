"""What tools of Kokkos see of a run: steps, phases and layers."""

import os

from harness import FaultTest, small_run


class Profilers(FaultTest):
    def test_ranges_of_steps_phases_and_layers(self):
        out = self.folder / "ranges"
        tool = os.environ["NANORUN_PROFILER"]
        job = self.train(None, "train.steps=2", "model.layers=2", wrapper=[
            "env", f"KOKKOS_PROFILE_LIBRARY={tool}", f"KOKKOS_TOOLS_LIBS={tool}", f"PROFILER_OUT={out}"])
        self.assertTrue(out.exists(), job.text())
        lines = out.read_text().splitlines()
        self.assertEqual(lines[-1], "0 open")
        for step in ("step 0", "step 1"):
            of_step = [line for line in lines if line.startswith(f"/{step}/")]
            for path in ("forward/layer 0", "forward/layer 1", "head", "backward/layer 1", "backward/layer 0", "adam"):
                self.assertIn(f"/{step}/{path}", of_step)
            self.assertLess(of_step.index(f"/{step}/backward/layer 1"), of_step.index(f"/{step}/backward/layer 0"))


if __name__ == "__main__":
    small_run.main()
