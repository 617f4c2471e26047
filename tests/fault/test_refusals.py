"""Files and decks that are refused: one line says what they are and what to do."""

import shutil

from harness import FaultTest, Job, small_run


class Refusals(FaultTest):
    def test_verify_trace(self):
        self.train(1, "train.steps=1")
        trace = self.run_folder() / "trace.h5"
        self.assert_refused(self.verify(trace, code=3), f"{trace}: a trace, not a token shard or checkpoint")

    def test_verify_foreign(self):
        """Without its mark a shard is any other program's HDF5 file."""
        import h5py
        import numpy

        foreign = self.folder / "foreign.h5"
        shutil.copy(self.folder / "data.h5", foreign)
        with h5py.File(foreign, "r+") as file:
            file.attrs["format"] = numpy.bytes_("another token shard")
        self.assert_refused(self.verify(foreign, code=3), f"{foreign}: not a nanorun file")
        with h5py.File(foreign, "r+") as file:
            del file.attrs["format"]
        self.assert_refused(self.verify(foreign, code=3), f"{foreign}: not a nanorun file")

    def test_verify_text(self):
        said = "deck.toml: not an HDF5 file, so neither a token shard, a checkpoint nor a trace"
        self.assert_refused(self.verify("deck.toml", code=3), said)
        self.assert_refused(self.train(1, 'data.train=["deck.toml"]', code=3), said)
        self.assert_refused(self.train(1, "checkpoint.restart=deck.toml", code=4), said)

    def test_verify_goes_on(self):
        """A line on each file, and the code of the first error."""
        self.train(1, "train.steps=1")
        damaged = bytearray(self.checkpoint(1).read_bytes())
        damaged[damaged.index(b"[optimizer]")] ^= 1  # in the deck
        (self.folder / "damaged.h5").write_bytes(damaged)
        for first, second, code in (("damaged.h5", "deck.toml", 4), ("deck.toml", "damaged.h5", 3)):
            job = Job(self.folder, 2, ["verify", first, "data.h5", second, self.checkpoint(1)])
            self.assertEqual(job.wait(), code, job.text())
            self.assertEqual("".join(job.output), f"data.h5: verified\n{self.checkpoint(1)}: verified\n")
            self.assertEqual([line.split(":")[:2] for line in job.messages()],
                             [["nanorun", f" {path}"] for path in (first, second)])

    def test_directory_for_a_file(self):
        self.train(1, "train.steps=1")
        said = "outputs: a directory; name a file in it"
        self.assert_refused(self.verify("outputs", code=3), said)
        self.assert_refused(self.train(2, 'data.train=["outputs"]', code=3), said)
        job = self.train(2, "checkpoint.restart=outputs", code=4)
        self.assert_refused(job, f'checkpoint.restart = {said} or use "auto"')

    def test_list_of_find_print0(self):
        (self.folder / "list.txt").write_bytes(b"00.txt\0" b"01.txt\0")
        job = Job(self.folder, 2, ["shard", "out", "--text", "--list", "list.txt"])
        self.assertEqual(job.wait(), 2, job.text())
        self.assert_refused(job, "list.txt: holds zero bytes", "one file per line")

    def test_empty_list(self):
        (self.folder / "empty.txt").write_text("\n\n")
        job = Job(self.folder, 2, ["shard", "out", "--text", "--list", "empty.txt"])
        self.assertEqual(job.wait(), 2, job.text())
        self.assert_refused(job, "empty.txt: the list names no files")

    def test_out_of_memory(self):
        """A model of petabytes. Every rank finds that out for itself, and one says it."""
        for ranks, who in ((1, "rank 0: "), (4, "rank ")):
            job = self.train(ranks, "model.width=16384", "model.heads=512", "model.head_dim=32", "model.layers=1024",
                             "model.mlp_ratio=64", code=1)
            self.assert_refused(job, f"nanorun: {who}", ": out of memory for the weights, ", "model.layers")

    def test_all_errors_of_a_deck(self):
        """A line each, in the order of the deck and the overrides; then those of keys that do not fit together."""
        deck = self.folder / "deck.toml"
        good = deck.read_text()
        deck.write_text("[zoo]\n" + good + "muon_rate = 1\n[optimizer]\nmuon_rate = 1\n")
        job = self.train(2, "run.outputs='~/x'", "checkpoint.restart=AUTO", "data.train=[a.h5]", code=2)
        last = len(deck.read_text().splitlines())
        beginnings = ["deck.toml:1: unknown section [zoo]; ", f"deck.toml:{last - 2}: unknown key data.muon_rate; ",
                      f"deck.toml:{last}: unknown key optimizer.muon_rate; ", "override run.outputs='~/x': run.outputs: ",
                      "override checkpoint.restart=AUTO: ", "override data.train=[a.h5]: "]
        self.assertEqual(len(job.messages()), len(beginnings), job.messages())
        for line, beginning in zip(job.messages(), beginnings):
            self.assertTrue(line.startswith("nanorun: " + beginning), line)
        deck.write_text(good)
        job = self.train(2, "model.width=64", "window.layers=LS", "data.validation=[]", code=2)
        self.assertEqual([line.split(": ")[:2] for line in job.messages()],
                         [["nanorun", f"override {key}"] for key in ("model.width=64", "window.layers=LS",
                                                                     "data.validation=[]")])
        self.assertFalse((self.folder / "outputs").exists())

    def test_dry_run_refuses_what_the_run_refuses(self):
        """Paths that are too long, and a working directory that is gone."""
        long = "x" * 300
        gone = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]
        deck = self.folder / "deck.toml"
        for overrides, wrapper, code, said in (
                ([f"run.name={long}"], (), 7, "File name too long"),
                (["run.outputs=" + "/".join(["deep"] * 820)], (), 7, "File name too long"),
                ([f"stop.file={long}"], (), 7, "File name too long"),
                ([f"checkpoint.restart={long}/c.h5"], (), 4, "File name too long"),
                ([], gone, 2, "the working directory cannot be found")):
            lines = []
            for dry in ((), ("--dry-run",)):
                job = Job(self.folder, None, ["train", deck, *overrides, *dry], wrapper)
                self.assertEqual(job.wait(), code, job.text())
                self.assert_refused(job, said)
                lines.append(job.messages())
            self.assertEqual(*lines)
        self.assertFalse((self.folder / "outputs").exists())
        self.assertFalse((self.folder / "deep").exists())

    def test_ranks_with_different_commands(self):
        (self.folder / "other.toml").write_text((self.folder / "deck.toml").read_text())
        first = ["train", "deck.toml", "train.steps=1"]
        for second, given in ((["train", "other.toml", "train.steps=1"], '"other.toml"'),
                              (["train", "deck.toml", "train.steps=2"], '"train.steps=2"'),
                              (["train", "deck.toml"], "nothing"), (["keys"], '"keys"'), (["--version"], '"--version"')):
            job = Job(self.folder, 2, [*first, ":", "-n", 1, small_run.PROGRAM, *second])
            self.assertEqual(job.wait(), 2, job.text())
            self.assert_refused(job, f"nanorun: rank 2 was started with {given} where rank 0 was started with ")
            self.assertEqual(job.output, [])
        self.assertFalse((self.folder / "outputs").exists())

    def test_variables_that_cannot_be(self):
        """One line in all, which names the rank where rank 0 has another value."""
        for name, value, allowed in (("NANORUN_TIER", "7.5", "8.0, 8.9 or 9.0"),
                                     ("NANORUN_TIER", "a\nb", "8.0, 8.9 or 9.0"),
                                     ("NANORUN_SM_SHARED_KB", "300", "a whole number from 100 to 228")):
            said = f"{name}={value}: must be {allowed}".replace("\n", "\\n")
            for ranks, command in ((None, ["train", "deck.toml"]), (4, ["train", "deck.toml"]), (None, ["info"])):
                job = Job(self.folder, ranks, command, ["env", f"{name}={value}"])
                self.assertEqual(job.wait(), 2, job.text())
                self.assertEqual((job.messages(), job.output), ([f"nanorun: {said}"], []))
        job = Job(self.folder, 1, ["train", "deck.toml", ":", "-n", 2, "env", f"{name}={value}", small_run.PROGRAM,
                                   "train", "deck.toml"])
        self.assertEqual(job.wait(), 2, job.text())
        self.assert_refused(job, "nanorun: rank 1 on node ", f": {said}")
        self.assertFalse((self.folder / "outputs").exists())

    def test_keys_that_do_not_fit(self):
        job = self.train(1, "model.width=64", code=2)
        self.assert_refused(job, "nanorun: override model.width=64: model.width = 64 must equal")
        deck = self.folder / "deck.toml"
        line = deck.read_text().splitlines().index("width = 32") + 1
        deck.write_text(deck.read_text().replace("width = 32", "width = 64"))
        self.assert_refused(self.train(1, code=2), f"nanorun: deck.toml:{line}: model.width = 64 must equal")


if __name__ == "__main__":
    small_run.main()
