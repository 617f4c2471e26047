"""Starts the runs of a study that have not finished, under mpirun or as Slurm jobs."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import tool

from . import StudyError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
          signal.SIGUSR2)
PLAN = "plan.json"  # in the directory of a study: what `nanorun train DECK --dry-run --json` prints of its model
GRACE_SECONDS = 8  # for mpirun to end its ranks
BATCH_SCRIPT = Path(__file__).resolve().parents[2] / "scaling.sbatch"


def finished(run, steps):
    """Whether the run has ended in order."""
    try:
        summary = tool.read_json(run.folder / "summary.json")
    except tool.ToolError:
        return False
    return bool(summary.get("finished")) and summary.get("ranks") == run.ranks and summary.get("steps") == steps


def find_program(name):
    program = shutil.which(name)
    if program is None:
        raise StudyError(f"{name}: no such program; build it, or name it with --program")
    return str(Path(program).resolve())


def environment():
    """The environment of mpirun: Open MPI refuses to run as root unless two variables allow it."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return os.environ | as_root


def check_deck(program, run, *options):
    """Lets the program judge the deck before any run starts. Returns what its dry run with the options prints."""
    with tool.using(program):
        dry = subprocess.run([program, *run.arguments, "--dry-run", *options], env=environment(), text=True,
                             errors="replace", stdin=subprocess.DEVNULL, capture_output=True)
    if dry.returncode != 0:
        said = [line for line in dry.stderr.splitlines() if line.startswith("nanorun: ")]
        raise StudyError(said[0] if said else f"{program} cannot read the deck: {dry.stderr.strip()}")
    return dry.stdout


def run_to_end(command, log, saves=False):
    """Exit code of the command. A signal that ends this process ends the command first, and mpirun its ranks. With
    `saves` the first one asks mpirun or srun for a checkpoint, for which SIGUSR2 goes to the ranks; the second one ends.

    The command has a process group of its own, since mpirun leaves ranks behind where a signal reaches it twice.
    """
    job, received = None, []

    def end(number=signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, number)

    def receive(number, _):
        received.append(number)
        if job and number == signal.SIGALRM:
            end(signal.SIGKILL)
        elif job and saves and len(received) == 1:
            tool.warn("stopping with a checkpoint; another signal ends the run without one")
            job.send_signal(signal.SIGUSR2)
        elif len(received) <= 1 + saves:
            signal.alarm(GRACE_SECONDS)
            if job:
                end()

    kept = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # not under nohup
    before = {number: signal.signal(number, receive) for number in (*kept, signal.SIGALRM)}
    try:
        job = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, process_group=0)
        if received:
            end()
        code = job.wait()
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt
    return code


class Mpirun:
    """Runs on this machine or in this allocation, one after the other."""

    def __init__(self, study):
        self.command = [find_launcher("mpirun"), *study.launch.mpirun]

    def start(self, run, program):
        """Runs to the end; returns a word or two on the outcome."""
        command = [*self.command, "-n", str(run.ranks), program, *run.arguments]
        with tool.using(run.log), open(run.log, "w") as log:
            code = run_to_end(command, log)
        return "done" if code == 0 else f"failed with exit code {code}, see {run.log}"


def option(words, *names):
    """The value of an option among the words of a command line, by its long or short names. The last occurrence counts.
    Empty where the option has no value, None where it does not occur."""
    found = None
    for i, word in enumerate(words):
        for name in names:
            if word == name:
                found = words[i + 1] if i + 1 < len(words) else ""
            elif word.startswith(f"{name}=" if name.startswith("--") else name):
                found = word[len(name):].removeprefix("=")
    return found if found is None else found.strip()


def count(text):
    """The number behind the last colon, as in "8" or "h100:8"; 1 where there is none, as in "h100"."""
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() else 1


def gpus_in_gres(text):
    """Number of GPUs in a list of resources such as "gpu:h100:8,nvme"."""
    words = [word.removeprefix("gres/").replace("=", ":") for word in text.split(",")]
    return sum(count(word.partition(":")[2]) for word in words if word.partition(":")[0] == "gpu")


def gpus_in(of_node, gres):
    """Number of GPUs of a node, from a value of --gpus-per-node, else from a value of --gres. Either may be None."""
    return (sum(map(count, of_node.split(","))) if of_node else 0) or gpus_in_gres(gres or "")


def own_gpus_of_node(settings):
    """Number of GPUs that the study itself asks for on each node; 0 where it does not say."""
    return settings.gpus_per_node or gpus_in(option(settings.sbatch, "--gpus-per-node"),
                                             option(settings.sbatch, "--gres", "--tres-per-node"))


def gpus_of_node(settings):
    """own_gpus_of_node(), or else the number that the environment asks for."""
    return own_gpus_of_node(settings) or gpus_in(os.environ.get("SBATCH_GPUS_PER_NODE"), os.environ.get("SBATCH_GRES"))


def variables(settings):
    """The environment of sbatch. Drops what it says of a node's GPUs if the study says it too: Slurm would add both
    up."""
    kept = os.environ | {"NANORUN_JOBSCRIPTS": str(BATCH_SCRIPT.parent)}
    if own_gpus_of_node(settings):
        kept.pop("SBATCH_GPUS_PER_NODE", None)
        others = [word for word in kept.pop("SBATCH_GRES", "").split(",") if word and not gpus_in_gres(word)]
        if others:
            kept["SBATCH_GRES"] = ",".join(others)
    return kept


