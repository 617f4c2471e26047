"""What a user meets on the command line: figures of a run, dry runs, refusals, kept folders, conversion of shards."""

import json
import math
import random
import re
import struct
import time
import tomllib

from harness import FaultTest, Job, losses, restarted_from, small_run

RANKS, STEPS, SEQUENCES, LENGTH, VOCABULARY = 2, 12, 4, 256, 257  # the harness's deck has these, except RANKS
WIDTH, LAYERS, PADDED_VOCABULARY = 32, 4, 384
MATRICES = LAYERS * (3 + 1 + 4 + 4) * WIDTH**2  # QKV, attention output, and the two of the MLP
HEAD = PADDED_VOCABULARY * WIDTH
EMBEDDINGS = 2 * VOCABULARY * WIDTH  # elements of the token embedding and of one value embedding
PARAMETERS = MATRICES + HEAD + EMBEDDINGS + LAYERS * (2 + 2) + LAYERS // 2  # mixes of each block, and skips
OUTSIDE = ("validation", "checkpoint", "output", "other")  # phases that train_seconds holds in part or not at all
MERITS = {"tokens_per_second", "seconds_per_20m_tokens", "train_seconds", "time_to_first_step_seconds",
          "peak_memory_bytes", "final_train_loss", "final_val_loss"}
ENERGY = ("energy_joules", "joules_per_step", "joules_per_token", "tokens_per_wh")
BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20}


def table_rows(lines):
    """Timing table: {phase: (min, avg, max, percent)}, and (seconds, percent) of the line `total`."""
    rows, total, inside = {}, None, False
    for line in lines:
        words = line.split()
        inside = inside or words[:1] == ["phase"]
        if inside and words[:1] == ["total"]:
            return rows, tuple(map(float, words[1:]))
        if inside and len(words) == 5:
            rows[words[0]] = tuple(map(float, words[1:]))
    return rows, total


def step_seconds(trace):
    """Seconds of each step: {rank: {step: seconds}}."""
    seconds = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "step":
            seconds.setdefault(event["pid"], {})[event["args"]["step"]] = event["dur"] / 1e6
    return seconds


def bin_file(tokens):
    """A speedrun .bin file whose header carries words of its own."""
    return struct.pack("<256i", 20240520, 1, len(tokens), *range(253)) + struct.pack(f"<{len(tokens)}H", *tokens)


