"""What the ranks tell each other in a step, as calls of MPI: docs/scaling.md has the formulas that are checked here."""

import json
import os

from harness import FaultTest, small_run
from test_layouts import DECK, LENGTH, VOCABULARY, write_permutations

NUMBER = 8  # bytes
REASONS = 10  # to stop, and none
LAYERS, SIZE = 2, 4 * 10249  # bytes of the gradients, and of the weights, of DECK, whose tables have the rows of its tokens
FP8 = ("train.mlp_precision=fp8",)


class HostMessages(FaultTest):
    def prepare(self, folder):
        (folder / "deck.toml").write_text(DECK)
        write_permutations(folder)

    def calls(self, ranks, steps, *overrides):
        """By rank {(name, ranks of the communicator): (calls, bytes)} of a whole run."""
        out = self.folder / "calls"
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_MPI_CALLS']}", f"CALLS_OUT={out}"]
        self.train(ranks, *overrides, f"train.steps={steps}", f"train.sequences={ranks}", "trace.enabled=false",
                   f"run.name=steps{steps}",
                   "checkpoint.restart=none", wrapper=wrapper)
        found = []
        for rank in range(ranks):
            lines = (line.split() for line in (self.folder / f"calls.{rank}").read_text().splitlines())
            found.append({(name, int(size)): (int(number), int(given)) for name, size, number, given in lines})
        return found

    def calls_of_a_step(self, ranks, *overrides):
        """As calls(): what a run of six steps has more than one of two, by four."""
        few, many = (self.calls(ranks, steps, *overrides) for steps in (2, 6))
        step = [{key: tuple((b - a) / 4 for a, b in zip(before.get(key, (0, 0)), after[key])) for key in after}
                for before, after in zip(few, many)]
        sent = json.loads((self.folder / "outputs" / "steps6" / "summary.json").read_text()).get("sent")
        return [{key: calls for key, calls in of_rank.items() if calls[0] != 0} for of_rank in step], sent

    def check(self, ranks, per_node, *overrides):
        """On nodes whose number, size and number of ranks all differ, or on one node."""
        nodes = ranks // per_node
        steps, sent = self.calls_of_a_step(ranks, f"comm.ranks_per_node={per_node}", *overrides)
        words = -(-VOCABULARY // 64)  # a bit for each row that a rank may have read
        maxima = (1, LAYERS) if FP8[0] in overrides else (0, 0)
        agreement, of_node, of_nodes = 2 + REASONS, 2 * per_node + 1, 2 * nodes + 1
        # Inside a node each rank gets all gradients of its share and all weights of the others; each node gets each once.
        tensors = 2 * SIZE
        for size, level, total in ((per_node, "inside", nodes * (per_node - 1) * tensors),
                                   (nodes, "between", (nodes - 1) * tensors)):
            messages = [calls.pop(("Isend", size), (0, 0)) for calls in steps]
            self.assertEqual({"messages": max(number for number, _ in messages),
                              "bytes": max(given for _, given in messages)}, sent[level])
            self.assertEqual(sum(given for _, given in messages), total)
        for calls in steps:
            wanted = {("Allgather", per_node): (1, NUMBER * words)}
            if nodes == 1:
                wanted["Allreduce", ranks] = (2 + maxima[0], NUMBER * (agreement + of_node + maxima[1]))
            else:
                wanted["Allreduce", ranks] = (2 + maxima[0], NUMBER * (agreement + of_nodes + maxima[1]))
                wanted["Allreduce", per_node] = (1, NUMBER * of_node)
                number, given = calls.pop(("Allgather", nodes))
                self.assertEqual(number, 1)
                self.assertLessEqual(given, NUMBER * words)
            self.assertEqual(calls, wanted)

    def test_one_node(self):
        self.check(4, 4)

    def test_two_nodes_of_three(self):
        self.check(6, 3, *FP8)

    def test_candidates(self):
        """A bit for each of 200 rows of a table and for each of 256 of the LM head, of which a rank has gradients in
        128."""
        deck = DECK.replace(f"vocabulary = {VOCABULARY}", "vocabulary = 200")
        deck = deck.replace(f"length = {LENGTH}\n[validation]", "[validation]")
        (self.folder / "deck.toml").write_text(deck.replace(f"[window]\nfirst = {LENGTH}\nlast = {LENGTH}\n", "") + f"""
[[stage]]
share = 1
length = {LENGTH}
short_window = {LENGTH}
long_window = {LENGTH}
candidates = 128
""")
        for candidates, words in ((128, 4 + 4), (256, 4), (0, 4)):
            steps, _ = self.calls_of_a_step(4, f"stage.0.candidates={candidates}")
            for calls in steps:
                self.assertEqual(calls["Allgather", 4], (1, NUMBER * words))

    def test_sixteen_ranks(self):
        """As many calls as on six."""
        self.check(16, 8, *FP8)
        self.check(16, 2)


if __name__ == "__main__":
    small_run.main()