def own_placement(settings):
    """The values of --nodes and --ntasks-per-node in the study's own options, each None where it is not there."""
    return option(settings.sbatch, "--nodes", "-N"), option(settings.sbatch, "--ntasks-per-node")


def check_gpus(settings):
    """Throws StudyError if ranks have a GPU each and nothing says how many GPUs a node has, so that ranks cannot be
    placed."""
    if settings.ranks_per_node or gpus_of_node(settings) or any(own_placement(settings)):
        return
    for variable, read, *names in (
            ("SBATCH_GPUS", count, "--gpus", "-G"), ("SBATCH_GPUS_PER_TASK", count, "--gpus-per-task"),
            ("SBATCH_GPUS_PER_SOCKET", count, "--gpus-per-socket"),
            ("SBATCH_TRES_PER_TASK", gpus_in_gres, "--tres-per-task")):
        own = option(settings.sbatch, *names)
        number = own or os.environ.get(variable)
        if number and read(number):
            name = names[0] if own else variable
            raise StudyError(f"{name} asks for GPUs, but does not say how many a node has: set launch.ranks_per_node, "
                             "or launch.gpus_per_node in its place")


def placement(settings, ranks):
    """Options of sbatch that place the ranks of a job evenly on as few nodes as hold them. Leaves out options that the
    study sets itself, and follows them."""
    own_nodes, own_ranks = own_placement(settings)
    chosen = {}
    most = int(own_ranks) if own_ranks and own_ranks.isdecimal() else settings.ranks_per_node or gpus_of_node(settings)
    if most and own_nodes is None:
        chosen["--nodes"] = -(-ranks // most)
    nodes = int(own_nodes) if own_nodes and own_nodes.isdecimal() else chosen.get("--nodes", 0)
    if most and nodes and own_ranks is None:
        chosen["--ntasks-per-node"] = -(-ranks // nodes)
    if (settings.gpus_per_node and option(settings.sbatch, "--gpus-per-node") is None
            and not gpus_in_gres(option(settings.sbatch, "--gres", "--tres-per-node") or "")):
        chosen["--gpus-per-node"] = settings.gpus_per_node
    words = [f"{name}={value}" for name, value in chosen.items()]
    return words + ["--exclusive"] * (settings.exclusive and not shares(settings))


def shares(settings):
    """Whether the study's options or the environment say how a job shares its nodes."""
    said = option(settings.sbatch, "--exclusive", "--oversubscribe", "--share", "-s")
    return said is not None or "SBATCH_EXCLUSIVE" in os.environ


class Slurm:
    """Submits each run as a job of its own; `<run>.job` remembers it until it has left the queue."""

    def __init__(self, study):
        self.settings = study.launch
        check_gpus(study.launch)
        self.command = [find_launcher("sbatch"), "--parsable", *study.launch.sbatch]
        self.squeue = find_launcher("squeue")

    def start(self, run, program):
        record = run.folder.with_suffix(".job")
        job = tool.read_text(record).strip() if os.path.lexists(record) else ""
        if job.isdecimal() and self.queued(job):
            return f"still queued as job {job}"
        command = [*self.command, f"--ntasks={run.ranks}", *placement(self.settings, run.ranks),
                   f"--job-name={run.folder.parent.name}.{run.name}", f"--output={run.log}", str(BATCH_SCRIPT), program,
                   *run.arguments]
        submitted = subprocess.run(command, env=variables(self.settings), text=True, stdin=subprocess.DEVNULL,
                                   capture_output=True)
        if submitted.returncode != 0:
            return f"not submitted: {tool.one_line(submitted.stderr)}"
        job = submitted.stdout.strip().split(";")[0]
        tool.write(record, job + "\n")
        return f"submitted as job {job}"

    def queued(self, job):
        """Slurm forgets ended jobs and calls them invalid; any other complaint leaves the answer open."""
        asked = subprocess.run([self.squeue, "--noheader", "--jobs", job, "--format=%T"], text=True,
                               capture_output=True)
        if asked.returncode != 0 and "Invalid job id" not in asked.stderr:
            raise StudyError(f"cannot ask for job {job}: {asked.stderr.strip()}")
        return bool(asked.stdout.strip())


def find_launcher(name):
    path = shutil.which(name)
    if path is None:
        raise StudyError(f"{name} is not on the PATH")
    return path


LAUNCHERS = {"mpirun": Mpirun, "slurm": Slurm}


def launch(study, launcher, program, say):
    """Starts the runs that have not finished. `say` is told how each ends; after a failure the others are still
    started."""
    waiting = [run for run in study.runs() if not finished(run, study.steps)]
    if not waiting:
        return
    program = find_program(program)
    starter = LAUNCHERS[launcher](study)
    tool.write(study.folder / PLAN, check_deck(program, waiting[0], "--json"))
    for i, run in enumerate(waiting, 1):
        say(f"[{i}/{len(waiting)}] {run.name}: {starter.start(run, program)}")
