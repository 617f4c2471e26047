"""Launchers whose ranks this MPI does not join, and an MPI without threads."""

import os
import shutil
from unittest import mock

from harness import FaultTest, Job, small_run


class Launchers(FaultTest):
    def refuse(self, ranks, launcher, variable, *arguments):
        """Every program says that it would be alone, and ends before it touches anything."""
        files = sorted(self.folder.rglob("*"))
        job = Job(self.folder, None, arguments, wrapper=launcher)
        self.assertEqual(job.wait(), 2, job.text())
        said = [line for line in job.messages() if line.startswith("nanorun: ")]
        self.assertEqual(len(said), ranks, job.text())
        for line in said:
            self.assertRegex(line, f"^nanorun: {variable} = {ranks}: a launcher has started several ranks, but .* one alone")
        self.assertEqual(sorted(self.folder.rglob("*")), files)

    def test_mpich(self):
        hydra = shutil.which("mpiexec.hydra")
        if hydra is None:
            self.skipTest("needs MPICH's mpiexec.hydra")
        self.refuse(3, [hydra, "-launcher", "fork", "-n", "3"], "PMI_SIZE", "train", "deck.toml")

    def test_every_command_that_writes(self):
        self.train(None, "stop.step=1", code=75)
        checkpoint = self.checkpoint(1)
        launchers = (("PMI_SIZE", 4), ("MPI_LOCALNRANKS", 2), ("SLURM_STEP_NUM_TASKS", 3), ("OMPI_COMM_WORLD_SIZE", 2))
        commands = (["train", "deck.toml"], ["train", "deck.toml", "--dry-run"], ["export", checkpoint, "model"],
                    ["shard", "other.h5", "00.txt", "--text"], ["import", "model", "other.h5"])
        for number, arguments in enumerate(commands):
            variable, ranks = launchers[number % len(launchers)]
            with self.subTest(arguments=arguments):
                with mock.patch.dict(os.environ, {variable: str(ranks)}):
                    job = Job(self.folder, None, arguments)
                    self.assertEqual(job.wait(), 2, job.text())
                    self.assert_refused(job, f"{variable} = {ranks}: a launcher has started several ranks")
        for arguments in (["keys"], ["info"], ["verify", checkpoint], ["eval", checkpoint, "--data", "data.h5"]):
            with self.subTest(arguments=arguments), mock.patch.dict(os.environ, PMI_SIZE="4"):
                job = Job(self.folder, None, arguments)
                self.assertEqual(job.wait(), 0, job.text())

    def test_mpi_without_threads(self):
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", "FAULT_THREADS=none"]
        for ranks in (None, 2):
            job = self.train(ranks, wrapper=wrapper, code=2)
            self.assert_refused(job, " provides MPI_THREAD_SINGLE alone, and nanorun has threads: ")
        self.assertFalse(self.run_folder().exists())

    def test_own_launcher_within_another(self):
        with mock.patch.dict(os.environ, PMI_SIZE="4", MPI_LOCALNRANKS="4", SLURM_STEP_NUM_TASKS="4"):
            for ranks in (1, 2):
                self.train(ranks, f"run.name=of_{ranks}", "train.steps=1")

    def test_terminal_of_slurm(self):
        """Who types there starts a program alone; one that a launcher starts has the variables, but no terminal."""
        words = ["shard", "other.h5", "00.txt", "--text"]
        typed = ["setsid", "--ctty", "sh", "-c", "\"$@\"; exit $?", "sh"]
        cases = ((["setsid"], {}, 2), (typed, {"SLURM_PROCID": "1"}, 2), (typed, {"MPI_LOCALNRANKS": "4"}, 2),
                 (typed, {"SLURM_PROCID": "0"}, 0))
        for wrapper, more, code in cases:
            with self.subTest(wrapper=wrapper, more=more), mock.patch.dict(
                    os.environ, SLURM_STEP_NUM_TASKS="4", SLURM_PTY_PORT="40000", **more):
                terminal, end = os.openpty()
                job = Job(self.folder, None, words, wrapper=wrapper, stdin=end)
                os.close(end)
                self.assertEqual(job.wait(), code, job.text())
                os.close(terminal)


if __name__ == "__main__":
    small_run.main()
