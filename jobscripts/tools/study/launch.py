"""Starts the runs of a study that have not finished, under mpirun or as Slurm jobs."""

import contextlib
import os
import shutil
import signal
import subprocess
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
    write_plans(study, program)
    for i, run in enumerate(waiting, 1):
        say(f"[{i}/{len(waiting)}] {run.name}: {starter.start(run, program)}")
