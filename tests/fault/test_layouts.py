"""Ranks of several nodes, which one machine emulates (comm.ranks_per_node): layouts agree, send what the plan says, and
live through what ends jobs. The model is tiny, and each sequence holds all tokens of its vocabulary."""

import json
import os
import random
import signal
import struct
from unittest import mock

import harness
from harness import FaultTest, Job, restarted_from, small_run
from test_stop import LostRanks

VOCABULARY, LENGTH = 64, 128  # any 2 * VOCABULARY - 1 tokens of consecutive permutations hold each token

DECK = f"""
[run]
log_every = 1
[model]
vocabulary = {VOCABULARY}
width = 16
heads = 1
head_dim = 16
layers = 2
value_embeddings = 1
[window]
first = {LENGTH}
last = {LENGTH}
[train]
length = {LENGTH}
[validation]
tokens = 0
[data]
train = ["data.h5"]
end = "wrap"
"""


def write_permutations(folder):
    """data.h5, a shard of permutations of the vocabulary."""
    draw = random.Random(0)
    tokens = [token for _ in range(2000) for token in draw.sample(range(VOCABULARY), VOCABULARY)]
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    (folder / "data.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    job = Job(folder, None, ["shard", "data.h5", "data.bin", "--vocabulary", VOCABULARY, "--end-of-text",
                             VOCABULARY - 1])
    assert job.wait() == 0, job.text()


class Layouts(LostRanks, FaultTest):
    timeout = 10

    def setUp(self):
        super().setUp()
        for change in (mock.patch.dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1"),
                       mock.patch.object(harness, "TIMEOUT", 900)):
            change.start()
            self.addCleanup(change.stop)

    def prepare(self, folder):
        (folder / "deck.toml").write_text(DECK)
        write_permutations(folder)

    def losses(self, name="run"):
        """Loss of each step of a run so far, with all digits."""
        lines = (self.folder / "outputs" / name / "metrics.jsonl").read_text().splitlines()
        steps = {line["step"]: line["loss"] for line in map(json.loads, lines)}
        self.assertEqual(list(steps), list(range(1, len(steps) + 1)))
        return list(steps.values())

    def assert_agree(self, losses, others):
        """The first 20 steps of two layouts, or as many as both have made."""
        for step, (a, b) in enumerate(list(zip(losses, others))[:20], 1):
            self.assertAlmostEqual(a, b, delta=1e-5 if step <= 8 else 1e-4, msg=f"step {step}")

    def assert_sent_as_planned(self, ranks, per_node, *overrides, name="run"):
        """On the rank that sends most, in each level."""
        job = Job(self.folder, None, ["train", "deck.toml", "--dry-run", "--json", "--ranks", ranks, *overrides,
                                      f"comm.ranks_per_node={per_node}"])
        self.assertEqual(job.wait(), 0, job.text())
        planned = json.loads("".join(job.output))["sent"]
        sent = json.loads((self.folder / "outputs" / name / "summary.json").read_text())["sent"]
        self.assertEqual(sent, {level: planned[level] for level in ("inside", "between")})
        self.assertEqual(sent["between"]["messages"] > 0, 0 < per_node < ranks)

    def test_layouts_agree(self):
        """Also one whose last node has fewer ranks. The same layout gives the same bits."""
        deck = ("train.sequences=28", "train.steps=20")
        layouts = {"one": (1, 0), "node": (4, 0), "nodes": (4, 2), "again": (4, 2), "alone": (4, 1), "uneven": (7, 3)}
        for name, (ranks, per_node) in layouts.items():
            self.train(ranks, *deck, f"comm.ranks_per_node={per_node}", f"run.name={name}")
            self.assertEqual(len(self.losses(name)), 20)
            self.assert_agree(self.losses(name), self.losses("one"))
            if ranks > 1:
                self.assert_sent_as_planned(ranks, per_node, *deck, name=name)
        self.assertEqual(self.losses("nodes"), self.losses("again"))

    def test_sixty_four_ranks_send_what_the_plan_says(self):
        deck = ("train.sequences=64", "train.steps=2")
        self.train(64, *deck, "comm.ranks_per_node=8")
        self.assert_sent_as_planned(64, 8, *deck)

    def live_through(self, ranks, per_node):
        """One rank is killed, a stop file ends the next job, two others have 7 ranks and 1, and in the last one a rank is
        stopped. Each goes on where the one before it was saved, and their losses are those of one rank."""
        self.long_run = (*LostRanks.long_run, f"train.sequences={7 * ranks}", "checkpoint.every=2",
                         f"comm.ranks_per_node={per_node}")
        self.lose_a_rank(ranks)
        saved = self.stop_by_file(ranks)
        self.assert_sent_as_planned(ranks, per_node, *self.long_run)
        for others in (7, 1):
            job = self.train(others, *self.long_run, f"stop.step={saved + 2}", code=75)
            self.assertEqual(restarted_from(job), saved)
            saved += 2
        self.silence_a_rank(ranks)
        self.assert_agree(self.losses(), self.losses_of_one_rank())

    def saved_step(self):
        return max(int(file[11:19]) for file in self.files() if file.endswith(".h5"))

    def lose_a_rank(self, ranks):
        job = self.start(ranks, *self.long_run)
        job.until_step(3)
        os.kill(job.rank_pids()[-1], signal.SIGKILL)
        # mpirun ends all ranks, unless their watchdogs come first.
        self.assertIn(job.wait(), (128 + signal.SIGKILL, 6), job.text())

    def stop_by_file(self, ranks):
        """The step of its checkpoint."""
        saved = self.saved_step()
        job = self.start(ranks, *self.long_run)
        job.until_step(saved + 1)
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        self.assertIn(": stop file found", job.text())
        self.assertEqual(restarted_from(job), saved)
        self.assertEqual(self.saved_step(), self.summary()["steps"])
        return self.saved_step()

    def silence_a_rank(self, ranks):
        saved = self.saved_step()
        job = self.start(ranks, *self.long_run, f"comm.timeout_seconds={self.timeout}")
        job.until_step(saved + 1)
        self.assertEqual(restarted_from(job), saved)
        pids, silent = job.rank_pids(), ranks // 2
        os.kill(pids[silent], signal.SIGSTOP)
        self.assert_named(job, pids, f"no sign of life from rank {silent}, stopped or dead")

    def losses_of_one_rank(self):
        steps = min(len(self.losses()), 20)
        self.train(1, *self.long_run, f"stop.step={steps}", "run.name=one", code=75)
        return self.losses("one")

    def test_two_nodes_of_two_live(self):
        self.live_through(4, 2)

    def test_four_nodes_of_four_live(self):
        self.live_through(16, 4)

    def test_an_uneven_last_node_lives(self):
        self.live_through(19, 8)

    def test_eight_nodes_of_eight_live(self):
        self.timeout = 60
        self.live_through(64, 8)

    def test_sixteen_nodes_of_eight_live(self):
        self.timeout = 60
        self.live_through(128, 8)


if __name__ == "__main__":
    small_run.main()
