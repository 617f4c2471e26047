"""What shard and export write takes the place of nothing."""

import os
import shutil
import stat

from harness import FaultTest, Job, small_run


class Outputs(FaultTest):
    def job(self, *arguments, code=0, ranks=2):
        job = Job(self.folder, ranks, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def assert_kept(self, arguments, path, *said):
        """The command is refused, with and without --force, and what stands at the path stays."""
        def state():
            status = path.lstat()
            return stat.S_IFMT(status.st_mode), status.st_ino, path.read_bytes() if path.is_file() else None

        before, names = state(), sorted(os.listdir(self.folder))
        for force in ((), ("--force",)):
            self.assert_refused(self.job(*arguments, *force, code=7, ranks=None), path.name, *said)
            self.assertEqual(state(), before)
            self.assertEqual(sorted(os.listdir(self.folder)), names)

    def test_existing_output_needs_force(self):
        taken = self.folder / "taken.h5"
        for command in (("export", "data.h5", "taken.h5"), ("shard", "taken", "00.txt", "--text")):
            taken.write_text("precious")
            self.assert_refused(self.job(*command, code=7), "taken.h5: exists", "--force")
            self.assertEqual(taken.read_text(), "precious")
            self.job(*command, "--force")
            self.assertNotEqual(taken.read_bytes()[:8], b"precious")

    def test_one_of_several_shards_exists(self):
        """Nothing is written before all names are known to be free."""
        (self.folder / "many_000001.h5").write_text("precious")
        arguments = ("shard", "many", "00.txt", "--text", "--tokens-per-shard", 1000)
        self.assert_refused(self.job(*arguments, code=7), "many_000001.h5: exists")
        self.assertFalse((self.folder / "many_000000.h5").exists())

    def test_stale_shards_are_not_left_among_new_ones(self):
        """A pattern in a deck would match both; what the user may need is the user's to remove."""
        texts = [f"{i:02}.txt" for i in range(9)]
        size = sum((self.folder / text).stat().st_size + 1 for text in texts)
        several = ("shard", "many", *texts, "--text", "--tokens-per-shard", size // 3 + 1)
        self.job(*several)
        before = {path: path.read_bytes() for path in sorted(self.folder.glob("many*"))}
        self.assertEqual([path.name for path in before], [f"many_00000{i}.h5" for i in range(3)])
        two = ("shard", "many", *texts, "--text", "--tokens-per-shard", size // 2 + 1, "--force")
        self.assert_refused(self.job(*two, code=7), "many: a shard left by an earlier", "many_000002.h5", "remove")
        one = ("shard", "many.h5", *texts, "--text", "--force")
        self.assert_refused(self.job(*one, code=7), "many.h5: 3 shards", "many_000000.h5 to many_000002.h5", "remove")
        self.assertEqual({path: path.read_bytes() for path in sorted(self.folder.glob("many*"))}, before)

        self.job(*several, "--force")
        (self.folder / "many_000002.h5").unlink()
        self.job(*two)
        for path in before:
            path.unlink(missing_ok=True)
        self.job(*one)
        self.assert_refused(self.job(*several, code=7), "many: a shard left", "many.h5")
        # Names that the command would not give are none of its shards.
        (self.folder / "many.h5").rename(self.folder / "many_more.h5")
        (self.folder / "many_12.h5").write_text("notes")
        self.job(*several)

    def test_input_is_no_output(self):
        self.assert_kept(("export", "data.h5", "data.h5"), self.folder / "data.h5", "is an input")
        (self.folder / "alias.h5").symlink_to("data.h5")
        self.assert_kept(("export", "data.h5", "alias.h5"), self.folder / "alias.h5", "is an input")
        (self.folder / "text.h5").write_text("words")
        self.assert_kept(("shard", "text", "text.h5", "--text"), self.folder / "text.h5", "is an input")

    def test_input_is_no_partial_output(self):
        """What is written on the way to an output is an output too, and a list of inputs is an input."""
        for name, source, command in (
                ("out.bin.partial", "data.h5", ("export", "out.bin.partial", "out.bin")),
                ("out.h5.partial", "00.txt", ("shard", "out", "out.h5.partial", "--text"))):
            shutil.copy(self.folder / source, self.folder / name)
            self.assert_kept(command, self.folder / name, "is an input")
        (self.folder / "list.h5").write_text("00.txt\n")
        self.assert_kept(("shard", "list", "--list", "list.h5", "--text"), self.folder / "list.h5", "is an input")

    def test_nothing_but_files_is_replaced(self):
        os.mkfifo(self.folder / "fifo.h5")
        (self.folder / "directory.h5").mkdir()
        (self.folder / "victim").write_text("precious")
        (self.folder / "link.h5").symlink_to("victim")
        for name, kind in (("fifo", "FIFO"), ("directory", "directory"), ("link", "symbolic link")):
            path = self.folder / f"{name}.h5"
            self.assert_kept(("export", "data.h5", path.name), path, kind)
            self.assert_kept(("shard", name, "00.txt", "--text"), path, kind)

    def test_planted_partial_is_not_followed(self):
        (self.folder / "victim").write_text("precious")
        for partial, command in (("out.bin.partial", ("export", "data.h5", "out.bin")),
                                 ("out.h5.partial", ("shard", "out", "00.txt", "--text"))):
            (self.folder / partial).symlink_to("victim")
            self.assert_refused(self.job(*command, code=7), partial, "symbolic link")
            self.assertEqual((self.folder / "victim").read_text(), "precious")

    def test_partial_file_of_another_command_is_kept(self):
        """It may be written at this moment, or be the user's own."""
        for name, command in (("out.bin.partial", ("export", "data.h5", "out.bin")),
                              ("out.h5.partial", ("shard", "out", "00.txt", "--text"))):
            (self.folder / name).write_text("precious")
            self.assert_kept(command, self.folder / name, "another command is writing it", "remove it")

    def test_two_commands_for_one_output(self):
        """Whoever comes second is refused, or replaces a complete file; none installs the other's half."""
        (self.folder / "big.txt").write_bytes(bytes(32 + (byte & 63) for byte in os.urandom(1 << 24)))
        for command in (("shard", "out", "big.txt", "--text"), ("export", "out.h5", "out.bin")):
            for force in ((), ("--force",)):
                jobs = [Job(self.folder, None, [*command, *force]) for _ in range(3)]
                codes = sorted(job.wait() for job in jobs)
                self.assertEqual(codes[0], 0, [job.text() for job in jobs])
                self.assertLessEqual(set(codes), {0, 7})
                if not force:
                    self.assertEqual(codes.count(0), 1)
            self.assertEqual(list(self.folder.glob("*.partial")), [])
            self.job("verify", "out.h5")
        self.assertEqual((self.folder / "out.bin").stat().st_size, 1024 + 2 * (1 + (1 << 24)))

    def test_inputs_are_regular_files(self):
        os.mkfifo(self.folder / "fifo")
        self.assert_refused(self.job("shard", "out", "fifo", "--text", code=3), "fifo: a device, FIFO or socket")
        self.assert_refused(self.job("shard", "out", "fifo", code=3), "fifo: a device, FIFO or socket")
        self.assert_refused(self.job("shard", "out", ".", "--text", code=3), "a directory")


if __name__ == "__main__":
    small_run.main()
