"""Starts the runs of a study that have not finished, under mpirun or as Slurm jobs."""

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tool

from . import StudyError
from .placement import check_gpus, gpus_in_gres, own_gpus_of_node, placement
from .plan import write_plans
from .program import environment, find_program

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
          signal.SIGUSR2)
GRACE_SECONDS = 8  # for mpirun to end its ranks
BATCH_SCRIPT = Path(__file__).resolve().parents[2] / "scaling.sbatch"


def finished(run, steps):
    """Whether the run has ended in order."""
    try:
        summary = tool.read_json(run.folder / "summary.json")
    except tool.ToolError:
        return False
    return bool(summary.get("finished")) and summary.get("ranks") == run.ranks and summary.get("steps") == steps


@dataclass(frozen=True)
class Job:
    """A command, the open file for what it prints, and the processors that it may use (None: all)."""

    command: list
    log: object
    processors: tuple | None = None

    def start(self):
        """The process, in a group of its own, since mpirun leaves ranks behind where a signal reaches it twice."""
        restrict = partial(os.sched_setaffinity, 0, self.processors) if self.processors else None
        return subprocess.Popen(self.command, env=environment(), stdin=subprocess.DEVNULL, stdout=self.log,
                                stderr=subprocess.STDOUT, process_group=0, preexec_fn=restrict)


def run_to_end(command, log, saves=False):
    """Exit code of the command, as run_together() has it."""
    return run_together([Job(command, log)], saves)[0]


def run_together(jobs, saves=False):
    """Exit codes of jobs that run side by side. A signal that ends this process ends them first, and mpirun its ranks.
    With `saves` the first one asks mpirun or srun for a checkpoint, for which SIGUSR2 goes to the ranks; the second one
    ends."""
    running, received = [], []

    def end(number=signal.SIGTERM):
        for process in running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def receive(number, _):
        received.append(number)
        if running and number == signal.SIGALRM:
            end(signal.SIGKILL)
        elif running and saves and len(received) == 1:
            tool.warn("stopping with a checkpoint; another signal ends the run without one")
            for process in running:
                process.send_signal(signal.SIGUSR2)
        elif len(received) <= 1 + saves:
            signal.alarm(GRACE_SECONDS)
            end()

    kept = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # not under nohup
    before = {number: signal.signal(number, receive) for number in (*kept, signal.SIGALRM)}
    try:
        for job in jobs:
            if not received:
                running.append(job.start())
        if received:
            end()
        codes = [process.wait() for process in running]
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt
    return codes


def open_log(path):
    with tool.using(path):
        return open(path, "w")


class Mpirun:
    """Runs on this machine or in this allocation, one round after the other."""

    def __init__(self, study):
        self.command = [find_launcher("mpirun"), *study.launch.mpirun]
        self.processors = sorted(os.sched_getaffinity(0)) if study.launch.fill else None
        if self.processors and len(self.processors) < study.launch.cores:
            raise StudyError(f"launch.fill: this process may use {len(self.processors)} processors, launch.cores says "
                             f"{study.launch.cores}")

    def start(self, runs, program):
        """Starts runs of as many ranks side by side, each on processors of its own if these are to be filled, and waits
        for their ends; a word or two on the outcome of each."""
        with contextlib.ExitStack() as logs:
            jobs = []
            for i, run in enumerate(runs):
                command = [*self.command, "-n", str(run.ranks), program, *run.arguments]
                own = self.processors and tuple(self.processors[i * run.ranks:(i + 1) * run.ranks])
                jobs.append(Job(command, logs.enter_context(open_log(run.log)), own))
            codes = run_together(jobs)
        return ["done" if code == 0 else f"failed with exit code {code}, see {run.log}" for run, code in zip(runs, codes)]


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


class Slurm:
    """Submits each run as a job of its own; `<run>.job` remembers it until it has left the queue."""

    def __init__(self, study):
        self.settings = study.launch
        check_gpus(study.launch)
        if study.launch.fill:
            raise StudyError("launch.fill: runs under mpirun alone can fill a machine")
        self.command = [find_launcher("sbatch"), "--parsable", *study.launch.sbatch]
        self.squeue = find_launcher("squeue")

    def start(self, runs, program):
        """Submits the runs; a word or two on the outcome of each."""
        return [self.submit(run, program) for run in runs]

    def submit(self, run, program):
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
    rounds = [[run for run in runs if not finished(run, study.steps)] for runs in study.rounds()]
    waiting = sum(map(len, rounds))
    if not waiting:
        return
    program = find_program(program)
    starter = LAUNCHERS[launcher](study)
    write_plans(study, program)
    ended = 0
    for runs in filter(None, rounds):
        for run, outcome in zip(runs, starter.start(runs, program)):
            ended += 1
            say(f"[{ended}/{waiting}] {run.name}: {outcome}")
