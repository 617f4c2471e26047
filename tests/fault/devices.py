"""Ranks that die or hang, on GPUs: the tests of test_stop.py that need two. Exit code 77 where there are fewer."""

import shutil
import subprocess
import sys

import test_stop
from harness import small_run


class Devices(test_stop.Stop):
    """A model that GPUs run, and time for the libraries to start."""

    long_run = (*test_stop.Stop.long_run, "model.width=128", "model.heads=1", "model.head_dim=128")
    timeout = 10

    def test_stopped_rank_is_named(self):
        self.stop_a_rank(2, 1)


def device_count():
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, timeout=60).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


if __name__ == "__main__":
    if device_count() < 2:
        print("skipped: fewer than two GPUs")
        sys.exit(77)
    small_run.main()
