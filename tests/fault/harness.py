"""Runs the program under mpirun in a temporary folder, for the fault tests. Standard library only."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import small_run  # noqa: E402
from deadline import Deadline  # noqa: E402

TIMEOUT = 180  # seconds of an idle machine, without a further line of output, until a job counts as hanging


def gather(stream, lines):
    with stream:
        for line in stream:
            lines.append(line)


def running(pid):
    """Whether the process lives; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """A started job; its output gathers while it runs."""

    def __init__(self, folder, ranks, arguments, wrapper=(), **streams):
        """`wrapper` is a command that starts the program on each rank with the arguments that follow. With `ranks` None
        the program runs without mpirun. `streams` replace those of the process, which are then not gathered."""
        launcher = () if ranks is None else (small_run.MPIRUN, "--oversubscribe", "-n", str(ranks))
        command = [*launcher, *wrapper, small_run.PROGRAM, *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=folder, text=True, errors="replace", **pipes | streams)
        self.ranks = ranks
        self.output, self.errors = [], []
        self.readers = [threading.Thread(target=gather, args=pair)
                        for pair in ((self.process.stdout, self.output), (self.process.stderr, self.errors)) if pair[0]]
        for reader in self.readers:
            reader.start()

    def until(self, condition, what):
        """Waits for a condition while the job runs; the job must not end before it holds."""
        limit = self.deadline()
        while not condition():
            if self.process.poll() is not None or limit.over():
                self.kill()
                raise AssertionError(f"no {what}:\n{self.text()}")
            time.sleep(0.002)

    def until_step(self, step):
        self.until(lambda: any(re.match(rf"step +{step}/", line) for line in self.output), f"step {step}")

    def wait(self):
        """The job's exit code, once it has ended."""
        limit = self.deadline()
        while not self.ended():
            if limit.over():
                self.kill()
                raise AssertionError(f"the job hangs:\n{self.text()}")
        limit = self.deadline()
        while any(reader.is_alive() for reader in self.readers) and not limit.over():
            for reader in self.readers:
                reader.join(0.2)
        return self.process.returncode

    def ended(self):
        """Waits for a moment."""
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def deadline(self):
        return Deadline(TIMEOUT, lambda: len(self.output) + len(self.errors))

    def rank_pids(self):
        """Processes of the ranks by their ranks, which are children of mpirun where there is one. It starts many ranks
        by several threads, in any order."""
        if self.ranks is None:
            return [self.process.pid]
        pids = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
                environment = (stat.parent / "environ").read_bytes() if parent == self.process.pid else b""
            except (OSError, IndexError):
                continue  # the process has just ended
            if rank := re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", environment):
                pids[int(rank[1])] = int(stat.parent.name)
        assert sorted(pids) == list(range(self.ranks)), pids
        return [pids[rank] for rank in range(self.ranks)]

    def kill(self):
        """Ends mpirun and all ranks at once, as a power failure would."""
        try:
            pids = self.rank_pids()
        except AssertionError:
            pids = []
        for pid in [self.process.pid, *pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for reader in self.readers:
            reader.join()

    def text(self):
        return "".join(self.output) + "".join(self.errors)

    def messages(self):
        """Lines on standard error without what mpirun and strace say: mpirun's boxes, and lines that begin with a name."""
        lines, boxed = [], False
        for line in self.errors:
            if line.startswith("-----"):
                boxed = not boxed
            elif not boxed and line.strip() and not line.startswith(("mpirun", "[", "strace: Requested")):
                lines.append(line.rstrip("\n"))
        return lines


class FaultTest(unittest.TestCase):
    """Each test has a folder of its own with a deck and a token shard."""

    strace_works = None  # known once a test has tried

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-fault-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.prepare(self.folder)

    def prepare(self, folder):
        """Writes deck.toml and data.h5."""
        folder.mkdir(exist_ok=True)
        small_run.write_deck(folder)
        small_run.write_data(folder)

    def start(self, ranks, *overrides, folder=None, wrapper=(), **streams):
        return Job(folder or self.folder, ranks, ["train", "deck.toml", *overrides], wrapper, **streams)

    def train(self, ranks, *overrides, folder=None, wrapper=(), code=0):
        """Trains to the end and checks the exit code."""
        job = self.start(ranks, *overrides, folder=folder, wrapper=wrapper)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def injecting(self, path, injection):
        """Wrapper that starts the program under strace, which does as `injection` says with system calls on the path,
        given as the program spells it. Skips the test where that cannot be."""
        if shutil.which("strace") is None:
            self.skipTest("needs strace")
        wrapper = ["strace", "-f", "-qq", "-o", self.folder / "strace", "-P", path, "-e", f"inject={injection}"]
        if FaultTest.strace_works is None:
            FaultTest.strace_works = Job(self.folder, None, ["keys"], wrapper=wrapper).wait() == 0
        if not FaultTest.strace_works:
            self.skipTest("strace may not trace here")
        return wrapper

    def stopped_at(self, job):
        """Waits until an injection of SIGSTOP has stopped the program, which the job runs under strace without mpirun.
        Returns its process id, to be sent SIGCONT."""
        calls = self.folder / "strace"
        job.until(lambda: calls.exists() and "stopped by SIGSTOP" in calls.read_text(), "stop")
        return int(Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()[0])

    def verify(self, *files, code=0):
        job = Job(self.folder, None, ["verify", *files])
        self.assertEqual(job.wait(), code, job.text())
        return job

    def assert_refused(self, job, *parts):
        """The program said why in exactly one line that holds all the parts."""
        messages = job.messages()
        self.assertEqual(len(messages), 1, messages)
        self.assertTrue(messages[0].startswith("nanorun: "), messages)
        for part in parts:
            self.assertIn(str(part), messages[0])

    def run_folder(self, folder=None):
        return (folder or self.folder) / "outputs" / "run"

    def checkpoint(self, step, folder=None):
        return self.run_folder(folder) / "checkpoints" / f"checkpoint_{step:08}.h5"

    def files(self, folder=None):
        """Names in the checkpoint folder."""
        return sorted(path.name for path in (self.run_folder(folder) / "checkpoints").iterdir())

    def summary(self, folder=None):
        return json.loads((self.run_folder(folder) / "summary.json").read_text())


def losses(job):
    """Loss of each logged step."""
    text = "".join(job.output)
    return {int(m[1]): float(m[2]) for m in re.finditer(r"step +(\d+)/\d+ +(?:weighted )?loss (\S+)", text)}


def restarted_from(job):
    """Step of the checkpoint that the job continued, or None."""
    found = re.search(r"restarted from the checkpoint of step (\d+)", "".join(job.output))
    return int(found[1]) if found else None


def without_start(file):
    """The bytes of a file, but for the time and the job in its provenance, which each start of the program has anew."""
    return re.sub(rb'"(job|started)":"[^"]*"', lambda found: bytes(len(found[0])), file.read_bytes())


def differing_windows(a, b, width=8, block=4096):
    """Smallest number of windows of `width` bytes that hold all differences of two byte strings."""
    count, end = 0, -1
    for first in range(0, min(len(a), len(b)), block):
        if a[first:first + block] == b[first:first + block]:
            continue  # large files are alike but for a few bytes
        for i, (x, y) in enumerate(zip(a[first:first + block], b[first:first + block]), first):
            if x != y and i >= end:
                count, end = count + 1, i + width
    return count