class Program(FaultTest):
    def job(self, ranks, *arguments, code=0):
        job = Job(self.folder, ranks, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def check_summary(self, summary, job, elapsed):
        self.assertTrue(summary["finished"])
        self.assertEqual((summary["steps"], summary["ranks"]), (STEPS, RANKS))
        self.assertEqual(summary["tokens"], STEPS * SEQUENCES * LENGTH)
        tokens = summary["tokens_per_second"] * summary["train_seconds"]
        self.assertAlmostEqual(tokens / summary["tokens"], 1, delta=1e-6)
        self.assertTrue(0 < summary["time_to_first_step_seconds"] < elapsed)
        self.assertTrue(0 < summary["train_seconds"] < elapsed)
        self.assertTrue(0 < summary["processor_share"] <= 1)
        self.assertGreater(summary["peak_memory_bytes"], 2 * 4 * PARAMETERS)  # weights and gradients
        self.assertLess(summary["peak_memory_bytes"], summary["peak_memory_bytes_all_ranks"])
        self.assertLessEqual(summary["peak_memory_bytes_all_ranks"], RANKS * summary["peak_memory_bytes"])

        self.assertAlmostEqual(summary["final_train_loss"], losses(job)[STEPS], delta=1e-5)
        shown = re.findall(rf"validation at step {STEPS}/{STEPS}: loss (\S+)", "".join(job.output))
        self.assertEqual(len(shown), 1)
        self.assertAlmostEqual(summary["final_val_loss"], float(shown[0]), delta=1e-5)
        self.assertTrue(0 < summary["final_val_loss"] < math.log(VOCABULARY))

    def check_phases(self, summary, steps):
        """The phases add up to the steps that trace.json holds, these to train_seconds; exact but for rounding."""
        phases, slack = summary["phases"], 1e-6 * STEPS
        for phase, seconds in phases.items():
            self.assertGreaterEqual(seconds["min_seconds"], 0, phase)
            self.assertLessEqual(seconds["min_seconds"], seconds["avg_seconds"] + slack, phase)
            self.assertLessEqual(seconds["avg_seconds"], seconds["max_seconds"] + slack, phase)
        for phase in ("data", "forward", "head", "backward", "muon", "adam", "sync", "validation", "checkpoint"):
            self.assertGreater(phases[phase]["max_seconds"], 0, phase)

        by_rank = {rank: sum(seconds.values()) for rank, seconds in steps.items()}
        average = sum(by_rank.values()) / RANKS
        total = sum(seconds["avg_seconds"] for seconds in phases.values())
        outside = sum(phases[phase]["avg_seconds"] for phase in OUTSIDE)
        self.assertLessEqual(total - outside, average + slack)
        self.assertLessEqual(average, total + slack)

        # The first batch is read before the clock of the first step starts.
        around = sum(phases[phase]["max_seconds"] for phase in ("data", "output", "other"))
        self.assertLessEqual(summary["train_seconds"], by_rank[0] + slack)
        self.assertLessEqual(by_rank[0] - around, summary["train_seconds"] + slack)

    def check_table(self, summary, lines):
        rows, total = table_rows(lines)
        took_time = {phase for phase, seconds in summary["phases"].items() if seconds["max_seconds"] > 0}
        self.assertEqual(set(rows), took_time)
        for phase, row in rows.items():
            for shown, name in zip(row, ("min_seconds", "avg_seconds", "max_seconds")):
                self.assertAlmostEqual(shown, summary["phases"][phase][name], delta=0.00051)
        average = sum(seconds["avg_seconds"] for seconds in summary["phases"].values())
        self.assertAlmostEqual(total[0], average, delta=0.00051)
        self.assertEqual(total[1], 100)
        self.assertAlmostEqual(sum(row[3] for row in rows.values()), 100, delta=0.0051 * len(rows))
        for phase, row in rows.items():
            self.assertAlmostEqual(row[3], 100 * summary["phases"][phase]["avg_seconds"] / average, delta=0.0051)

    def check_merits(self, summary, text):
        found = re.findall(r"^FOM (\w+) (\S+)$", text, re.MULTILINE)
        energy = [name for name in ENERGY if name in summary]  # where the system lets its counters be read
        self.assertEqual(sorted(name for name, _ in found), sorted([*MERITS, *energy]))
        for name, value in found:
            self.assertAlmostEqual(float(value) / summary[name], 1, delta=1e-5, msg=name)

    def test_figures_of_a_run(self):
        begin = time.monotonic()
        job = self.train(RANKS, f"trace.json_steps={list(range(STEPS))}")
        elapsed = time.monotonic() - begin
        self.assertEqual(job.messages(), [])
        steps = step_seconds(json.loads((self.run_folder() / "trace.json").read_text()))
        self.assertEqual({rank: sorted(seconds) for rank, seconds in steps.items()},
                         {rank: list(range(STEPS)) for rank in range(RANKS)})

        summary = self.summary()
        self.check_summary(summary, job, elapsed)
        self.check_phases(summary, steps)
        for text in ("".join(job.output), (self.run_folder() / "log.txt").read_text()):
            self.check_table(summary, text.splitlines())
            self.check_merits(summary, text)
        self.check_build(summary, (self.run_folder() / "log.txt").read_text())

    def check_build(self, summary, log):
        """The log begins with the words of --version, whose parts are in the summary."""
        name = "".join(self.job(1, "--version").output).strip()
        self.assertEqual(log.splitlines()[0], name)
        version = re.fullmatch(r"nanorun ([\d.]+) \((?:(\S+), )?(\w+ [\d.]+), (?:CPU build|CUDA ([\d.]+))\)", name)
        self.assertEqual([summary["version"], summary["commit"] or None, summary["compiler"], summary.get("cuda")],
                         list(version.groups()))

    def test_dry_run(self):
        job = self.job(RANKS, "train", "deck.toml", "optimizer.muon_lr=0.125", "--dry-run")
        text = "".join(job.output)
        deck, plan = re.fullmatch(r"(.*\n)\n(ranks .*?\n)warning: the run trains on validation tokens .*\n", text,
                                  re.DOTALL).groups()
        resolved = tomllib.loads(deck)
        self.assertEqual(resolved["optimizer"]["muon_lr"], 0.125)  # from the command line
        self.assertEqual(resolved["train"]["steps"], STEPS)  # from the deck
        self.assertEqual(resolved["model"]["mlp_ratio"], 4)  # a default
        self.check_plan(dict(re.split(r"  +", line.strip(), maxsplit=1) for line in plan.splitlines()))

        (self.folder / "again.toml").write_text(deck)
        again = self.job(RANKS, "train", "again.toml", "--dry-run")
        self.assertEqual("".join(again.output), text)
        self.assertEqual(job.messages() + again.messages(), [])
        self.assertFalse((self.folder / "outputs").exists())

    def test_dry_run_for_other_ranks(self):
        for ranks in (1, 4):
            shown = self.job(1, "train", "deck.toml", "--dry-run", "--ranks", ranks)
            same = self.job(ranks, "train", "deck.toml", "--dry-run")
            self.assertRegex("".join(shown.output), rf"(?m)^ranks +{ranks}$")
            self.assertEqual("".join(shown.output), "".join(same.output))
        refused = self.job(1, "train", "deck.toml", "--dry-run", "--ranks", 3, code=2)
        self.assert_refused(refused, "train.sequences = 4 cannot be divided among 3 ranks")
        self.assert_refused(self.job(1, "train", "deck.toml", "--ranks", 2, code=2), "--ranks requires --dry-run")

    def test_dry_run_for_nodes(self):
        """The option counts in place of the key, and the key in place of the build's choice."""
        for options, nodes in ((("--ranks-per-node", 1), "4 of 1 ranks (--ranks-per-node)"),
                               (("--ranks-per-node", 3), "2 of at most 3 ranks (--ranks-per-node)"),
                               (("comm.ranks_per_node=2",), "2 of 2 ranks (comm.ranks_per_node)"),
                               (("comm.ranks_per_node=2", "--ranks-per-node", 4), "1 of 4 ranks (--ranks-per-node)"),
                               ((), "1 of 4 ranks (by default)")):
            with self.subTest(nodes):
                shown = self.job(1, "train", "deck.toml", "--dry-run", "--ranks", 4, *options)
                self.assertIn(f"\nnodes                            {nodes}\n", "".join(shown.output))

    def test_dry_run_for_little_memory(self):
        """The plan is printed all the same."""
        fits = self.job(1, "train", "deck.toml", "--dry-run", "--memory", "1TiB")
        refused = self.job(1, "train", "deck.toml", "--dry-run", "--memory", "1MiB", code=2)
        self.assert_refused(refused, "nanorun: a rank needs ", " MiB of memory and has 1 MiB; ", " take most, ")
        self.assertEqual("".join(refused.output), "".join(fits.output).replace(" 1 TiB\n", " 1 MiB\n"))

    def test_dry_run_as_json(self):
        """The same deck, figures and warnings as the text, on standard output alone."""
        text = "".join(self.job(1, "train", "deck.toml", "--dry-run", "--ranks", RANKS).output)
        job = self.job(RANKS, "train", "deck.toml", "--dry-run", "--json")
        self.assertEqual(job.messages(), [])
        plan = json.loads("".join(job.output))
        self.assertTrue(text.startswith(plan["deck"] + "\n"))
        self.assertEqual(plan["ranks"], RANKS)
        self.assertIn(f"\nparameters                       {plan['parameters']} ", text)
        self.assertEqual(text.count("\nwarning: "), len(plan["warnings"]))
        for warning in plan["warnings"]:
            self.assertIn(f"\nwarning: {warning}\n", text)
        self.assertFalse((self.folder / "outputs").exists())

    def test_dry_run_checks_the_data(self):
        def warnings(*overrides):
            job = self.job(RANKS, "train", "deck.toml", *overrides, "--dry-run")
            self.assertEqual(job.messages(), [])
            plan, warned = re.fullmatch(r".*\n\n(ranks .*?\n)((?:warning: .*\n)*)", "".join(job.output),
                                        re.DOTALL).groups()
            self.assertIn("\nmemory per rank", plan)
            self.assertNotIn("warning", plan)
            lines = [line.removeprefix("warning: ") for line in warned.splitlines()]
            return [line for line in lines if line != known_text]

        known_text = "the run trains on validation tokens too: data.h5 is in data.train; its loss is that of known text"
        self.assertEqual(warnings('data.train=["a.h5", "data.h5", "b_*.h5"]', 'data.validation=["c.h5"]'),
                         ["a.h5: no such file", "b_*.h5: no such file", "c.h5: no such file"])
        self.assertEqual(warnings('data.validation=["c.h5"]', "validation.tokens=0"), [])
        self.assertEqual(warnings('data.train=["deck.toml"]'),
                         ["deck.toml: not an HDF5 file, so neither a token shard, a checkpoint nor a trace"])
        vocabulary, = warnings("model.vocabulary=200", 'data.validation=[]', "validation.tokens=0")
        self.assertIn("data.h5: its vocabulary is 257, larger than model.vocabulary = 200", vocabulary)
        steps = (sum(1 + len(path.read_bytes()) for path in self.folder.glob("*.txt")) - 1) // (SEQUENCES * LENGTH)
        self.assertEqual(warnings("data.end=error", f"train.steps={steps}"), [])
        short, = warnings("data.end=error", f"train.steps={steps + 1}")
        self.assertIn(f"the data end at data.h5: the shards hold {steps} steps;", short)
        self.assertEqual(warnings(f"train.steps={steps + 1}"), [])
        validation, = warnings("validation.tokens=1048576")
        self.assertIn("the data end at data.h5", validation)
        self.assertFalse((self.folder / "outputs").exists())

    def check_plan(self, plan):
        def binary(name):
            number, unit = re.fullmatch(r"(\S+) (\w*)B", plan[name]).groups()
            return float(number) * BINARY[unit]

        def assert_close(name, expected):  # four digits are printed
            self.assertAlmostEqual(binary(name) / expected, 1, delta=5.1e-4, msg=name)

        self.assertEqual(plan["ranks"], str(RANKS))
        self.assertEqual(plan["parameters"].split()[0], str(PARAMETERS))
        self.assertEqual(plan["tokens per step"], str(SEQUENCES * LENGTH))
        assert_close("weights", 4 * PARAMETERS)
        assert_close("gradients", 4 * PARAMETERS)
        parts = ("weights", "gradients", "optimizer state and scratch", "activations", "buffers of collectives")
        assert_close("memory per rank", sum(map(binary, parts)))
        # A reduce-scatter and an all-gather, of which each rank keeps its own half.
        assert_close("bytes sent per rank and step", 2 * 4 * PARAMETERS / 2)
        # A multiply-add counts two. Three products a weight; attention has two forward and five backward.
        pairs = LENGTH * LENGTH / 2
        flops = SEQUENCES * (6 * (MATRICES + HEAD) * LENGTH + 7 * 2 * pairs * WIDTH * LAYERS)
        number, unit = plan["FLOPs per step, widest window"].split()
        self.assertEqual(unit, "MFLOP")
        self.assertAlmostEqual(float(number) * 1e6 / flops, 1, delta=5.1e-4)

    def test_usage_refused(self):
        self.assert_refused(self.train(2, "train.step=3", code=2), "train.step", "train.steps")
        self.assert_refused(self.train(3, code=2), "train.sequences", "3")
        with (self.folder / "deck.toml").open("a") as deck:
            deck.write("[optimizer]\nmuon_rate = 1\n")
        self.assert_refused(self.train(2, code=2), "deck.toml", "optimizer.muon_rate")
        self.assertFalse((self.folder / "outputs").exists())

    def test_data_refused(self):
        self.assert_refused(self.train(2, 'data.train=["absent.h5"]', code=3), "absent.h5", "no such file")
        self.assert_refused(self.train(2, "model.vocabulary=200", code=3), "data.h5", "model.vocabulary")

        start = [256, *(self.folder / "00.txt").read_bytes()[:100]]
        shard = (self.folder / "data.h5").read_bytes()
        stored = struct.pack(f"<{len(start)}H", *start)
        self.assertEqual(shard.count(stored), 1)
        start[50] = VOCABULARY
        (self.folder / "data.h5").write_bytes(shard.replace(stored, struct.pack(f"<{len(start)}H", *start)))
        self.assert_refused(self.train(2, code=3), "data.h5", "token 50", VOCABULARY)

    def test_output_below_a_file(self):
        job = self.train(2, "run.outputs=deck.toml", code=7)
        self.assert_refused(job, "deck.toml/run: cannot be accessed: Not a directory")
        self.assertEqual((self.folder / "deck.toml").read_text(), small_run.DECK)

    def test_restart_none_keeps_the_old_folder(self):
        def content(folder):
            """All but the lock, which names the run that renamed the folder."""
            files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
            return {path.relative_to(folder): path.read_bytes() for path in files}

        first = self.folder / "outputs" / "run.1"
        self.train(2, "train.steps=2")
        before = content(self.run_folder())
        self.assertFalse((self.run_folder() / "trace.json").exists())  # no step was chosen
        self.assertFalse(first.exists())
        for runs in (2, 3):
            job = self.train(2, "train.steps=3", "checkpoint.restart=none")
            self.assertIsNone(restarted_from(job))
            self.assertEqual(sorted(losses(job)), [1, 2, 3])
            self.assertEqual(len(list((self.folder / "outputs").iterdir())), runs)
            self.assertEqual(content(first), before)

    def test_shard_verify_export(self):
        draw = random.Random(2)
        source = bin_file([draw.randrange(300) for _ in range(70000)])  # more than one block of checksums
        (self.folder / "in.bin").write_bytes(source)
        job = self.job(2, "shard", "tokens", "in.bin", "--vocabulary", 300, "--end-of-text", 299)
        self.assertEqual("".join(job.output), "tokens.h5\n")
        self.assertEqual("".join(self.job(2, "verify", "tokens.h5").output), "tokens.h5: verified\n")
        self.job(2, "export", "tokens.h5", "out.bin")
        self.assertEqual((self.folder / "out.bin").read_bytes(), source)

        texts = sorted(self.folder.glob("*.txt"))
        tokens = [token for path in texts for token in (256, *path.read_bytes())]
        self.job(1, "export", "data.h5", "text.bin")
        self.assertEqual((self.folder / "text.bin").read_bytes()[1024:], struct.pack(f"<{len(tokens)}H", *tokens))

    def test_token_outside_the_vocabulary_is_not_converted(self):
        (self.folder / "in.bin").write_bytes(bin_file([5] * 1000 + [300] + [5] * 1000))
        job = self.job(2, "shard", "tokens", "in.bin", "--vocabulary", 300, "--end-of-text", 299, code=3)
        self.assert_refused(job, "in.bin", "token 1000", 300)
        self.assertEqual(list(self.folder.glob("tokens*")), [])

    def test_damaged_shard_is_not_exported(self):
        damaged = bytearray((self.folder / "data.h5").read_bytes())
        first = (self.folder / "00.txt").read_bytes()[:100]
        damaged[damaged.index(struct.pack("<100H", *first))] ^= 1
        (self.folder / "data.h5").write_bytes(damaged)
        self.assert_refused(self.job(2, "verify", "data.h5", code=3), "data.h5", "checksum")
        self.assert_refused(self.job(2, "export", "data.h5", "out.bin", code=3), "data.h5", "checksum")
        self.assertEqual(list(self.folder.glob("out.bin*")), [])


if __name__ == "__main__":
    small_run.main()
