"""Every write, flush and close of every output fails once, as on a disk quota, by means of strace."""

import shutil
import subprocess

from harness import FaultTest, Job, small_run

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
        """Runs the command once for each call on the output or its partial file, which fails there, and once more."""
        paths = [f"{folder}{output}{end}" for folder in ("", f"{self.folder}/") for end in ("", ".partial")]
        log = self.folder / "strace"
        for call in CALLS:
            count, injected = 0, True
            while injected:
                count += 1
                wrapper = ["strace", "-f", "--seccomp-bpf", "-o", log, *(f"--trace-path={path}" for path in paths),
                           "-e", f"trace={call}", "-e", f"inject={call}:error=EDQUOT:when={count}"]
                job = Job(self.folder, None, arguments, wrapper)
                code = job.wait()
                messages = [line for line in job.messages() if not line.startswith(("strace: ", "mca_"))]  # not ours
                injected = "(INJECTED)" in log.read_text()
                with self.subTest(call=call, count=count, injected=injected):
                    check(code, messages)
                    self.assertTrue(injected or code == 0, job.text())
                    self.assertEqual(list(self.folder.rglob("*.partial")), [])
                shutil.rmtree(self.run_folder(), ignore_errors=True)
                for path in self.folder.glob("s.*"):
                    path.unlink()

    def complete_or_refused(self, code, output):
        """A check that the call did not matter, or that one line says what failed, and no file claims to be complete."""
        def check(seen, messages):
            self.assertIn(seen, (0, code), messages)
            self.assertEqual((self.folder / output).exists(), not seen)
            self.assertEqual(len(messages), 1 if seen else 0, messages)
            for line in messages:
                self.assertRegex(line, f"^nanorun: {output}.partial: ")
        return check

    def test_shard(self):
        self.each_failure(self.complete_or_refused(7, "s.h5"), "s.h5", "shard", "s", "00.txt", "01.txt", "--text")

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
        def check(seen, messages):
            self.assertIn(seen, (0, 7), messages)
            self.assertEqual(self.checkpoint(1).exists(), not seen)
            self.assertLessEqual(len(messages), 1)
            self.assertTrue(messages or not seen)
            for line in messages:
                self.assertRegex(line, f"^nanorun: {'' if seen else 'warning: '}{output}")
        return check

    def test_trace(self):
        self.each_failure(self.some_lost("outputs/run/trace.h5"), "outputs/run/trace.h5", *self.train)

    def test_log(self):
        self.each_failure(self.some_lost("outputs/run/log.txt"), "outputs/run/log.txt", *self.train)


if __name__ == "__main__":
    small_run.main()
