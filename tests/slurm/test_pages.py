"""README.md and docs/slurm.md work as written: their commands run in their order, in one shell for each page, beside a
private Slurm of two nodes that believes in eight H100 in each.

What needs GPUs has a stand-in. build/h100 runs the program of this build, by a script like that of a container, and the
decks of the records are small. SKIPPED and SMALLER hold what does not run as written.
"""

import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

from slurm_test import REPOSITORY, SlurmTest, main, small_run

sys.path.append(str(REPOSITORY / "tests" / "docs"))
import deadline  # noqa: E402
from pages import blocks  # noqa: E402

SECONDS = 900  # of an idle machine, for the commands of a page

# Commands that do not run, and why.
SKIPPED = {
    "jobscripts/test.sh": "runs all tests, this one among them",
    "cmake --preset h100 && cmake --build --preset h100": "needs CUDA, and compiles long",
    "jobscripts/tools/get_fineweb.py --program build/h100/bin/nanorun": "downloads 1.8 GB",
    "jobscripts/record.sh inputs/record89.toml --seeds 10": "downloads the tokens, and trains ten times on GPUs",
    "mkdir -p outputs && lfs setstripe -c 8 -S 16M outputs": "needs Lustre",
}
# Commands that run in a smaller form, which the page has too.
SMALLER = {"jobscripts/quickstart.sh": "jobscripts/quickstart.sh train.steps=20"}
# Commands for many jobs, which the test of the label `long` runs alone.
ARRAYS = ("sbatch --array=", "jobscripts/tools/ensemble.py ")
# What the quickstart would install and compile is there.
STUBS = ("apt-get", "cmake")
# Waits for the jobs of the commands before it.
WAIT = "while [[ -n $(squeue --noheader) ]]; do sleep 0.3; done"


def commands_of(page):
    """The commands of the blocks of a page, without comments. A command may go over lines."""
    found = []
    for kind, text in blocks(page.read_text()):
        if kind is None and not re.match(r"deck = |step ", text):
            found += [re.sub(r"\s+# .*", "", command).strip() for command in re.split(r"(?<!\\)\n", text)]
    return [command for command in found if command]


class Pages(SlurmTest):
    cluster_options = {"nodes": 2, "cpus": 8, "gpus": "h100:8"}
    readme, slurm_page = REPOSITORY / "README.md", REPOSITORY / "docs" / "slurm.md"

    def setUp(self):
        super().setUp()
        stubs = self.folder / "stubs"
        stubs.mkdir()
        for name in STUBS:
            self.write_script(stubs / name, "")
        mpirun = shutil.which(small_run.MPIRUN)
        del self.slurm.environment["NANORUN_BUILD"]
        # There may be fewer cores than ranks, and the test may run as root. Ranks of two nodes would else meet in the
        # shared memory of the one machine.
        self.slurm.environment |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,tcp"}
        self.slurm.environment["PATH"] = f"{stubs}:{Path(mpirun).parent}:{self.slurm.environment['PATH']}"

    def write_script(self, path, text):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def prepare(self, folder):
        """What the pages have of a clone and its builds."""
        super().prepare(folder)
        (folder / "jobscripts").unlink()
        for name in ("jobscripts", "inputs"):
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "CMakeLists.txt").touch()
        for build in ("cpu", "h100"):
            (folder / "build" / build / "bin").mkdir(parents=True)
        (folder / "build/cpu/bin/nanorun").symlink_to(small_run.PROGRAM)
        self.write_script(folder / "build/h100/bin/nanorun",
                          f'[ "$1" = info ] && echo "cuda         13.0"\nexec "{small_run.PROGRAM}" "$@"')
        small = small_run.DECK.replace("sequences = 4", "sequences = 8")
        self.assertNotEqual(small, small_run.DECK)
        (folder / "inputs/record21.toml").write_text(small)

    def check_exceptions(self):
        """Those that no page shows any more would hide nothing."""
        shown = commands_of(self.readme) + commands_of(self.slurm_page)
        self.assertEqual((SKIPPED.keys() | SMALLER.keys()) - set(shown), set())
        for command in SMALLER.values():
            self.assertIn(f"`{command}`", self.readme.read_text())

    def run_page(self, page, leave_out=(), only=None):
        """Runs the commands of a page and waits for their jobs, each of which must end well. Those that begin with words
        of `leave_out` do not run; with `only` none run but these and those that set variables. Returns what was
        printed."""
        self.check_exceptions()
        script = []
        for command in commands_of(page):
            if command in SKIPPED or command.startswith(leave_out):
                continue
            if only and not command.startswith(("export ", "source ", *only)):
                continue
            command = SMALLER.get(command, command)
            script += [f"printf '%s\\n' {shlex.quote(f'$ {command}')}", command]
            script += [WAIT] if command.startswith("sbatch ") else []
        # What a model writes after a few steps may be no UTF-8.
        done = deadline.run(["bash", "-e", "-c", "\n".join(script)], SECONDS, cwd=self.folder, text=True,
                            errors="replace", env=self.slurm.environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{self.output()}")
        jobs = re.findall(r"^Submitted batch job (\d+)$", done.stdout, re.MULTILINE)
        self.assertEqual(len(jobs), sum(line.startswith("sbatch ") for line in script))
        for job in jobs:
            states = re.findall(r"JobState=(\S+)", self.slurm.command("scontrol", "show", "job", job))
            self.assertEqual(set(states), {"COMPLETED"}, f"{done.stdout}\n{self.output()}")
        self.jobs = [self.slurm.command("scontrol", "show", "job", "-o", job) for job in jobs]
        return done.stdout

    def assert_trained(self, name, ranks):
        """Twelve steps, as the small deck says."""
        summary = json.loads((self.folder / "outputs" / name / "summary.json").read_text())
        self.assertEqual((summary["steps"], summary["finished"], summary["ranks"]), (12, True, ranks))

    def test_readme(self):
        said = self.run_page(self.readme)
        self.assertIn("The model writes:", said)
        for name in re.findall(r"^  (\S+) {2,}\S", said.partition("Everything lies in")[2], re.MULTILINE):
            self.assertTrue((self.folder / "outputs/quickstart" / name).exists(), name)
        self.assertIn(f"site.sh: jobs run {self.folder}/build/h100/bin/nanorun, partition main, GPUs of a node: "
                      "h100:8, srun --mpi=pmix\n", said)
        self.assert_trained("first", ranks=8)
        self.assertRegex(self.jobs[0], r"NumNodes=1 .*TresPerNode=gres:gpu:8\b")

    def test_slurm(self):
        """All but the arrays of jobs."""
        self.run_page(self.slurm_page, leave_out=ARRAYS)
        for name in ("first", "second"):
            self.assert_trained(name, ranks=8)
        for job, gpus in zip(self.jobs, ("4", "h100:8"), strict=True):  # the latter is what site.sh has found
            self.assertRegex(job, rf"NumNodes=2 .*TresPerNode=gres:gpu:{gpus}\b")

    def test_slurm_arrays(self):
        self.run_page(self.slurm_page, only=(*ARRAYS, "jobscripts/tools/sweep.py "))
        for task in range(1, 21):
            self.assert_trained(f"sweep_{task}", ranks=8)
        self.assertIn("Comparison of 9 runs", (self.folder / "outputs/muon_lr.html").read_text())
        shown = next(text for _, text in blocks(self.slurm_page.read_text()) if text.startswith("deck = "))
        self.assertEqual(tomllib.loads(shown), tomllib.loads((REPOSITORY / "inputs/sweeps/muon_lr.toml").read_text()))


if __name__ == "__main__":
    main()
