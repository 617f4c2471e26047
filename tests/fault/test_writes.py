"""Every write, flush and close of every output fails once, as on a disk quota, by means of strace."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from harness import FaultTest, Job, small_run

try:
    import h5py
except ImportError:
    h5py = None

CALLS = ("pwrite64", "write", "fsync", "close", "rename")


def strace_works():
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


class Writes(FaultTest):
    def setUp(self):
        if not strace_works():
            self.skipTest("needs strace, and the right to trace")
        super().setUp()

    def each_failure(self, check, output, *arguments):
        """Runs the command with the first, second, ... of each call on the output or its partial file failing, until no
        such call is left: several runs at a time, as a run mostly waits."""
        at_once = 4
        with ThreadPoolExecutor(at_once) as pool:
            for call in CALLS:
                first, injected = 1, True
                while injected:
                    counts = range(first, first + at_once)
                    ends = pool.map(lambda count: self.failure(call, count, output, arguments), counts)
                    for count, (code, messages, folder, injected) in zip(counts, ends):
                        files = [str(path.relative_to(folder)) for path in folder.rglob("*")]
                        with self.subTest(call=call, count=count, injected=injected):
                            check(code, messages, files, folder)
                            self.assertTrue(injected or code == 0, messages)
                            self.assertEqual([file for file in files if file.endswith(".partial")], [])
                    first += at_once

    def failure(self, call, count, output, arguments):
        """Runs the command in a folder of its own; the call of that number fails. Returns exit code, messages, the
        folder, and whether there was such a call."""
        folder = self.folder.parent / f"{self.folder.name}-{call}-{count}"
        shutil.copytree(self.folder, folder)
        self.addCleanup(shutil.rmtree, folder)
        log = folder / "strace"
        paths = [f"{place}{output}{end}" for place in ("", f"{folder}/") for end in ("", ".partial")]
        wrapper = ["strace", "-f", "--seccomp-bpf", "-o", log, *(f"--trace-path={path}" for path in paths),
                   "-e", f"trace={call}", "-e", f"inject={call}:error=EDQUOT:when={count}"]
        job = Job(folder, None, arguments, wrapper)
        code = job.wait()
        messages = [line for line in job.messages() if not line.startswith("strace: ")]  # not ours
        return code, messages, folder, "(INJECTED)" in log.read_text()

    def complete_or_refused(self, code, output):
        """A check that the call did not matter, or that one line says what failed, and no file claims to be complete."""
        def check(seen, messages, files, _):
            messages = [line for line in messages if not line.startswith("mca_")]  # MPI writes this file too
            self.assertIn(seen, (0, code), messages)
            self.assertEqual(output in files, not seen)
            self.assertEqual(len(messages), 1 if seen else 0, messages)
            for line in messages:
                self.assertRegex(line, f"^nanorun: {output}.partial: ")
        return check

    def test_shard(self):
        self.each_failure(self.complete_or_refused(7, "s.h5"), "s.h5", "shard", "s", "00.txt", "01.txt", "--text")

    def test_tokens(self):
        (self.folder / "merges.txt").write_text("t h\nth e\n")

        def check(seen, messages, files, _):
            self.assertIn(seen, (0, 7), messages)
            self.assertEqual("s.h5" in files, not seen)
            self.assertEqual(len(messages), 1 if seen else 0, messages)
            for line in messages:
                self.assertRegex(line, "^nanorun: s.rank_000000.partial: ")
        arguments = ("shard", "s", "00.txt", "01.txt", "--tokenizer", "merges.txt")
        self.each_failure(check, "s.rank_000000", *arguments)

    def test_export(self):
        self.each_failure(self.complete_or_refused(7, "s.bin"), "s.bin", "export", "data.h5", "s.bin")

    train = ("train", "deck.toml", "train.steps=1", "model.layers=2")  # few datasets

    def test_checkpoint(self):
        output = "outputs/run/checkpoints/checkpoint_00000001.h5"
        self.each_failure(self.complete_or_refused(4, output), output, *self.train)

    def test_summary(self):
        output = "outputs/run/summary.json"
        self.each_failure(self.complete_or_refused(7, output), output, *self.train)

    def some_lost(self, output):
        """A check that what is lost leaves one line, and the checkpoint unless the run has not begun."""
        def check(seen, messages, files, _):
            self.assertIn(seen, (0, 7), messages)
            self.assertEqual(str(self.checkpoint(1).relative_to(self.folder)) in files, not seen)
            self.assertLessEqual(len(messages), 1)
            self.assertTrue(messages or not seen)
            for line in messages:
                self.assertRegex(line, f"^nanorun: {'' if seen else 'warning: '}{output}")
        return check

    def test_trace(self):
        """No row of the trace is made up."""
        output = "outputs/run/trace.h5"
        some_lost = self.some_lost(output)

        def check(seen, messages, files, folder):
            # A file whose close has failed stays open, and locked: the rows wait for it.
            lost = [line for line in messages if "; it stays so to the end: " in line]
            waits = [line for line in messages if "another program has it open" in line and line not in lost]
            again = [line for line in messages if line == f"nanorun: {output}: is written again"]
            self.assertEqual(len(waits), len(again) + len(lost), messages)
            some_lost(seen, [line for line in messages if line not in waits + again], files, folder)
            if h5py and output in files and h5py.is_hdf5(folder / output):
                with h5py.File(folder / output) as trace:
                    rows = len(trace["step"])
                    self.assertEqual([trace["step"][...].tolist()], [list(range(rows))])
                    for name in ("tokens", "loss"):
                        self.assertTrue((trace[name][:rows] > 0).all())
                        self.assertGreaterEqual(len(trace[name]), rows)

        self.each_failure(check, output, *self.train)

    def test_metrics(self):
        """Whole lines remain."""
        output = "outputs/run/metrics.jsonl"
        some_lost = self.some_lost(output)

        def check(seen, messages, files, folder):
            some_lost(seen, messages, files, folder)
            if output in files:
                lines = (folder / output).read_text().splitlines(keepends=True)
                self.assertEqual([json.loads(line)["step"] for line in lines], [1, 1][:len(lines)])
                self.assertTrue(all(line.endswith("\n") for line in lines))

        self.each_failure(check, output, *self.train)

    def test_log(self):
        self.each_failure(self.some_lost("outputs/run/log.txt"), "outputs/run/log.txt", *self.train)


if __name__ == "__main__":
    small_run.main()
