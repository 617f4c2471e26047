"""The program that the measuring tools start: where it is, what it runs on, and how its runs end; and the directory
that a tool has to itself."""

import fcntl
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import tool
from study.launch import environment, find_launcher, find_program, run_to_end

ROOT = pathlib.Path(__file__).resolve().parents[2]  # top of the repository, or PREFIX/share/nanorun
LAUNCHERS = {"mpirun": ("mpirun", "-n"), "srun": ("srun", "-n")}
ON_ONE_NODE = {"mpirun": (), "srun": ("--nodes=1",)}  # mpirun fills a node before it takes the next one
BUILDS = ("cpu", "gpu")
KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+=")  # a key of a deck, before its value
COMMAND = "\n$ "  # before a command in a log


def default_program():
    """The nanorun of the repository's build or of the prefix, or else the one on the PATH."""
    presets = ("h100", "cpu") if os.path.exists("/dev/nvidiactl") else ("cpu",)
    places = [ROOT / "build" / preset / "bin" for preset in presets]
    if not (ROOT / "CMakeLists.txt").exists():
        places = [ROOT.parents[1] / "bin"]
    return next((str(place / "nanorun") for place in places if (place / "nanorun").exists()), "nanorun")


def parse(parser, owned, owner):
    """The parsed command line. Adds the arguments that say what starts where, and `override`: keys of the deck after
    "--". Keys in `owned` are refused there. Throws ToolError."""
    parser.add_argument("--ranks", type=int, metavar="N",
                        help="ranks (default: as many as there are GPUs or cores, and divide the sequences of a step)")
    parser.add_argument("--program", default=default_program(), metavar="PATH", help="nanorun (default: %(default)s)")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="mpirun", help="what starts the ranks")
    parser.epilog = "Keys of the deck may follow as -- section.key=value..."
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    for before, word in zip(words, words[1:end]):
        if KEY.match(word) and not before.startswith("-"):
            raise tool.ToolError(f"unknown argument {word}; keys of the deck follow after --, as in -- {word}")
    arguments = tool.parse(parser, words[:end])
    arguments.override = words[end + 1:]
    if arguments.ranks is not None and not 1 <= arguments.ranks <= 10**6:
        raise tool.ToolError(f"--ranks must be a positive whole number, not {arguments.ranks}")
    require_overrides(arguments.override, "after --", owned, owner)
    return arguments


def require_overrides(overrides, where, owned, owner):
    for line in overrides:
        if not isinstance(line, str) or not KEY.match(line) or not line.isprintable():
            raise tool.ToolError(f"{where}: {json.dumps(line)} is not of the form section.key=value")
        if line.split("=")[0] in owned:
            raise tool.ToolError(f"{where}: {line.split('=')[0]} is set by {owner} itself")


def make_directory(out):
    """Makes the directory of the result and returns its absolute path."""
    if not str(out.absolute()).isprintable():
        raise tool.ToolError("--out: the path of the directory has characters that cannot be seen")
    with tool.using(f"--out: {out}"):
        out.mkdir(parents=True, exist_ok=True)
        return out.resolve()


def take_lock(directory):
    """Returns an open file that stays locked until this process ends. Throws ToolError where another tool holds the
    lock."""
    path = directory / "lock"
    with tool.using(path):
        file = open(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise tool.ToolError(f"{path}: another command works in this directory; name another one with --out") from None
    except OSError:
        pass  # file systems without locks
    return file


def pattern(path):
    """A path for a list of shards in a deck, with every character quoted that would stand for others."""
    return re.sub(r"([][*?\\])", r"\\\1", str(path))


def last_words(text):
    """The last line in which the program says what is wrong, or else the last line."""
    lines = [line for line in text.splitlines() if line.strip(" -=")]  # without mpirun's rulers
    said = ([line for line in lines if line.startswith("nanorun: ")] or
            [line for line in lines if "exited on signal" in line] or lines)
    return tool.one_line(said[-1]) if said else "no message"


def usable_gpus(lines):
    """How many GPUs have kernels, by the lines of `nanorun info` on them, and why there is none."""
    found = [line for line in lines if not line.startswith("none")]
    usable = sum(int(line.split()[0]) for line in found if not line.endswith("(no kernels)"))
    return usable, ", ".join(found) if found else lines[0].removeprefix("none: ").replace("none", "it sees none")


class Program:
    """The nanorun to start, with its launcher. Throws ToolError where it cannot be started."""

    def __init__(self, name, launcher):
        self.path = find_program(name)
        self.launcher, self.on_one_node = LAUNCHERS[launcher], ON_ONE_NODE[launcher]
        find_launcher(self.launcher[0])
        facts = [line.split(maxsplit=1) for line in self.call("info").splitlines()]
        gpus = [fact[1] for fact in facts if fact[0] == "gpus"]
        self.build = BUILDS[bool(gpus)]
        self.devices, fault = usable_gpus(gpus) if gpus else (len(os.sched_getaffinity(0)), "")
        if self.devices == 0 and launcher == "mpirun":
            kernels = ", ".join(fact[1] for fact in facts if fact[0] == "kernels")
            raise tool.ToolError(f"{self.path}, with kernels for {kernels}, can use no GPU here: {fault}")

    def call(self, *arguments):
        """Runs the program on one rank and returns its standard output. Throws ToolError."""
        with tool.using(self.path):
            job = subprocess.run([self.path, *arguments], env=environment(), stdin=subprocess.DEVNULL, text=True,
                                 errors="replace", capture_output=True)
        if job.returncode != 0:
            raise tool.ToolError(f"{pathlib.Path(self.path).name} {arguments[0]}: {last_words(job.stderr)}")
        return job.stdout

    def start(self, ranks, arguments, log, saves=False, on_one_node=False):
        """Runs the program on `ranks` ranks, waits for its end and returns the exit code. Appends the command and its
        output to the file `log`. With `saves` a signal stops the run with a checkpoint."""
        launcher, *count = self.launcher
        command = [launcher, *(self.on_one_node if on_one_node else ()), *count, str(ranks), self.path, *arguments]
        with tool.using(log):
            log.parent.mkdir(exist_ok=True)
            with open(log, "a", errors="surrogateescape") as file:
                print(f"{COMMAND}{shlex.join(command)}", file=file, flush=True)
                return run_to_end(command, file, saves)

    def choose_ranks(self, wanted, sequences):
        """Number of ranks for steps of `sequences` sequences: `wanted`, or what the machine has. Throws ToolError."""
        if wanted is None:
            return max(n for n in range(1, max(1, min(self.devices, sequences)) + 1) if sequences % n == 0)
        if sequences % wanted:
            divisors = ", ".join(str(n) for n in range(1, sequences + 1) if sequences % n == 0)
            raise tool.ToolError(f"--ranks: the {sequences} sequences of a step cannot be divided among {wanted} "
                                 f"ranks; numbers of ranks that divide them: {divisors}")
        return wanted


def failure(code, log):
    """Why a run has failed: its exit code and its last words."""
    said = log.read_text(errors="replace").rpartition(COMMAND)[2].partition("\n")[2]
    return f"exit code {code}: {last_words(said)} (see {log})"
