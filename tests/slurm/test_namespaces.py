"""A training under a Slurm of two nodes with networks and memory of their own, of which one is lost."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cluster
import namespaces
import slurm_test
from slurm_test import small_run

RANKS_OF_NODE = 2
RANKS = 2 * RANKS_OF_NODE


def namespaces_of(pids):
    """Networks and tables of processes that the processes see."""
    found = set()
    for pid in pids:
        try:
            found |= {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "pid")}
        except OSError:
            pass  # it has just ended
    return found


def all_processes():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


class Namespaces(slurm_test.SlurmTest):
    cluster_type, cluster_options = namespaces.Cluster, {"nodes": 2, "more": "SlurmdTimeout=30\nKillWait=2\n"}
    DECK = ("train.steps=25", "checkpoint.every=5", "comm.timeout_seconds=6")
    # srun gives lost ranks a second after the others have ended.
    OPTIONS = ("--export=ALL,SLURM_WAIT=1", "--nodes=2", f"--ntasks-per-node={RANKS_OF_NODE}", "--exclusive")

    def lose(self, node):
        """Submits a training and loses one of its nodes after the first checkpoint. Returns the job."""
        job = self.submit_training(*self.DECK, options=self.OPTIONS)
        self.until(self.saved_step, "checkpoint")
        self.slurm.kill_node(node)
        return job

    def until_requeued_once(self, job):
        """Returns the step from which the job will go on."""
        self.until(lambda: self.restarts(job) == [1], "requeued job")
        return self.saved_step()

    def until_finished(self, job, step):
        """The job has gone on from that step to the end."""
        self.until_over(job, "COMPLETED")
        self.assertIn(f"restarted from the checkpoint of step {step}\n", self.log())

    def assert_named(self, lost, node, said):
        """Of the two ranks that are left, the first to end the job names those that are lost, in the log too. It may
        end the other one before that one has said so."""
        messages = re.findall(r"^nanorun: rank .*", said, re.MULTILINE)
        self.assertTrue(messages, said)
        for message in messages:
            self.assertRegex(message, r"^nanorun: rank \d: .* did not complete within 6 s: no sign of life from "
                                      rf"ranks {lost} on node {node}, stopped or dead \(comm.timeout_seconds\)$")
        self.assertIn(f"no sign of life from ranks {lost} on node {node}", self.log())

    def emulate(self):
        """The same training without a fault, on this machine alone. Returns its folder."""
        whole = self.folder / "whole"
        self.prepare(whole)
        self.train(RANKS, *self.DECK, f"comm.ranks_per_node={RANKS_OF_NODE}", folder=whole)
        return whole

    def planned_bytes(self):
        """What a node sends to the other one in a step."""
        plan = subprocess.run([small_run.PROGRAM, "train", "--dry-run", "--json", f"--ranks={RANKS}",
                               f"--ranks-per-node={RANKS_OF_NODE}", "deck.toml"], cwd=self.folder,
                              stdout=subprocess.PIPE, text=True, check=True)
        return RANKS_OF_NODE * json.loads(plan.stdout)["sent"]["between"]["bytes"]

    def test_lost_node_comes_back(self):
        """The ranks that are left end by themselves, and the job script requeues the job, before Slurm misses the node.
        What was trained is equal to what emulated nodes train, bit for bit."""
        first, second = self.slurm.nodes
        sent = self.slurm.sent_bytes(first)
        job = self.lose(second)
        self.assertIn(f" on {first} (2 ranks), {second} (2 ranks), job {job}\n", self.log())
        self.assertIn("2 nodes of at most 2 ranks; ", self.log())
        self.until(lambda: "nanorun: rank" in self.output(), "message")
        self.slurm.start_node(second)
        step = self.until_requeued_once(job)
        self.assert_named("2, 3", second, self.output())
        self.assertIn(f"job {job} goes back to the queue, 1 of at most 3 times in a row without a new checkpoint: ",
                      self.output())
        self.until_finished(job, step)
        self.assertEqual(self.restarts(job), [1], self.output())
        self.assert_equal_runs(self.emulate(), unlike=["deck"])
        # Tensors travel over the cable, once. Slurm, checkpoints and what TCP adds take a little more. Weights of the
        # last step before the loss may not have travelled: the next step gathers them.
        sent = self.slurm.sent_bytes(first) - sent
        steps, planned = len(re.findall(r"^step ", self.log(), re.MULTILINE)), self.planned_bytes()
        self.assertGreater(sent, (steps - 1) * planned)
        self.assertLess(sent, 1.5 * steps * planned)

    def test_lost_node_of_the_job_script(self):
        """With it srun and rank 0 are lost. The other ranks end by themselves, and Slurm requeues the job."""
        self.write_program(f'exec {small_run.PROGRAM} "$@" 2>said.$SLURM_PROCID\n')
        first, second = self.slurm.nodes
        job = self.lose(first)
        self.until(lambda: not self.slurm.runs(second, small_run.PROGRAM), "end of the other ranks")
        self.assert_named("0, 1", first, "".join((self.folder / f"said.{rank}").read_text() for rank in (2, 3)))
        step = self.until_requeued_once(job)
        self.slurm.start_node(first)
        self.until_finished(job, step)
        self.assertNotIn("goes back to the queue", self.output())
        self.assert_equal_runs(self.emulate(), unlike=["deck"])

    def test_node_lost_before_the_start(self):
        """The ranks of the other node are started, and killed. Slurm can start no second step of that number there."""
        self.copy_scripts(f"touch {self.folder}/waiting; while [[ ! -e {self.folder}/go ]]; do sleep 0.1; done\n")
        job = self.submit_training(*self.DECK, options=self.OPTIONS)
        self.until((self.folder / "waiting").exists, "job")
        self.slurm.kill_node(self.slurm.nodes[1])
        (self.folder / "go").touch()
        self.until(lambda: f"job {job} goes back to the queue, 1 of at most 3" in self.output(), "failed start")
        self.slurm.start_node(self.slurm.nodes[1])
        self.until_over(job, "COMPLETED")
        self.assertEqual(self.restarts(job), [1], self.output())
        self.assertTrue(self.summary()["finished"])

    def test_training_goes_on_without_the_lost_node(self):
        """Its job waits for the node in vain; another job takes over on the node that is left."""
        job = self.lose(self.slurm.nodes[1])
        step = self.until_requeued_once(job)
        self.slurm.command("scancel", job)
        job = self.submit_training(*self.DECK, options=("--nodes=1",))
        self.until_finished(job, step)
        self.assertEqual(self.summary()["ranks"], RANKS_OF_NODE)
        whole = self.emulate()
        for key in ("final_train_loss", "final_val_loss"):
            self.assertAlmostEqual(self.summary()[key], self.summary(whole)[key], delta=1e-5)

    def test_nothing_is_left_of_a_killed_test(self):
        """Another one of these tests is killed while its ranks are at work."""
        mounts = Path("/proc/self/mounts").read_text()
        before = namespaces_of(all_processes())
        test = subprocess.Popen(
            [sys.executable, "-B", __file__, small_run.PROGRAM, small_run.MPIRUN, "Namespaces.test_lost_node_comes_back"],
            env=os.environ | {"TMPDIR": str(self.folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(test.kill)

        def ranks():
            return [pid for pid in cluster.descendants(test.pid)
                    if cluster.strings(pid, "cmdline")[:2] == [small_run.PROGRAM, "train"]]

        self.until(lambda: len(ranks()) == RANKS, "ranks")
        created = namespaces_of([test.pid, *cluster.descendants(test.pid)]) - before
        self.assertEqual(len(created), 1 + 2 * 2, created)  # the controller's network; two of each node
        test.kill()
        test.wait()
        self.until(lambda: created.isdisjoint(namespaces_of(all_processes())), "end of the namespaces")
        self.assertEqual(Path("/proc/self/mounts").read_text(), mounts)


def main():
    try:
        namespaces.enter()
    except namespaces.NotAllowed as error:
        print(f"skipped: {error}")
        sys.exit(77)
    slurm_test.main()


if __name__ == "__main__":
    main()
