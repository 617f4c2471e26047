"""srun without PMIx, and terminals of Slurm's: programs that do not find each other."""

import shlex
import shutil
import subprocess

import cluster
from slurm_test import SlurmTest, main, small_run


class Launchers(SlurmTest):
    def test_srun_without_pmix(self):
        output = self.slurm.command("srun", "--mpi=none", "-n", "3", small_run.PROGRAM, "train", "deck.toml",
                                    folder=self.folder)
        said = [line for line in output.splitlines() if line.startswith("nanorun: ")]
        self.assertEqual(len(said), 3, output)
        for line in said:
            self.assertRegex(line, r"^nanorun: SLURM_STEP_NUM_TASKS = 3: .* srun --mpi=pmix ")
        self.assertIn("exit code 2", output)
        self.assertFalse((self.folder / "outputs").exists())

    def test_programs_in_a_terminal(self):
        """One of the step's four tasks has the terminal; who types there starts a program alone."""
        if shutil.which("script") is None:
            self.skipTest("needs script, for a terminal")
        shard = f"{small_run.PROGRAM} shard other.h5 00.txt --text; echo code $?"
        step = shlex.join([cluster.find("srun"), "--mpi=none", "-n", "4", "--pty", "sh", "-c", shard])
        done = subprocess.run(["script", "-qec", step, "/dev/null"], cwd=self.folder, env=self.slurm.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=cluster.TIMEOUT, check=False)
        self.assertIn("code 0", done.stdout)
        self.assertTrue((self.folder / "other.h5").exists())

    def test_srun_typed_in_a_terminal(self):
        """Its programs inherit the variables of the shell, and are refused all the same."""
        if shutil.which("script") is None:
            self.skipTest("needs script, for a terminal")
        srun = cluster.find("srun")
        typed = shlex.join([srun, "--overlap", "--mpi=none", "-n", "3", str(small_run.PROGRAM), "train", "deck.toml"])
        shell = shlex.join([srun, "--mpi=none", "-n", "4", "--pty", "sh", "-c", f"[ -n \"$SLURM_PTY_PORT\" ] && {typed}"])
        done = subprocess.run(["script", "-qec", shell, "/dev/null"], cwd=self.folder, env=self.slurm.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=cluster.TIMEOUT, check=False)
        self.assertEqual(done.stdout.count("nanorun: SLURM_STEP_NUM_TASKS = 3: "), 3, done.stdout)
        self.assertFalse((self.folder / "outputs").exists())


if __name__ == "__main__":
    main()
