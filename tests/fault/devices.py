"""Ranks that die or hang, on two GPUs and through each transport. Exit code 77 where there are fewer."""

import shutil
import subprocess
import sys

from harness import FaultTest, small_run
from test_stop import LostRanks


class Devices(LostRanks):
    """A model that GPUs run, and time for the libraries to start."""

    timeout = 10

    @property
    def long_run(self):
        return (*LostRanks.long_run, "model.width=128", "model.heads=1", "model.head_dim=128",
                f"comm.transport={self.transport}")

    def test_killed_rank_ends_the_job(self):
        self.kill_a_rank()

    def test_stopped_rank_is_named(self):
        self.stop_a_rank(2, 1)

    def test_stopped_root_is_named(self):
        self.stop_a_rank(2, 0)


class Auto(Devices, FaultTest):
    transport = "auto"


class Nccl(Devices, FaultTest):
    transport = "nccl"


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
