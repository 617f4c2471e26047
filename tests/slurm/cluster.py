"""A private Slurm for the tests of the job scripts: munged, slurmctld and a slurmd for each node, in a temporary
directory. All nodes are this machine; those of namespaces.py only look like others.

Standard library only. Every process that it starts, jobs included, is a descendant of this one and ends with it.
"""

import atexit
import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import deadline  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
TIMEOUT = 120  # seconds of an idle machine until a daemon or a job counts as hanging
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

# Requeued jobs start after cred_expire seconds, on a real cluster 120.
CONFIGURATION = """
ClusterName=private
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
{listen}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
FirstJobId={first_job}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=pmix
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP
"""

NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} Gres=gpu:{gpus}"


def find(program):
    return shutil.which(program, path=PATH)


def missing():
    return [program for program in PROGRAMS if find(program) is None]


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def children():
    """Process ids by the id of their parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # the process has just ended
        found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def descendants(ancestor=None):
    """All processes below a process, this one by default."""
    found, known = [ancestor or os.getpid()], children()
    for parent in found:
        found += known.get(parent, [])
    return found[1:]


def strings(pid, kind):
    """The environment ("environ") or the command ("cmdline") of a process; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/{kind}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """A running Slurm. `environment` is that of its commands and of the jobs they submit. A single node has the name of
    this machine; several have numbers behind it. `more` are further lines of slurm.conf. `cpus` and `gpus`, such as "2"
    or "h100:8", are those of each node."""

    address = "127.0.0.1"  # of the controller
    listen = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"  # at the addresses of slurm.conf alone

    def place(self, node):
        """Host name and address of a node."""
        return self.host, self.address

    def on(self, node):
        """The beginning of a command that is to run on a node."""
        return []

    def __init__(self, nodes=1, more="", cpus=4, gpus="2"):
        # Orphans, such as the job steps of slurmd, become children of this process.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.temporary = tempfile.TemporaryDirectory(prefix="slurm-")
        self.folder = Path(self.temporary.name)
        self.host = socket.gethostname().split(".")[0]
        self.nodes = [self.host] if nodes == 1 else [f"{self.host}-{i}" for i in range(1, nodes + 1)]
        self.more, self.cpus, self.gpus = more, cpus, gpus
        self.daemons = {}
        # What an outer job, its MPI or a user's settings left in the environment means nothing here.
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("SLURM", "SBATCH_", "SCANCEL_", "PMI", "OMPI_COMM", "SRUN_"))}
        self.environment |= {"PATH": PATH, "SLURM_CONF": f"{self.folder}/slurm.conf",
                             "NANORUN_SITE": "/dev/null"}
        atexit.register(self.stop)
        self.start()

    def start(self):
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        controller_port, *ports = free_ports(1 + len(self.nodes))
        nodes = []
        for name, port in zip(self.nodes, ports):
            host, address = self.place(name)
            nodes.append(NODE.format(name=name, host=host, address=address, port=port, cpus=self.cpus, gpus=self.gpus))
        (self.folder / "slurm.conf").write_text(self.more + CONFIGURATION.format(
            host=self.host, address=self.address, listen=self.listen, folder=self.folder,
            controller_port=controller_port, nodes="\n".join(nodes), user=Path("/proc/self").owner(),
            first_job=random.randint(100000, 900000)))
        self.write_gpus()
        # The temporary directory is this user's alone, which munged takes for a mistake: --force.
        self.daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                    f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed")
        self.until((self.folder / "munge.socket").exists, "munged")
        self.daemon("slurmctld", "-D", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.until_idle()

    def write_gpus(self):
        """Slurm asks of a GPU only that its device file exists."""
        kind, _, count = self.gpus.rpartition(":")
        for i in range(int(count)):
            (self.folder / f"gpu{i}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(
            f"Name=gpu {f'Type={kind} ' if kind else ''}File={self.folder}/gpu[0-{int(count) - 1}]\n")

    def start_node(self, node):
        """Also one that has been killed, without what it left behind."""
        for kind in ("spool", "tmp"):
            shutil.rmtree(self.folder / kind / node, ignore_errors=True)
            (self.folder / kind / node).mkdir(parents=True)
        self.daemon("slurmd", "-D", "-N", node, name=node, before=self.on(node))

    def daemon(self, program, *arguments, name=None, before=()):
        name = name or program
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                [*before, find(program), *arguments], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent)

    def stop(self):
        """Kills all processes that this one started, and those that they start meanwhile. May be called again."""
        while pids := descendants():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except (ChildProcessError, ProcessLookupError):
                    pass  # a grandchild, or ended already
            time.sleep(0.02)
        for daemon in self.daemons.values():
            daemon.wait()
        self.daemons.clear()

    def until_idle(self):
        self.until(lambda: self.command("scontrol", "show", "node").count("State=IDLE ") == len(self.nodes),
                   "idle nodes")

    def lose_node(self, job):
        """The job goes back into the queue, as the node goes down; the controller takes the node back when it next
        hears from it. The job may start anew when the node has ended it: Slurm drains a node that is to run a job twice.
        """
        self.command("scontrol", "update", "PartitionName=main", "State=DOWN")
        self.command("scontrol", "update", f"NodeName={self.host}", "State=DOWN", "Reason=test")
        self.until(lambda: not self.pids(job), "end of the job on its node")
        self.command("scontrol", "update", "PartitionName=main", "State=UP")

    def kill_node(self, node):
        """Ends the daemon of a node, its job steps and all of their processes, as a power failure would. The controller
        learns of it after SlurmdTimeout."""
        daemon = self.daemons.pop(node)
        ranks = {pid for pid in descendants() if f"SLURMD_NODENAME={node}" in strings(pid, "environ")}
        steps = {parent for parent, found in children().items() if not ranks.isdisjoint(found)} - ranks - {os.getpid()}
        daemon.kill()
        for pid in [*steps, *ranks]:  # slurmstepd first, which would tell of the ranks' end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def pids(self, step):
        """Processes of a job, or of one of its steps."""
        listed = self.command("scontrol", "listpids", step)
        return [int(line.split()[0]) for line in listed.splitlines() if re.match(r"\d+ ", line)]

    def until(self, condition, what, seconds=TIMEOUT):
        """Waits for a condition, and returns its value."""
        limit = deadline.Deadline(seconds)
        while not (value := condition()):
            dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if dead or limit.over():
                raise AssertionError(f"no {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.05)
        return value

    def logs(self):
        """The last lines of the daemons."""
        texts = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            texts.append("\n".join([f"--- {path.name}", *lines[-40:]]))
        return "\n".join(texts)

    def command(self, program, *arguments, folder=None):
        """Runs a command of Slurm and returns what it printed."""
        done = deadline.run([find(program), *map(str, arguments)], TIMEOUT, cwd=folder or self.folder,
                            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
        return done.stdout

    def job(self, number):
        """What Slurm says about a job: a dictionary of strings."""
        return dict(re.findall(r"(\w+)=(\S*)", self.command("scontrol", "show", "job", "-o", number)))


def end_on_signals(seconds=1700):
    """SIGTERM and the end of the time for one test are handled like Ctrl-C: whatever was started ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(seconds)
