"""A private Slurm whose nodes are namespaces: each has a network, a host name, processes, shared memory and mounts of its
own, and a cable to a switch, at which the controller is, too. To Slurm and MPI they are hosts that share a file system.

Nothing of this has a name outside, and a node ends with its first process, which ends with the test, however that ends.
"""

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import cluster

CLONE_NEWNET = 0x40000000
NETWORK = "10.0.0"

# A node that is started again has its old hardware address, which the others remember. Its cable is laid while the
# controller's process still has a number for it.
NODE = """
set -e
number=$1 address=$2 controller=$PPID
shift 2
ip link set lo up
ip link add eth0 address "02:00:00:00:00:0$number" type veth peer name "cable$number" netns "$controller"
ip address add "$address/24" dev eth0
ip link set eth0 up
nsenter --net="/proc/$controller/ns/net" ip link set "cable$number" master switch up
exec unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc sh -c '
  set -e
  hostname "$0"
  mount -t tmpfs tmpfs /dev/shm
  "$@"
  exit' "$@"
"""


class NotAllowed(Exception):
    """Why there can be no such nodes."""


def run(*command):
    """Runs a command in the network of the controller."""
    done = subprocess.run(command, env=os.environ | {"PATH": cluster.PATH}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise NotAllowed(f"{' '.join(command[:3])}: {' '.join(done.stdout.split()) or done.returncode}")


def on_node(number, name):
    """The beginning of the command with which a node starts, and ends."""
    return ["unshare", "--net", "sh", "-c", NODE, "sh", str(number), f"{NETWORK}.{number + 2}", name]


def enter():
    """Gives this process the controller's network, and tries whether nodes can be started."""
    for program in ("ip", "unshare", "nsenter"):
        if cluster.find(program) is None:
            raise NotAllowed(f"{program} not found; install iproute2 and util-linux")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise NotAllowed(f"no network of its own: {os.strerror(ctypes.get_errno())}")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "type", "bridge")
    run("ip", "address", "add", f"{NETWORK}.1/24", "dev", "switch")
    run("ip", "link", "set", "switch", "up")
    run(*on_node(0, "node"), "true")


class Cluster(cluster.Cluster):
    address = f"{NETWORK}.1"
    listen = ""  # at all addresses: others cannot reach them

    def place(self, node):
        return node, f"{NETWORK}.{self.nodes.index(node) + 2}"

    def on(self, node):
        return on_node(self.nodes.index(node), node)

    def cable(self, node):
        """The end that is at the switch."""
        return f"cable{self.nodes.index(node)}"

    def kill_node(self, node):
        """As a power failure would: first nothing of the node is heard any more, then it ends."""
        run("ip", "link", "set", self.cable(node), "down")
        daemon = self.daemons.pop(node)
        os.kill(*cluster.children()[daemon.pid], signal.SIGKILL)
        daemon.wait()  # all of its processes have ended, too
        run("ip", "link", "delete", self.cable(node))

    def sent_bytes(self, node):
        """What the node has sent since it was started."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            interface, _, counters = line.partition(":")
            if interface.strip() == self.cable(node):
                return int(counters.split()[0])
        raise LookupError(node)

    def runs(self, node, program):
        """Whether a process of the node has begun as the program."""
        pids = cluster.descendants(self.daemons[node].pid)
        return any(cluster.strings(pid, "cmdline")[0:1] == [program] for pid in pids)
