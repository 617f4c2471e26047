"""The program of a study: how it is found, and asked about a deck."""

import os
import shutil
import subprocess
from pathlib import Path

import tool

from . import StudyError


def find_program(name):
    program = shutil.which(name)
    if program is None:
        raise StudyError(f"{name}: no such program; build it, or name it with --program")
    return str(Path(program).resolve())


def environment():
    """The environment of mpirun: Open MPI refuses to run as root unless two variables allow it."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return os.environ | as_root


DATA = 3  # exit code of a run that the shards do not serve


def dry_run(program, run, *options, elsewhere=False):
    """What the program's dry run of a run prints with the options, and why it refuses the run; empty where it does
    not. A run elsewhere has other shards: these do not matter."""
    with tool.using(program):
        dry = subprocess.run([program, *run.arguments, "--dry-run", *options], env=environment(), text=True,
                             errors="replace", stdin=subprocess.DEVNULL, capture_output=True)
    if dry.returncode == 0 or (elsewhere and dry.returncode == DATA):
        return dry.stdout, ""
    said = [line for line in dry.stderr.splitlines() if line.startswith("nanorun: ")]
    return dry.stdout, said[0] if said else f"{program} cannot read the deck: {dry.stderr.strip()}"
