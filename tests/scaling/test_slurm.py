"""A study whose runs are jobs of a real Slurm, a private one."""

import os
import re
import sys

from support import ROOT, ScalingTest, small_run

sys.path.append(str(ROOT / "tests" / "slurm"))
import cluster  # noqa: E402

NOT_RUN = 77


class Study(ScalingTest):
    nodes = 1

    def setUp(self):
        super().setUp()
        self.slurm = cluster.Cluster(self.nodes)
        self.addCleanup(self.slurm.stop)
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        os.environ.update(self.slurm.environment | {"SLURM_MPI_TYPE": "pmix", "OMPI_MCA_mpi_yield_when_idle": "1"})

    def submit(self, study, code, program=None):
        return self.script(study, "--launcher", "slurm", "--program", program or small_run.PROGRAM, code=code)

    def wait(self):
        self.slurm.until(lambda: not self.slurm.command("squeue", "--noheader").strip(), "empty queue", 100)


class Jobs(Study):
    def test_jobs_are_submitted_once_and_reported(self):
        study = self.write_study(ranks=(1, 2))
        said = self.submit(study, 1)  # there is no data.h5: the jobs fail
        self.assertRegex(said, r"\[1/2\] ranks1_repeat1: submitted as job \d+\n\[2/2\] ranks2_repeat1: submitted")
        self.wait()
        self.assertIn("data.h5", (self.folder / "outputs/test/ranks2_repeat1.log").read_text())
        small_run.write_data(self.folder)
        self.slurm.command("scontrol", "update", "PartitionName=main", "State=DOWN")
        self.assertIn("ranks2_repeat1: submitted", self.submit(study, 1))
        self.assertIn("ranks2_repeat1: still queued as job", self.submit(study, 1))
        self.slurm.command("scontrol", "update", "PartitionName=main", "State=UP")
        self.wait()
        said = self.submit(study, 0)
        self.assertNotIn("submitted", said)
        self.assertIn("All runs of the study have finished.", (self.folder / "outputs/test/report.html").read_text())


class Nodes(Study):
    nodes = 2

    def test_ranks_are_placed(self):
        """One on each node, with all of its GPUs, though both would fit on one node; no other job comes there."""
        program = self.folder / "nanorun"
        program.write_text('#!/bin/sh\ncase $* in *--dry-run*) echo "{}"; exit ;; esac\n'
                           'echo "rank $SLURM_PROCID on $SLURMD_NODENAME: GPUs $CUDA_VISIBLE_DEVICES"\n')
        program.chmod(0o755)
        for exclusive, share in (("true", "NO"), ("false", "OK")):
            more = f"[launch]\nranks_per_node = 1\ngpus_per_node = 2\nexclusive = {exclusive}"
            said = self.submit(self.write_study(name=exclusive, ranks=(2,), more=more), 1, program)
            self.wait()
            self.assertEqual(sorted((self.folder / f"outputs/{exclusive}/ranks2_repeat1.log").read_text().splitlines()),
                             [f"rank {i} on {node}: GPUs 0,1" for i, node in enumerate(self.slurm.nodes)])
            self.assertEqual(self.slurm.job(re.search(r"submitted as job (\d+)", said)[1])["OverSubscribe"], share)


if __name__ == "__main__":
    if missing := cluster.missing():
        print(f"skipped: {', '.join(missing)} not found")
        sys.exit(NOT_RUN)
    cluster.end_on_signals()
    small_run.main()
