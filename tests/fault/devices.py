"""A rank on each GPU of the node: ranks that die or hang, through each transport, GPUs left idle, and what the driver
says of GPUs that compute. Exit code 77 where there are fewer than two GPUs."""

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

from harness import FaultTest, small_run
from test_stop import LostRanks
from two_nodes import TwoNodes


class Devices(LostRanks):
    """A model that GPUs run, and time for the libraries to start."""

    timeout = 10

    @property
    def long_run(self):
        return (*LostRanks.long_run, "model.width=128", "model.heads=1", "model.head_dim=128",
                f"train.sequences={device_count()}", "validation.tokens=0", f"comm.transport={self.transport}")

    def test_killed_rank_ends_the_job(self):
        self.kill_a_rank(device_count())

    def test_stopped_rank_is_named(self):
        self.stop_a_rank(device_count(), device_count() - 1)

    def test_stopped_root_is_named(self):
        self.stop_a_rank(device_count(), 0)


class Auto(Devices, FaultTest):
    transport = "auto"


class Nccl(Devices, FaultTest):
    transport = "nccl"


# For NCCL between the nodes that one machine emulates.
SOCKETS = ("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_IB_DISABLE=1", "NCCL_SOCKET_FAMILY=AF_INET")


class Sockets(TwoNodes, FaultTest):
    """Two GPUs as two nodes, which talk over sockets as two machines would."""

    def test_record21(self):
        self.compare("record21", "env", *SOCKETS)

    def test_record89(self):
        self.compare("record89", "env", *SOCKETS)


class Network(FaultTest):
    """Two ranks as two nodes, between which nothing travels."""

    timeout = 10

    def over(self, *faults):
        return self.start(2, *LostRanks.long_run, "model.width=128", "model.heads=1", "model.head_dim=128",
                          "train.sequences=2", "validation.tokens=0", "comm.ranks_per_node=1",
                          f"comm.timeout_seconds={self.timeout}",
                          wrapper=["env", *SOCKETS, f"LD_PRELOAD={os.environ['NANORUN_FAULTY_NETWORK']}",
                                   "FAULT_RANK=1", *faults])

    def assert_said(self, job, begin):
        self.assertEqual(job.wait(), 6, job.text())
        self.assertLess(time.monotonic() - begin, self.timeout + 30)
        said = [line for line in job.messages() if f"did not complete within {self.timeout} s" in line]
        self.assertTrue(said, job.text())
        return said

    def test_no_answer_at_the_start(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            # The queue is full after one or two of these; no later connection is answered.
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            begin = time.monotonic()
            said = self.assert_said(self.over(f"FAULT_PORT={listener.getsockname()[1]}"), begin)
            for one in waiting:
                one.close()
        for line in said:
            self.assertRegex(line, rf"rank \d: set-up of NCCL on node {re.escape(os.uname().nodename)} .*NCCL_SOCKET_IFNAME")

    def test_silence_in_the_middle(self):
        job = self.over(f"FAULT_FILE={self.folder / 'silent'}")
        job.until_step(3)
        (self.folder / "silent").touch()
        for line in self.assert_said(job, time.monotonic()):
            self.assertRegex(line, r"rank \d: .* at step \d+ ")


class Idle(FaultTest):
    """Devices that the ranks see and leave."""

    def said(self, visible):
        """Lines on them of a run of one rank."""
        job = self.train(1, "model.width=128", "model.heads=1", "model.head_dim=128", f"run.name=sees{len(visible)}",
                         wrapper=["env", f"CUDA_VISIBLE_DEVICES={visible}"])
        return [line for line in job.output if "one rank per GPU" in line]

    def test_idle_devices_are_said(self):
        self.assertEqual(self.said("0"), [])
        devices = ",".join(map(str, range(device_count())))
        self.assertEqual(self.said(devices), [f"1 rank uses 1 of the {device_count()} GPUs of this node; "
                                              "start one rank per GPU to use all\n"])


class Monitored(FaultTest):
    """Power and clocks of the GPUs, by the driver's own NVML."""

    def looks(self, every):
        """Steps whose metrics tell of GPUs, their lines, and the summary."""
        self.train(device_count(), "model.width=128", "model.heads=1", "model.head_dim=128", "validation.tokens=0",
                   f"train.sequences={device_count()}", f"run.gpu_every={every}", f"run.name=every{every}")
        folder = self.folder / "outputs" / f"every{every}"
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "gpu_rank" in line]
        return [line["step"] for line in lines], lines, json.loads((folder / "summary.json").read_text())

    def test_gpus_are_recorded(self):
        steps, lines, summary = self.looks(5)
        self.assertEqual(steps, [5, 10])
        for line in lines:
            self.assertIn(line["gpu_rank"], range(device_count()))
            self.assertTrue(100 < line["gpu_clock_mhz"] < 5000, line)
            self.assertTrue(10 < line["gpu_power_watts"] < 5000, line)
        self.assertEqual(summary["gpu_looks"], 2)
        self.assertEqual(len(summary["gpus"]), device_count())
        for gpu in summary["gpus"]:
            self.assertTrue(100 < gpu["min_clock_mhz"] <= gpu["avg_clock_mhz"] < 5000, gpu)
            self.assertTrue(10 < gpu["avg_power_watts"] <= gpu["max_power_watts"] < 5000, gpu)
        self.assertEqual(self.looks(0)[0], [])


@functools.cache
def device_count():
    """GPUs that nvidia-smi lists."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, timeout=60).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


if __name__ == "__main__":
    if device_count() < 2:
        print("skipped: fewer than two GPUs")
        sys.exit(77)
    small_run.main()
