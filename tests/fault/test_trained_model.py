"""What is done with the checkpoint of a run: its loss, a run that begins with its weights, text that it writes."""

import re
import struct

from harness import FaultTest, Job, small_run


class TrainedModel(FaultTest):
    def command(self, *arguments, ranks=None, code=0):
        job = Job(self.folder, ranks, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def trained(self):
        """The last checkpoint of a short run."""
        self.train(2, "trace.enabled=false")
        return self.checkpoint(12)

    def evaluate(self, checkpoint, *arguments, ranks=None):
        """Loss, perplexity, bits per byte."""
        text = "".join(self.command("eval", checkpoint, *arguments, ranks=ranks).output)
        figures = re.findall(r"^(?:loss|perplexity|bits per byte) +(\S+)", text, re.MULTILINE)
        return [float(figure) for figure in figures]

    def test_eval_repeats_the_validation(self):
        """On any number of ranks, bit for bit."""
        checkpoint = self.trained()
        loss, perplexity, bits = self.evaluate(checkpoint)
        self.assertEqual(loss, self.summary()["final_val_loss"])
        self.assertAlmostEqual(perplexity, 2.718281828 ** loss, 3)
        self.assertAlmostEqual(bits, loss / 0.69314718 * 1024 / self.bytes_behind(1024), 4)
        self.assertEqual(self.evaluate(checkpoint, ranks=3), [loss, perplexity, bits])
        given = self.evaluate(checkpoint, "--data", "data.h5", "--tokens", 1024, "--length", 256, ranks=2)
        self.assertEqual(given, [loss, perplexity, bits])
        self.assertNotEqual(self.evaluate(checkpoint, "--tokens", 512)[0], loss)

    def test_eval_measures_the_operands_of_the_lm_head(self):
        """On any number of ranks; those of the weights are in the checkpoint."""
        checkpoint = self.trained()
        pattern = re.compile(r"^head\.scale_([xwg]) +largest magnitude (\S+), saturates above head\.scale_. = (\S+); the run "
                             r"has (\S+)$")
        said = self.command("eval", checkpoint, "--head-scales").output
        self.assertEqual([line for line in said if "head.scale" not in line], self.command("eval", checkpoint).output)
        lines = [pattern.match(line.rstrip()) for line in said]
        found = {match[1]: [float(figure) for figure in match.groups()[1:]] for match in lines if match}
        self.assertEqual({name: figures[2] for name, figures in found.items()}, {"x": 2, "w": 512, "g": 524288})
        for name, format_end in ("x", 448), ("w", 448), ("g", 57344):
            magnitude, scale, _ = found[name]
            self.assertLessEqual(magnitude * scale, format_end * 1.001)
            self.assertGreater(magnitude * scale, format_end / 2.001)
        self.assertLess(found["g"][0], 15 / 49152)  # no token's gradient is above the slope of the softcap, which is 1
        self.assertGreater(found["g"][0], 0.2 / 49152)
        again = self.command("eval", checkpoint, "--head-scales", ranks=3).output
        self.assertEqual([line for line in again if "head.scale" in line],
                         [match.string + "\n" for match in lines if match])

    def bytes_behind(self, tokens):
        """Of the first targets; documents begin with a token that stands for none."""
        sizes = [(self.folder / f"{i:02}.txt").stat().st_size for i in range(20)]
        starts = [sum(sizes[:i]) + i for i in range(20)]
        return tokens - sum(1 <= start <= tokens for start in starts)

    def test_eval_refuses(self):
        checkpoint = self.trained()
        damaged = bytearray(checkpoint.read_bytes())
        damaged[damaged.index(b"[optimizer]")] ^= 1  # in the deck
        (self.folder / "damaged.h5").write_bytes(damaged)
        (self.folder / "vocab.bpe").write_text("#version: 0.2\n")
        self.command("shard", "bpe", "00.txt", "--tokenizer", "vocab.bpe")
        (self.folder / "other.bpe").write_text("#version: 0.2\na b\n")
        for arguments, code, said in (
                (["damaged.h5"], 4, "damaged.h5: the checksum"),
                (["data.h5"], 4, "data.h5: is not a nanorun checkpoint"),
                ([checkpoint, "--data", "gone.h5"], 3, "gone.h5"),
                ([checkpoint, "--tokens", 1048576], 3, f" tokens in whole sequences of 256 for validation, not 1048576; give"),
                ([checkpoint, "--tokens", 100], 2, "--length"),
                ([checkpoint, "--length", 100], 2, "--length: \"100\": must be a multiple of 128"),
                ([checkpoint, "--data", "bpe.h5", "--tokens", 256, "--tokenizer", "other.bpe"], 3, "bpe.h5: ")):
            job = self.command("eval", *arguments, ranks=2, code=code)
            self.assert_refused(job, said)

    def test_eval_counts_the_bytes_of_tokens(self):
        """A token of the table stands for two bytes; without the table nobody knows."""
        self.train(2, "trace.enabled=false", "train.steps=1", "model.vocabulary=258")
        (self.folder / "vocab.bpe").write_text("#version: 0.2\na b\n")
        self.command("shard", "bpe", "00.txt", "--tokenizer", "vocab.bpe")
        evaluated = [self.checkpoint(1), "--data", "bpe.h5", "--tokens", 512]
        loss, _, bits = self.evaluate(*evaluated, "--tokenizer", "vocab.bpe")
        targets = (self.folder / "00.txt").read_text().replace("ab", "2")[:512]
        self.assertGreater(targets.count("2"), 0)
        self.assertAlmostEqual(bits, loss / 0.69314718 * 512 / (512 + targets.count("2")), 4)
        self.assertEqual(len(self.evaluate(*evaluated)), 2)

    def write_questions(self, name, questions):
        """A file of (context, endings, label), texts whose bytes are the tokens, in the format of llm.c."""
        stream, longest = b"", 0
        for index, (context, endings, label) in enumerate(questions):
            parts = [word for text in (context, *endings) for word in (len(text), *text)]
            longest = max(longest, 2 * (5 + len(parts)))
            stream += struct.pack(f"<{5 + len(parts)}H", 65535, 2 * (5 + len(parts)), index, label, 4, *parts)
        header = struct.pack("<256i", 20240522, 1, len(questions), longest, *[0] * 252)
        (self.folder / name).write_bytes(header + stream)

    def questions(self):
        """The right ending is of letters that the run has seen; the others are not, and of other lengths."""
        text = (self.folder / "00.txt").read_bytes()
        questions = []
        for i in range(10):
            right = text[500 + 20 * i:515 + 20 * i]
            endings = [bytes([150 + i]) * count for count in (5, 20, 40)]
            endings.insert(i % 4, right)
            questions.append((text[10 * i:10 * i + (300 if i == 7 else 20)], endings, i % 4))
        return questions

    def answers(self, checkpoint, name, *arguments, ranks=None):
        """Right answers by the sum of losses and by their mean, and what was printed."""
        text = "".join(self.command("eval", checkpoint, "--hellaswag", name, *arguments, ranks=ranks).output)
        by_sum, by_mean = (re.search(rf"^{key} +([\d.]+)  (\d+) of 10$", text, re.MULTILINE)
                           for key in ("acc", "acc_norm"))
        for found in (by_sum, by_mean):
            self.assertAlmostEqual(float(found[1]), int(found[2]) / 10)
        return int(by_sum[2]), int(by_mean[2]), text

    def test_eval_answers_questions(self):
        """The same on any number of ranks and with any length of sequences. A short ending of unlikely tokens may have
        the smaller sum of losses, but not the smaller mean."""
        checkpoint = self.trained()
        questions = self.questions()
        self.write_questions("q.bin", questions)
        by_sum, by_mean, text = self.answers(checkpoint, "q.bin")
        self.assertIn("step 12, 10 questions of q.bin, window 256\n", text)
        self.assertEqual(by_mean, 10)
        for arguments, ranks in (((), 3), (("--length", 1024), 2), (("--end-of-text", 256), None)):
            self.assertEqual(self.answers(checkpoint, "q.bin", *arguments, ranks=ranks), (by_sum, by_mean, text))
        self.write_questions("wrong.bin", [(context, endings, (label + 1) % 4) for context, endings, label in questions])
        self.assertEqual(self.answers(checkpoint, "wrong.bin")[1], 0)

    def test_eval_refuses_questions(self):
        checkpoint = self.trained()
        self.write_questions("q.bin", self.questions())
        whole = (self.folder / "q.bin").read_bytes()
        for name, damaged in (("cut.bin", whole[:-10]), ("label.bin", whole[:1030] + b"\4\0" + whole[1032:]),
                              ("empty.bin", b""), ("beyond.bin", whole[:1036] + b"\1\1" + whole[1038:])):
            (self.folder / name).write_bytes(damaged)
        for arguments, code, said in (
                (["--hellaswag", "gone.bin"], 3, "gone.bin: no such file"),
                (["--hellaswag", "data.h5"], 3, "data.h5: magic"),
                (["--hellaswag", "cut.bin"], 3, "cut.bin: question 9 is cut off"),
                (["--hellaswag", "label.bin"], 3, "label.bin: question 0 has the label 4"),
                (["--hellaswag", "beyond.bin"], 3, "beyond.bin: question 0 has the token 257, but the vocabulary"),
                (["--hellaswag", "empty.bin"], 3, "empty.bin: 0 bytes"),
                (["--hellaswag", "q.bin", "--end-of-text", 257], 2, "--end-of-text"),
                (["--hellaswag", "q.bin", "--length", 100], 2, "--length: \"100\""),
                (["--hellaswag", "q.bin", "--data", "data.h5"], 2, "--data"),
                (["--end-of-text", 5], 2, "--hellaswag")):
            self.assert_refused(self.command("eval", checkpoint, *arguments, ranks=2, code=code), said)

    def test_weights_begin_a_run(self):
        """Its validation before the first step is the last one of the run that made the weights."""
        checkpoint = self.trained()
        begun = ["run.name=begun", f"checkpoint.weights={checkpoint}", "window.first=256", "validation.every=4"]
        job = self.train(3, *begun, "train.steps=8", "train.sequences=3", "stop.step=6", code=75)
        self.assertIn(f"begins with the weights of {checkpoint}, step 12\n", job.output)
        self.assertIn(f"validation at step 0/8: loss {self.summary()['final_val_loss']:.5f} ", job.text())
        checkpoint.unlink()
        job = self.train(1, *begun, "train.steps=8", "train.sequences=3")
        self.assertIn("restarted from the checkpoint of step 6\n", job.output)

    def test_weights_refused(self):
        checkpoint = self.trained()
        begun = ["run.name=begun", f"checkpoint.weights={checkpoint}"]
        job = self.train(2, *begun, "model.mlp_ratio=2", "model.softcap=20", code=4)
        self.assert_refused(job, f"{checkpoint}: the weights of another model", "model.mlp_ratio: 4 -> 2",
                            "model.softcap: 15.0 -> 20.0")
        job = self.train(1, *begun, "checkpoint.restart=other.h5", code=2)
        self.assert_refused(job, "checkpoint.weights", "checkpoint.restart = other.h5")
        self.assert_refused(self.train(1, "checkpoint.weights=data.h5", "run.name=begun", code=4), "data.h5: is not")
        self.assertFalse((self.folder / "outputs/begun/checkpoints").exists())

    def test_dry_run_looks_at_the_weights(self):
        """It says what the run would say."""
        checkpoint = self.trained()
        tied = ["model.tied_head=true", "train.untie_step=5"]
        self.train(1, "run.name=parted", "trace.enabled=false", *tied)
        parted = self.run_folder().parent / "parted/checkpoints/checkpoint_00000012.h5"

        def planned(weights, *overrides):
            job = self.command("train", "deck.toml", "--dry-run", "run.name=begun",
                               f"checkpoint.weights={weights}", *overrides)
            self.assertEqual(job.messages(), [])
            said = [line.rstrip("\n") for line in job.output if re.match("begins with the weights|warning: ", line)]
            return [line for line in said if "trains on validation tokens too" not in line]

        self.assertEqual(planned(checkpoint), [f"begins with the weights of {checkpoint}, step 12"])
        self.assertEqual(planned(checkpoint, "model.softcap=20"),
                         [f"begins with the weights of {checkpoint}, step 12",
                          "warning: the model of these weights differs: model.softcap: 15.0 -> 20.0"])
        for weights, overrides, said in (("gone.h5", [], "gone.h5: no such file"),
                                         ("data.h5", [], "data.h5: is not a nanorun checkpoint"),
                                         ("00.txt", [], "00.txt: not an HDF5 file"),
                                         (checkpoint, ["model.mlp_ratio=2"], f"{checkpoint}: the weights of another"),
                                         (parted, tied, "its embedding is no copy of its head")):
            line, = planned(weights, *overrides)
            self.assertTrue(line.startswith("warning: "), line)
            self.assertIn(said, line)

    def sample(self, checkpoint, *arguments):
        return "".join(self.command("sample", checkpoint, *arguments).output)

    def test_sample(self):
        checkpoint = self.trained()
        drawn = ["--prompt", "abc de", "--tokens", 300, "--top-k", 8]  # longer than a sequence of training
        text = self.sample(checkpoint, *drawn)
        self.assertTrue(text.startswith("abc de"))
        self.assertEqual(len(text), 6 + 300 + 1)
        self.assertEqual(self.sample(checkpoint, *drawn), text)
        self.assertNotEqual(self.sample(checkpoint, *drawn, "--seed", 2), text)
        likeliest = self.sample(checkpoint, "--tokens", 50, "--temperature", 0)
        self.assertEqual(self.sample(checkpoint, "--tokens", 50, "--top-k", 1, "--seed", 3), likeliest)
        for arguments, ranks, said in ((["--tokens", 1], 2, "one rank"), (["--temperature", "nan"], None, "nan"),
                                       (["--temperature", "-1"], None, "-1")):
            self.assert_refused(self.command("sample", checkpoint, *arguments, ranks=ranks, code=2), said)

    def trained_on_tokens(self):
        """The last checkpoint of a short run on shards of the table vocab.bpe; other.bpe is another of its size."""
        (self.folder / "vocab.bpe").write_text("#version: 0.2\na b\n")
        (self.folder / "other.bpe").write_text("#version: 0.2\nb a\n")
        self.command("shard", "bpe", *(f"{i:02}.txt" for i in range(20)), "--tokenizer", "vocab.bpe")
        self.train(2, "trace.enabled=false", "model.vocabulary=258", 'data.train=["bpe.h5"]',
                   'data.validation=["bpe.h5"]')
        return self.checkpoint(12)

    def test_another_tokenizer_is_refused(self):
        """The checkpoint knows what its shards were encoded with, also where the model was exported in between."""
        checkpoint = self.trained_on_tokens()
        self.command("shard", "other", "00.txt", "--tokenizer", "other.bpe")
        self.command("export", checkpoint, "model", "--end-of-text", 257)
        self.command("import", "model", "back.h5")
        for path in (checkpoint, "back.h5"):
            self.verify(path)
            said = f"other.bpe: is of another tokenizer than the model of {path}: bpe-258 with checksum "
            job = self.command("sample", path, "--tokens", 5, "--tokenizer", "other.bpe", code=3)
            self.assert_refused(job, said)
            job = self.command("export", path, "again", "--tokenizer", "other.bpe", code=3)
            self.assert_refused(job, said)
            self.assertFalse((self.folder / "again").exists())
            job = self.command("eval", path, "--data", "other.h5", "--tokens", 256, "--length", 256, code=3)
            self.assert_refused(job, f"other.h5: is of another tokenizer than the model of {path}: ",
                                "--allow-other-tokenizer")
            for key in ("weights", "restart"):
                job = self.command("train", "deck.toml", "--dry-run", "run.name=begun", "model.vocabulary=258",
                                   "data.train=other.h5", "validation.tokens=0", f"checkpoint.{key}={path}")
                self.assertIn(f"warning: other.h5: is of another tokenizer than the model of {path}: ", job.text())
            job = self.command("eval", path, "--data", "other.h5", "--tokens", 256, "--length", 256,
                               "--allow-other-tokenizer")
            self.assertIn(f"nanorun: warning: other.h5: is of another tokenizer than the model of {path}: ", job.text())
            self.assertIn("\nloss ", job.text())
            self.sample(path, "--tokens", 5, "--tokenizer", "vocab.bpe")
            self.command("eval", path, "--data", "bpe.h5", "--tokens", 256, "--length", 256)

    def test_shards_of_two_tokenizers_are_refused(self):
        self.trained_on_tokens()
        self.command("shard", "other", "00.txt", "--tokenizer", "other.bpe")
        job = self.train(2, "run.name=mixed", "model.vocabulary=258", 'data.train=["bpe.h5"]',
                         'data.validation=["other.h5"]', code=3)
        self.assert_refused(job, "other.h5: is of another tokenizer than bpe.h5", "data.allow_other_tokenizer")
        # Behind a shard that records none.
        (self.folder / "none.bin").write_bytes(struct.pack("<256i", 20240520, 1, 5000, *[0] * 253) + bytes(10000))
        self.command("shard", "none", "none.bin", "--vocabulary", 258, "--end-of-text", 257)
        mixed = ("run.name=mixed", "model.vocabulary=258", 'data.train=["none.h5", "bpe.h5", "other.h5"]',
                 "train.steps=60", "validation.tokens=0")
        job = self.train(2, *mixed, code=3)
        self.assert_refused(job, "other.h5: is of another tokenizer than bpe.h5", "data.allow_other_tokenizer")
        self.assertIn("warning: other.h5: is of another tokenizer",
                      self.train(2, *mixed, "data.allow_other_tokenizer=true").text())

    def test_table_of_another_vocabulary_is_warned_of(self):
        """Where the checkpoint does not know its tokenizer."""
        (self.folder / "none.bin").write_bytes(struct.pack("<256i", 20240520, 1, 9000, *[0] * 253) + bytes(18000))
        self.command("shard", "none", "none.bin", "--vocabulary", 258, "--end-of-text", 257)
        self.train(2, "model.vocabulary=384", 'data.train=["none.h5"]', "validation.tokens=0", "train.steps=2")
        (self.folder / "bytes.bpe").write_text("#version: 0.2\n")
        (self.folder / "vocab.bpe").write_text("#version: 0.2\na b\n")
        sampled = ("sample", self.checkpoint(2), "--tokens", 2, "--tokenizer")
        self.assertIn(f"nanorun: warning: bytes.bpe has a vocabulary of 257 and the end-of-text token 256, the model of "
                      f"{self.checkpoint(2)} has a vocabulary of 258 and the end-of-text token 257: they may be of "
                      "different tokenizers", self.command(*sampled, "bytes.bpe").messages())
        self.assertEqual(self.command(*sampled, "vocab.bpe").messages(), [])

    def test_model_meets_tokens_of_another_tokenizer(self):
        """As weights, where it goes on, and in validations; shards that record none are judged by their vocabulary."""
        checkpoint = self.trained_on_tokens()
        self.command("shard", "other", *(f"{i:02}.txt" for i in range(20)), "--tokenizer", "other.bpe")
        begun = ("run.name=begun", "model.vocabulary=258", f"checkpoint.weights={checkpoint}", "validation.tokens=0",
                 "train.steps=2")
        of = f" is of another tokenizer than the model of {checkpoint}: "
        job = self.train(2, *begun, 'data.train=["other.h5"]', code=3)
        self.assert_refused(job, "other.h5:" + of, "data.allow_other_tokenizer")
        job = self.train(2, *begun, 'data.train=["other.h5"]', "data.allow_other_tokenizer=true")
        self.assertIn("\nwarning: other.h5:" + of, job.text())
        job = self.train(2, *begun, 'data.train=["data.h5"]', "run.name=bytes")  # vocabulary 257
        self.assertIn(f"\nwarning: data.h5 has a vocabulary of 257 and the end-of-text token 256, the model of {checkpoint} "
                      "has a vocabulary of 258 and the end-of-text token 257: they may be of different tokenizers\n",
                      job.text())
        job = self.command("eval", checkpoint, "--data", "data.h5", "--tokens", 256, "--length", 256)
        self.assertIn("nanorun: warning: data.h5 has a vocabulary of 257 and ", job.text())
        job = self.command("eval", checkpoint)
        self.assertNotIn("warning", job.text())

        continued = ("run.name=continued", "model.vocabulary=258", 'data.train=["other.h5"]', "data.changed=accept",
                     f"checkpoint.restart={checkpoint}", "validation.tokens=0", "train.steps=14")
        job = self.train(2, *continued, code=3)
        self.assert_refused(job, "other.h5:" + of, "data.allow_other_tokenizer")
        job = self.train(2, *continued, "data.allow_other_tokenizer=true")
        self.assertIn("\nwarning: other.h5:" + of, job.text())

    def test_sample_with_a_tokenizer(self):
        """Without one the tokens of another vocabulary mean nothing."""
        self.trained_on_tokens()
        job = self.command("sample", self.checkpoint(12), code=2)
        self.assert_refused(job, "vocabulary of 258", "--tokenizer")
        text = self.sample(self.checkpoint(12), "--prompt", "abab", "--tokens", 40, "--tokenizer", "vocab.bpe",
                           "--top-k", 3)
        self.assertTrue(text.startswith("abab"))
        self.assertLessEqual(set(text.rstrip("\n")), set("abcdefghij "))


if __name__ == "__main__":
    small_run.main()
