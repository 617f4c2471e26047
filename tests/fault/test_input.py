"""Decks and lists that are no plain files: pipes are read, what could block or never end is refused."""

import os
import shlex
import signal
import subprocess

from harness import TIMEOUT, FaultTest, Job, small_run


class Input(FaultTest):
    def shell(self, command, code=0):
        """Output and messages of a shell command, where `nanorun` is the program."""
        function = f"nanorun() {{ {shlex.quote(small_run.PROGRAM)} \"$@\"; }}; "
        job = subprocess.Popen(["bash", "-c", function + command], cwd=self.folder, text=True, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            output, errors = job.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            raise AssertionError(f"the command hangs: {command}") from None
        self.assertEqual(job.returncode, code, errors)
        return output, errors

    def test_fifos_and_devices_are_refused(self):
        os.mkfifo(self.folder / "fifo")
        (self.folder / "link").symlink_to("fifo")
        for path, said in (("fifo", "a device, FIFO or socket, not a regular file"),
                           ("link", "a device, FIFO or socket, not a regular file"),
                           ("/dev/zero", "a device, FIFO or socket, not a regular file"),
                           (".", "a directory; name a file in it"), ("absent", "no such file"),
                           ("deck.toml/absent", "cannot be examined: Not a directory")):
            for command in (f"nanorun train {path}", f"nanorun shard out --list {path}"):
                self.assertEqual(self.shell(command, code=2), ("", f"nanorun: {path}: {said}\n"))
        job = Job(self.folder, 2, ["train", "fifo"])
        self.assertEqual(job.wait(), 2, job.text())
        self.assert_refused(job, "nanorun: fifo: a device, FIFO or socket")
        self.assertFalse((self.folder / "outputs").exists())

    def test_pipes_are_read(self):
        expected = self.shell("nanorun train deck.toml --dry-run --ranks 2")[0]
        for command in ("cat deck.toml | nanorun train /dev/stdin --dry-run --ranks 2",
                        "nanorun train /dev/stdin --dry-run --ranks 2 < deck.toml",
                        "nanorun train <(cat deck.toml) --dry-run --ranks 2"):
            self.assertEqual(self.shell(command)[0], expected, command)
        mpirun = f"{shlex.quote(small_run.MPIRUN)} --oversubscribe -n 2 {shlex.quote(small_run.PROGRAM)}"
        self.assertEqual(self.shell(f"cat deck.toml | {mpirun} train /dev/stdin --dry-run")[0], expected)
        self.shell("ls *.txt | nanorun shard out.h5 --text --list /dev/stdin")
        self.assertEqual((self.folder / "out.h5").stat().st_size, (self.folder / "data.h5").stat().st_size)

    def test_long_pipe(self):
        said = self.shell("yes '# more' | head -c 10000000 | nanorun train /dev/stdin", code=2)[1]
        self.assertEqual(said, "nanorun: /dev/stdin: more than 1048576 bytes\n")

    def test_large_file(self):
        with (self.folder / "deck.toml").open("a") as deck:
            deck.truncate(1 << 40)
        self.assert_refused(self.train(2, code=2), "deck.toml: 1099511627776 bytes are too many, 1048576 at most")


if __name__ == "__main__":
    small_run.main()
