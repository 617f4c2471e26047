"""What tools of Kokkos see of a run: steps, phases and layers."""

import os
import re
from pathlib import Path

from harness import FaultTest, small_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "profiling.md"


def shown():
    """The variables that the page sets for each tool: name and value in one word."""
    lines = re.findall(r"^    export (KOKKOS_.*)$", PAGE.read_text(), re.MULTILINE)
    return [re.findall(r"KOKKOS_\w+=\S+", line) for line in lines]


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

    def test_the_page_s_variables_load_a_tool(self):
        """Whichever of them this version of Kokkos reads."""
        self.assertEqual(len(shown()), 2)  # two tools
        for at, variables in enumerate(shown()):
            out = self.folder / f"ranges{at}"
            own = [f"{variable.partition('=')[0]}={os.environ['NANORUN_PROFILER']}" for variable in variables]
            job = self.train(None, f"run.name=tool{at}", "train.steps=1", wrapper=["env", *own, f"PROFILER_OUT={out}"])
            self.assertTrue(out.exists(), f"{variables}\n{job.text()}")


if __name__ == "__main__":
    small_run.main()
