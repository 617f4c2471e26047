"""Token shards that change while a run reads them."""

import array
import os
import random
import shutil
import struct

import harness
from harness import FaultTest, Job, losses, restarted_from, small_run

# The small deck's keys that stages replace, at their defaults.
UNSTAGED = ("train.length=49152", "window.first=0", "window.last=1728", "window.kind=token")


class Data(FaultTest):
    arguments = ("train.steps=60", "checkpoint.every=10")

    def assert_survives(self, damage, reason):
        """`damage` harms the shard during a run; with the shard as it was, the run resumes and ends bit-identically."""
        shard, kept = self.folder / "data.h5", self.folder / "kept.h5"
        shutil.copy(shard, kept)
        whole = self.train(2, *self.arguments, "run.name=whole")

        job = self.start(2, *self.arguments)
        job.until_step(12)
        damage(shard)
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, "data.h5", reason)
        self.assertLess(max(losses(job)), 60)
        newest = self.files()[-1]
        self.verify(self.run_folder() / "checkpoints" / newest)

        shutil.copy(kept, shard)
        again = self.train(2, *self.arguments)
        self.assertEqual(newest, self.checkpoint(restarted_from(again)).name)
        for step, loss in losses(again).items():
            self.assertEqual(loss, losses(whole)[step])
        summaries = [harness.json.loads((self.folder / "outputs" / name / "summary.json").read_text())
                     for name in ("run", "whole")]
        self.assertEqual(*(summary["final_train_loss"] for summary in summaries))

    def test_shard_vanishes(self):
        self.assert_survives(lambda shard: shard.unlink(), "No such file or directory")

    def test_shard_is_truncated(self):
        self.assert_survives(lambda shard: os.truncate(shard, shard.stat().st_size // 2), "changed while the run")

    def test_bad_token_of_one_rank(self):
        """The step that reads it fails on all ranks; the one before, during which it was read, is kept."""
        step, sequence, position = 7, 2, 100  # sequences 2 and 3 of a step are rank 1's
        token = (4 * step + sequence) * 256 + position
        shard = self.folder / "data.h5"
        content = bytearray(shard.read_bytes())
        text = (self.folder / "00.txt").read_text()[:100].encode("utf-16-le")
        first = content.index(text) - 2  # a document begins with a token of its own
        content[first + 2 * token:first + 2 * token + 2] = b"\xff\xff"
        shard.write_bytes(content)

        job = self.train(2, *self.arguments, "checkpoint.every=1", "validation.tokens=0", code=3)
        self.assert_refused(job, "data.h5", token, 65535)
        self.assertEqual(max(losses(job)), step)
        self.assertEqual(self.files()[-1], self.checkpoint(step).name)
        self.assertEqual(self.summary()["steps"], step)

    def test_validation_shard_vanishes(self):
        """What a validation cannot read ends the run, but not without a checkpoint of the steps that were made."""
        shard = self.folder / "val.h5"
        shutil.copy(self.folder / "data.h5", shard)
        job = self.start(2, "train.steps=400", "checkpoint.at_end=false", "validation.every=0",
                         'data.validation=["val.h5"]')
        job.until_step(12)
        shard.unlink()
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, "val.h5", "No such file or directory")
        self.assertEqual(self.files(), [self.checkpoint(400).name])
        self.verify(self.checkpoint(400))
        self.assertEqual(self.summary()["steps"], 400)
        self.assertIn("val.h5", self.summary()["stopped_by"])

    def test_bin_files_train_as_their_shards_do(self):
        """The same losses; a run does not change from one kind of file to the other unasked."""
        tokens = array.array("H", random.Random(0).choices(range(200), k=20000)).tobytes()
        for name in ("a.bin", "b.bin"):
            (self.folder / name).write_bytes(struct.pack("<256i", 20240520, 1, 10000, *[0] * 253) + tokens[:20000])
            tokens = tokens[20000:]
        self.assertEqual(Job(self.folder, 2, ["shard", "c", "a.bin", "b.bin"]).wait(), 0)
        bins, shards = ([f'data.{key}=["{names}"]' for key in ("train", "validation")]
                        for names in ("*.bin", "c_*.h5"))
        arguments = ("model.vocabulary=50304", "train.sequences=2", "train.length=128", "validation.tokens=0")
        whole = self.train(2, *arguments, *shards, "run.name=whole")
        first = self.train(2, *arguments, *bins, "stop.step=4", code=75)
        self.assertEqual(losses(first), {step: loss for step, loss in losses(whole).items() if step <= 4})
        self.assert_refused(self.train(2, *arguments, *shards, code=3), "a.bin", "c_000000.h5", "data.changed")
        second = self.train(2, *arguments, *bins)
        self.assertEqual(restarted_from(second), 4)
        self.assertEqual(losses(first) | losses(second), losses(whole))
        job = self.start(2, *arguments, *bins, "run.name=other", "train.steps=100000", "data.end=wrap")
        job.until_step(2)
        os.truncate(self.folder / "b.bin", 20000)
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, "b.bin")
        job = self.train(2, *arguments, *bins, "train.steps=60", code=3)
        self.assert_refused(job, "b.bin: 10000 tokens need 21024 bytes, but the file has 20000")

    def test_packed_documents_of_two_stages(self):
        """The run goes on from any step with the sequences that it would have had, also on other ranks; it ends with a
        checkpoint where the documents do, sooner than tokens without gaps would."""
        draw = random.Random(1)
        texts = [f"short_{i:03}.txt" for i in range(300)]
        for text in texts:
            (self.folder / text).write_text("".join(draw.choices("abc ", k=draw.randint(20, 400))))
        self.assertEqual(Job(self.folder, 1, ["shard", "short.h5", *texts, "--text"]).wait(), 0)
        stage = '[[stage]]\nshare = 0.5\nlength = {}\nlongest_document = {}\nshort_window = 64\nlong_window = 128\n'
        with (self.folder / "deck.toml").open("a") as deck:
            deck.write(stage.format(128, 60) + stage.format(256, 150))
        arguments = (*UNSTAGED, "data.train=short.h5", "data.packing=documents", "data.end=error",
                     "validation.tokens=0")
        whole = self.train(2, *arguments, "run.name=whole")
        estimate = r"\ndocuments: 12 steps train on 9216 tokens, .* about \d+ of the \d+ that are left\n"
        self.assertRegex(whole.text(), estimate)
        self.assertRegex(self.train(2, *arguments, "--dry-run").text(), estimate)
        found = {}
        for ranks, stop in ((1, 3), (2, 8), (4, 0)):
            job = self.train(ranks, *arguments, f"stop.step={stop}", code=75 if stop else 0)
            found |= losses(job)
        self.assertEqual(found.keys(), losses(whole).keys())
        for step, loss in losses(whole).items():
            self.assertAlmostEqual(found[step], loss, delta=2e-5)

        job = self.train(2, *arguments, "run.name=long", "train.steps=60", code=3)
        self.assertIn("\nwarning: the documents seem to last for about ", job.text())
        self.assert_refused(job, "short.h5: its documents do not fill step ", "data.end")
        last = max(losses(job))
        self.assertLess(last, 60)
        kept = sorted((self.folder / "outputs" / "long" / "checkpoints").iterdir())[-1]
        self.assertEqual(kept.name, f"checkpoint_{last:08}.h5")
        self.assert_refused(self.train(2, *arguments, "run.name=longer", "train.steps=4000", code=3), "the data end at")

    def test_prefixes_of_tokens_count_in_the_loss(self):
        """A model that knows nothing has the loss ln 384 = 5.95 for each target; many tokens have a prefix."""
        merges = ["a b", "c d", "e f", "ab cd", "g h", "i j"]
        (self.folder / "merges.txt").write_text("".join(f"{merge}\n" for merge in merges))
        (self.folder / "other.txt").write_text("".join(f"{merge}\n" for merge in merges[:-1] + ["j i"]))
        texts = sorted(path.name for path in self.folder.glob("[01]?.txt"))
        shard = Job(self.folder, 1, ["shard", "bpe.h5", *texts, "--tokenizer", "merges.txt"])
        self.assertEqual(shard.wait(), 0, shard.text())
        with (self.folder / "deck.toml").open("a") as deck:
            deck.write("[[stage]]\nshare = 1\nlength = 256\nshort_window = 64\nlong_window = 128\nprefix = 0.5\n")
        arguments = (*UNSTAGED, "data.train=bpe.h5", "validation.tokens=0", "model.vocabulary=263", "train.steps=1")
        with_prefix = losses(self.train(2, *arguments, "data.prefix_table=merges.txt", "run.name=with"))[1]
        deck = (self.folder / "deck.toml").read_text()
        job = self.train(2, *arguments, "data.prefix_table=other.txt", code=3)
        self.assert_refused(job, "data.prefix_table = other.txt: is of another tokenizer than bpe.h5: ")
        self.assertIn("\nwarning: data.prefix_table = other.txt: is of another tokenizer",
                      self.train(2, *arguments, "data.prefix_table=other.txt", "--dry-run").text())
        (self.folder / "deck.toml").write_text(deck.replace("prefix = 0.5\n", ""))
        without = losses(self.train(2, *arguments, "run.name=without"))[1]
        self.assertGreater(with_prefix, without + 0.1)
        self.assertLess(with_prefix, 1.5 * without)

    def test_validation_on_training_tokens_is_warned_of(self):
        """Whatever the file is called, but not where the shards differ."""
        shutil.copy(self.folder / "data.h5", self.folder / "val.h5")
        job = self.train(2, 'data.validation=["val.h5"]', "train.steps=1")
        self.assertIn("\nwarning: the run trains on validation tokens too: val.h5 is in data.train, there as data.h5; its "
                      "loss is that of known text\n", job.text())
        other = Job(self.folder, 1, ["shard", "other", *(f"{i:02}.txt" for i in range(19)), "--text"])
        self.assertEqual(other.wait(), 0, other.text())
        job = self.train(2, 'data.validation=["other.h5"]', "train.steps=1", "run.name=other")
        self.assertNotIn("warning: the run trains", job.text())

    def test_one_long_document_is_not_packed(self):
        """No estimate stands before that; the message says what fits."""
        (self.folder / "long.txt").write_text("".join((self.folder / f"{i:02}.txt").read_text() for i in range(20)))
        job = Job(self.folder, 1, ["shard", "long", "long.txt", "--text"])
        self.assertEqual(job.wait(), 0, job.text())
        arguments = ("data.train=long.h5", "data.packing=documents", "train.steps=1", "validation.tokens=0")
        said = ("the training shards have 1 document, which does not fill the 4 sequences of 256 tokens of one step in any "
                "shard: data.packing = \"documents\" begins each sequence with another document; data.packing = \"stream\" "
                "fits, it takes all tokens one after the other")
        for end in ("error", "wrap"):
            job = self.train(2, *arguments, f"data.end={end}", code=3)
            self.assert_refused(job, said)
            self.assertNotIn("documents: ", job.text())
            planned = self.train(2, *arguments, f"data.end={end}", "--dry-run").text()
            self.assertIn(f"\nwarning: {said}\n", planned)
            self.assertNotIn("\ndocuments: ", planned)
        self.train(2, *arguments, "data.packing=stream")

    def test_no_validation_needs_no_shards(self):
        arguments = ('data.validation=["absent.h5"]', "validation.tokens=0", "train.steps=1")
        self.assertEqual(self.train(2, *arguments).messages(), [])
        self.assertNotIn("warning", self.train(2, *arguments, "--dry-run").text())

    def test_all_missing_shards_are_named(self):
        """Those of training and validation at once."""
        job = self.train(2, 'data.train=["gone.h5", "data.h5", "none*.h5"]', 'data.validation=["absent.h5"]', code=3)
        self.assertEqual(job.messages(),
                         [f"nanorun: {name}: no such file" for name in ("gone.h5", "none*.h5", "absent.h5")])

    def test_shards_behind_the_last_step_are_not_opened(self):
        os.mkfifo(self.folder / "fifo.h5")
        data = ('data.train=["data.h5", "absent.h5", "fifo.h5"]', "data.end=error")
        self.assert_refused(self.train(2, *data, code=3), "absent.h5: no such file")
        (self.folder / "absent.h5").write_text("no shard")
        whole = losses(self.train(2, "data.end=error", "run.name=whole"))
        self.assertEqual(losses(self.train(2, *data)), whole)
        warned = [line for line in self.train(2, *data, "--dry-run").output if "warning" in line]
        self.assertEqual(warned, ["warning: the run trains on validation tokens too: data.h5 is in data.train; its loss "
                                  "is that of known text\n"])
        self.assert_refused(self.train(2, *data, "train.steps=1000", code=3), "absent.h5: not an HDF5 file")
        self.assertIn("\nwarning: absent.h5: not an HDF5 file",
                      self.train(2, *data, "train.steps=1000", "--dry-run").text())

    def test_progress_of_slow_opening(self):
        """Ten seconds without a word are enough."""
        shard, other = self.folder / "data.h5", self.folder / "other.h5"
        shutil.copy(shard, other)
        job = self.train(1, f'data.train=["{shard}", "{other}"]', "train.steps=60", "stop.step=1", code=75,
                         wrapper=self.injecting(shard, "openat:delay_enter=11000000:when=1"))
        self.assertIn("nanorun: opened 1 of at most 2 token shards", job.messages())

    def test_unreadable_shard_costs_no_step(self):
        """Without any checkpoint so far the run leaves one of the steps that it has made; names need not be UTF-8."""
        shard = os.fsencode(self.folder / "many") + b"/a\xe9.h5"
        (self.folder / "many").mkdir()
        shutil.copy(self.folder / "data.h5", shard)
        arguments = ('data.train=["many/*.h5"]', "train.steps=100000")
        job = self.start(2, *arguments)
        job.until_step(12)
        os.truncate(shard, 3000)
        self.assertEqual(job.wait(), 3, job.text())
        self.assertIn("changed while the run", job.text())
        made = max(losses(job))
        self.assertEqual(self.files(), [self.checkpoint(made).name])
        self.assertEqual(self.summary()["steps"], made)
        shutil.copy(self.folder / "data.h5", shard)
        self.assertEqual(restarted_from(self.train(2, *arguments, f"stop.step={made + 1}", code=75)), made)

    def test_shards_that_were_not_opened_change(self):
        """Only what is added behind them changes nothing, wherever the directory lies."""
        (self.folder / "many").mkdir()
        for i in (1, 3, 4):
            self.shard(f"part_{i}", "00.txt", "01.txt", "02.txt")
        arguments = ('data.train=["many/*.h5"]', "train.steps=4", "data.end=error")
        self.train(2, *arguments, "stop.step=1", code=75)
        many, moved = self.folder / "many", self.folder / "moved"

        def assert_refused(*said):
            refused = self.train(2, *arguments, code=3)
            self.assert_refused(refused, *said, "data.changed")
            self.assertEqual(losses(refused), {})

        (many / "part_4.h5").rename(many / "part_5.h5")
        assert_refused("part_4.h5, was renamed or replaced: part_5.h5")
        (many / "part_5.h5").rename(moved)
        assert_refused("part_4.h5, is no longer listed")
        moved.rename(many / "part_4.h5")
        self.shard("part_2", "00.txt")
        assert_refused("part_3.h5, comes later now: part_2.h5 was added before it")
        (many / "part_2.h5").rename(many / "part_6.h5")
        many.rename(moved)
        more = self.train(2, 'data.train=["moved/*.h5"]', *arguments[1:], "stop.step=2", code=75)
        self.assertEqual(restarted_from(more), 1)
        self.assertIn("1 training shard was added behind the 3 known ones", more.text())
        (moved / "part_6.h5").unlink()
        self.assertEqual(restarted_from(self.train(2, 'data.train=["moved/*.h5"]', *arguments[1:],
                                                   "data.changed=accept")), 2)

    def shard(self, name, *texts):
        job = Job(self.folder, 1, ["shard", f"many/{name}", *texts, "--text", "--force"])
        self.assertEqual(job.wait(), 0, job.text())

    def test_shards_changed_between_runs(self):
        """The cursor counts shards, so a restart knows them; only what is added behind them changes nothing."""
        (self.folder / "many").mkdir()
        for i in (1, 2, 3):
            self.shard(f"part_{i}", *(f"{4 * i + j:02}.txt" for j in range(4)))
        arguments = ('data.train=["many/*.h5"]', "train.steps=30")
        self.train(2, *arguments, "stop.step=10", code=75)

        self.shard("part_4", "00.txt", "01.txt")
        more = self.train(2, *arguments, "stop.step=12", code=75)
        self.assertEqual(restarted_from(more), 10)
        self.assertIn("1 training shard was added behind the 3 known ones", more.text())

        self.shard("part_0", "02.txt", "03.txt")
        refused = self.train(2, *arguments, code=3)
        self.assert_refused(refused, "part_0.h5", "part_1.h5", "data.changed")
        self.assertEqual(losses(refused), {})
        (self.folder / "many" / "part_0.h5").unlink()

        self.shard("part_2", "16.txt", "17.txt")
        self.assert_refused(self.train(2, *arguments, code=3), "part_2.h5", "data.changed")
        accepted = self.train(2, *arguments, "data.changed=accept", "stop.step=14", code=75)
        self.assertEqual(restarted_from(accepted), 12)
        self.assertIn("part_2.h5", accepted.text())
        self.assertEqual(restarted_from(self.train(2, *arguments, "stop.step=16", code=75)), 14)

    def test_path_too_long_for_a_shared_file(self):
        job = Job(self.folder, 2, ["shard", "x" * 240, "00.txt", "--text"])
        self.assertEqual(job.wait(), 7, job.text())
        self.assert_refused(job, "too long")
        self.assertEqual(list(self.folder.glob("xxx*")), [])


if __name__ == "__main__":
    small_run.main()
