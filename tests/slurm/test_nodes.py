"""The job scripts under a Slurm of two nodes, of which one is lost."""

from slurm_test import LONG, SlurmTest, main


class Nodes(SlurmTest):
    cluster_options = {"nodes": 2, "more": "SlurmdTimeout=30\nKillWait=2\n"}
    # srun gives lost ranks a second after the others have ended.
    OPTIONS = ("--export=ALL,SLURM_WAIT=1", "--nodes=2", "--ntasks-per-node=1", "--exclusive")

    def start_again(self, node):
        """The controller takes the node back once it has ended what ran there."""
        self.slurm.start_node(node)
        self.slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def test_step_that_cannot_be_launched(self):
        """A node is gone, and the controller does not know it yet."""
        self.write_program("echo trained\n")
        self.copy_scripts(f"touch {self.folder}/waiting; while [[ ! -e {self.folder}/go ]]; do sleep 0.1; done\n")
        job = self.submit_training(options=self.OPTIONS)
        self.until((self.folder / "waiting").exists, "job")
        self.slurm.kill_node(self.slurm.nodes[1])
        (self.folder / "go").touch()
        self.until(lambda: f"job {job} goes back to the queue, 1 of at most 3" in self.output(), "failed step")
        self.start_again(self.slurm.nodes[1])
        self.until_over(job, "COMPLETED")
        self.assertEqual(self.restarts(job), [1])
        self.assertTrue(self.output().endswith("trained\ntrained\n"), self.output())

    def lose_node_in_a_step(self, end):
        """Rank 0 ends on its own once the other one is lost, or does not. The job is requeued once."""
        self.write_program('[ ! -e second ] || exit 0; touch started_$SLURM_PROCID; '
                           'while [ ! -e end ] || [ "$SLURM_PROCID" = 1 ]; do sleep 0.1; done; exit 6\n')
        job = self.submit_training(options=self.OPTIONS)
        self.until(lambda: all((self.folder / f"started_{rank}").exists() for rank in range(2)), "step")
        self.slurm.kill_node(self.slurm.nodes[1])
        if end:
            (self.folder / "end").touch()
        self.until(lambda: self.restarts(job) == [1], "requeued job")
        (self.folder / "second").touch()
        self.start_again(self.slurm.nodes[1])
        self.until_over(job, "COMPLETED")
        self.assertEqual(self.restarts(job), [1], self.output())
        return f"job {job} "

    def test_ranks_end_before_slurm_misses_the_node(self):
        job = self.lose_node_in_a_step(end=True)
        self.assertIn(f"{job}goes back to the queue, 1 of at most 3 times in a row without a new checkpoint: ",
                      self.output())

    def test_slurm_misses_the_node_first(self):
        job = self.lose_node_in_a_step(end=False)
        self.assertNotIn(f"{job}goes back to the queue", self.output())

    def test_training_goes_on_after_a_lost_node(self):
        # Ranks on one machine would meet in its shared memory, each as the first of its node.
        self.slurm.environment |= {"OMPI_MCA_btl": "self,tcp"}
        job = self.submit_training(LONG, "checkpoint.every=10", "comm.timeout_seconds=10", options=self.OPTIONS)
        self.until(self.saved_step, "checkpoint")
        self.slurm.kill_node(self.slurm.nodes[1])
        self.until(lambda: self.restarts(job) == [1], "requeued job")
        step = self.saved_step()
        self.start_again(self.slurm.nodes[1])
        self.until(lambda: f"restarted from the checkpoint of step {step}\n" in self.log(), "restart")
        self.until(lambda: self.saved_step() > step, "later checkpoint")
        self.assertEqual(self.restarts(job), [1])
        self.slurm.command("scancel", job)


if __name__ == "__main__":
    main()
