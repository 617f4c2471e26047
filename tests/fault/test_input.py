"""Decks and lists that are no plain files: pipes are read, what could block or never end is refused."""

import os
import re
import shlex
import signal
import subprocess
import tomllib

from harness import TIMEOUT, FaultTest, Job, small_run

import deadline


class Input(FaultTest):
    def shell(self, command, code=0):
        """Output and messages of a shell command, where `nanorun` is the program."""
        function = f"nanorun() {{ {shlex.quote(small_run.PROGRAM)} \"$@\"; }}; "
        job = subprocess.Popen(["bash", "-c", function + command], cwd=self.folder, text=True,
                               errors="surrogateescape", start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            output, errors = deadline.communicate(job, TIMEOUT)
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
                           ("deck.toml/absent", "cannot be accessed: Not a directory")):
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
        self.assert_refused(self.train(2, code=2), "deck.toml: 1099511627776 bytes; at most 1048576 are allowed")

    def test_suggested_overrides_are_accepted(self):
        """Overrides whose quotes a shell has taken away: bash passes on what the message suggests."""
        given = {"run.name": "it's $HOME `pwd` \\ \"one\" {a,b} [c] !d #e *", "run.outputs": "3", "stop.file": "",
                 "checkpoint.restart": "a b.h5", "trace.json_steps": "3,5",
                 "data.train": "['data.h5', data.h5, {x,y}.h5, it's $z!.h5]", "data.validation": "[ab].h5"}
        job = self.start(None, *(f"{key}={value}" for key, value in given.items()))
        self.assertEqual(job.wait(), 2, job.text())
        suggested = [re.search(r"; in a shell: ('.*')$", line)[1] for line in job.messages()]
        self.assertEqual(len(suggested), len(given), job.messages())
        self.assertIn("'data.validation=[\"[ab].h5\"]'", suggested)
        plan = self.shell("nanorun train deck.toml --dry-run " + " ".join(suggested))[0]
        resolved = tomllib.loads(plan.partition("\nranks ")[0])
        values = {key: resolved[key.split(".")[0]][key.split(".")[1]] for key in given}
        self.assertEqual(values, given | {"trace.json_steps": [3, 5], "data.validation": ["[ab].h5"],
                                          "data.train": ["data.h5", "data.h5", "{x,y}.h5", "it's $z!.h5"]})

    def test_lists_of_other_systems(self):
        """With a byte order mark, and lines that end in CR and LF; what is no list is named."""
        names = sorted(path.name for path in self.folder.glob("*.txt"))
        data = (self.folder / "data.h5").stat().st_size
        (self.folder / "list").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(names).encode())
        self.shell("nanorun shard out.h5 --text --list list")
        self.assertEqual((self.folder / "out.h5").stat().st_size, data)
        (self.folder / "list").write_bytes("\r\n".join(names).encode("utf-16"))
        said = self.shell("nanorun shard out.h5 --force --text --list list", code=2)[1]
        self.assertEqual(said, "nanorun: list: text in UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8\n")

    def test_patterns_that_no_shell_has_expanded(self):
        data = (self.folder / "data.h5").stat().st_size
        (self.folder / "list").write_text("1?.txt\n")
        self.shell("nanorun shard out.h5 --text '0*.txt' --list list")
        self.assertEqual((self.folder / "out.h5").stat().st_size, data)
        self.shell("nanorun export out.h5 out.bin && nanorun export data.h5 data.bin && cmp out.bin data.bin")
        said = self.shell("nanorun shard other.h5 --text 00.txt 'x*.txt'", code=3)[1]
        self.assertEqual(said, "nanorun: x*.txt: no file matches this pattern\n")
        (self.folder / "a[1]*.txt").write_text("a name")  # a file whose name is a pattern
        self.shell("nanorun shard other.h5 --text 'a[1]*.txt'")

    def test_names_that_are_not_utf8(self):
        """Of inputs, of lists and in them, of outputs, and where the name is what a shard says that it is made from."""
        folder = os.fsencode(self.folder)
        for name in (b"caf\xe9.txt", b"n\xe9.txt"):
            with open(os.path.join(folder, name), "wb") as text:
                text.write(b"some text " * 300)
        with open(os.path.join(folder, b"l\xefst"), "wb") as names:
            names.write(b"caf\xe9.txt\nn\xe9.txt\n")
        self.shell(r"nanorun shard $'\xfcber' --text --list $'l\xefst' && nanorun verify $'\xfcber.h5'")
        self.shell(r"nanorun shard more 'caf*.txt' $'n\xe9.txt' --text")
        self.shell(r"nanorun export $'\xfcber.h5' $'\xfcber.bin' && nanorun export more.h5 more.bin && cmp *ber.bin more.bin")
        self.shell(r"nanorun shard again $'\xfcber.bin' --vocabulary 257 --end-of-text 256 && nanorun verify again.h5")
        self.shell("nanorun train deck.toml 'data.train=[\"*ber.h5\"]' validation.tokens=0 train.steps=2")
        self.shell("nanorun train deck.toml 'data.train=[\"*ber.h5\"]' validation.tokens=0 train.steps=4")

    def test_long_and_hidden_names(self):
        """A line that is no file's name is not repeated at length, nor does a name control the terminal."""
        (self.folder / "names.txt").write_text("00.txt\n" + "x" * 1000000 + "\n")
        for command, code in (("shard out --text --list names.txt", 3), ("verify $(printf '%100000s' | tr ' ' x)", 3),
                              ("train $(printf '%100000s' | tr ' ' x)", 2)):
            said = self.shell("nanorun " + command, code=code)[1]
            self.assertRegex(said, r"\Ananorun: x{500,} \[\.\.\.\] x+: cannot be accessed: File name too long\n\Z")
            self.assertLess(len(said), 1000)
        (self.folder / "names.txt").write_text("a\x1b[2J\u202e5h.txt\r\n")
        said = self.shell("nanorun shard out --text --list names.txt", code=3)[1]
        self.assertEqual(said, "nanorun: a\\u001B[2J\\u202E5h.txt: no file matches this pattern\n")
        (self.folder / "a\x1b[2J.h5").write_text("damaged")
        said = self.shell("nanorun train deck.toml 'data.train=a*.h5'", code=3)[1]
        self.assertTrue(said.startswith("nanorun: a\\u001B[2J.h5: "), said)


if __name__ == "__main__":
    small_run.main()
