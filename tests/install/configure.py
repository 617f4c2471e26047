"""What the tests of the build share: configuring the sources, and what CMake made of them. Standard library only."""

import json
import re
import shlex
import subprocess
from pathlib import Path


def configure(cmake, source, build, *options):
    """Configures without the tests; what is not given is as for a user who gives nothing. Returns what CMake says."""
    command = [cmake, "-S", source, "-B", build, "-DNANORUN_TESTS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
               "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", "--no-warn-unused-cli", *options]
    job = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.returncode == 0, job.stdout
    return job.stdout


def commands(build):
    """Source file to the arguments that compile it."""
    entries = json.loads((Path(build) / "compile_commands.json").read_text())
    return {Path(entry["file"]): shlex.split(entry["command"]) for entry in entries}


def cache(build):
    """Name to value of what CMake has found or was told."""
    text = (Path(build) / "CMakeCache.txt").read_text()
    return dict(re.findall(r"^([A-Za-z0-9_]+):[A-Z]+=(.*)$", text, re.MULTILINE))
