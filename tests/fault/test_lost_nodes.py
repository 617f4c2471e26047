"""Ranks of several nodes, of which some are stopped. The nodes are host names of this machine, on which mpirun starts its
daemons through a shell of their own in place of ssh; MPI shares memory within each alone."""

import os
import signal

from harness import FaultTest, Job, small_run
from test_stop import LostRanks

SHELL = """#!/bin/sh
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && eval "$1"' "$host" "$*"
"""


class LostNodes(LostRanks, FaultTest):
    timeout = 4
    ranks_of_node = 2

    def setUp(self):
        super().setUp()
        if Job(self.folder, None, ["keys"], wrapper=["unshare", "--uts"]).wait() != 0:
            self.skipTest("a user who may not make namespaces")
        shell = self.folder / "shell"
        shell.write_text(SHELL)
        shell.chmod(0o755)

    def start_on_nodes(self, nodes, *overrides):
        """The job and the processes of its ranks, which are children of the daemons."""
        ranks = nodes * self.ranks_of_node
        hosts = ",".join(f"127.0.0.{node + 2}:{self.ranks_of_node}" for node in range(nodes))
        launcher = [small_run.MPIRUN, "--host", hosts, "-n", str(ranks), "--mca", "plm_rsh_agent", self.folder / "shell",
                    "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo",
                    "sh", "-c", "echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec \"$0\" \"$@\""]
        job = self.start(None, *self.long_run, f"comm.timeout_seconds={self.timeout}", *overrides, wrapper=launcher)
        job.until_step(3)
        pids = [int((self.folder / f"pid.{rank}").read_text()) for rank in range(ranks)]
        self.assertEqual(sorted(os.listdir(self.run_folder() / "heartbeats")), [str(node) for node in range(nodes)])
        return job, pids

    def stop_ranks(self, nodes, silent, culprit):
        """Ranks of one node name those that are stopped; others may end the job without a name."""
        job, pids = self.start_on_nodes(nodes)
        for rank in silent:
            os.kill(pids[rank], signal.SIGSTOP)
        self.assertEqual(job.wait(), 6, job.text())
        lines = [line for line in job.messages() if f"did not complete within {self.timeout} s: " in line]
        named = [line for line in lines if f"no sign of life from {culprit}, stopped or dead" in line]
        self.assertTrue(named, job.text())
        self.assertIn(f"no sign of life from {culprit}, ", (self.run_folder() / "log.txt").read_text())
        self.assertFalse([line for line in lines if line not in named and "another rank has died or hangs" not in line])
        self.assert_gone(pids)

    def test_a_stopped_rank_of_another_node_is_named(self):
        self.stop_ranks(2, [3], "rank 3 on node 127.0.0.3")

    def test_a_stopped_root_is_named(self):
        self.stop_ranks(2, [0], "rank 0 on node 127.0.0.2")

    def test_a_stopped_node_is_named(self):
        self.stop_ranks(2, [0, 1], "ranks 0, 1 on node 127.0.0.2")

    def test_nodes_leave_no_heartbeats(self):
        job, _ = self.start_on_nodes(2)
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        self.assertFalse((self.run_folder() / "heartbeats").exists())


if __name__ == "__main__":
    small_run.main()
