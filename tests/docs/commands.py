"""Whether a command of the documentation can work.

Training is resolved by a dry run for the number of ranks that the command starts, through the job script where there
is one. Of other commands the files, options, presets and keys must exist. What is no known command fails.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from unittest import mock

from pages import ROOT, recipe

sys.path[:0] = [str(ROOT / "jobscripts" / "tools"), str(ROOT / "tests" / "support")]
import compare  # noqa: E402
import deadline  # noqa: E402
import ensemble  # noqa: E402
import get_fineweb  # noqa: E402
import measure_node  # noqa: E402
import plot_run  # noqa: E402
import record  # noqa: E402
import scaling_study  # noqa: E402
import small_run  # noqa: E402
import sweep  # noqa: E402
import tool  # noqa: E402
import watch  # noqa: E402
from study import StudyError  # noqa: E402
from study.study_file import read_study  # noqa: E402

# Words that stand for what the reader puts there.
PLACEHOLDERS = {
    "DECK": "inputs/record21.toml", "STUDY.toml": "inputs/studies/strong.toml", "SHARD.bin": "shard.bin",
    "SWEEP.toml": "inputs/sweeps/muon_lr.toml",
    "WORD": "muon",
    "P": "4", "W": "896", "FILE": "file", "OUTPUT": "output", "SHARD": "shard.h5", "BIN": "shard.bin", "JOB": "1",
}
# Blocks that are neither commands nor decks, by their first words.
OTHER_BLOCKS = {("architecture.md", "kernels/device "), ("scaling.md", "step = ["), ("building.md", "nanorun: "),
                ("building.md", "-from pathlib"), ("README.md", "step "), ("using.md", "outputs/quickstart/checkpoints/"), ("using.md", "#ifndef"),
                ("running.md", "GPUs: mean"), ("records.md", "     seed"), ("file_formats.md", "{"),
                ("pbs_flux.md", "#!/bin/bash"), ("plain_gpt.md", "x = E["), ("benchmark_suites.md", "FOM "), ("benchmark_suites.md", "reference = ")}
SUBCOMMANDS = {"shard", "verify", "eval", "sample", "export", "import"}  # names of subcommands in a text
# Code within text that begins like a command and is none: formats of files, and what Slurm prints.
OTHER_CODE = {"nanorun token shard", "nanorun checkpoint", "nanorun trace", "srun: error: NODE: task N: Killed"}
TRAINING = [f"jobscripts/{name}.sbatch" for name in ("train", "ensemble", "sweep")]


PROFILERS = {"nsys": ("--trace", "--capture-range", "--output"),
             "ncu": ("--nvtx", "--nvtx-include", "--set", "--export", "--import", "--profile-from-start")}


class Wrong(Exception):
    """Why a command cannot work."""


def require(condition, why):
    if not condition:
        raise Wrong(why)


# --- Reading them -----------------------------------------------------------------------------------------------------


def joined(lines):
    """Commands of a shell block: lines that end with a backslash go on in the next, && joins commands."""
    text = "\n".join(lines).replace("\\\n", " ")
    return [command.strip() for line in text.split("\n") for command in line.split(" && ")]


def words_of(command):
    """Words of a command or of its synopsis: options in brackets are taken with their first alternative, other parts in
    brackets are left out."""
    text = re.sub(r"(?<=\s)\[(--[^\]|]*)[^\]]*\]", r"\1", command)
    text = re.sub(r"(?<=\s)\[[^\]]*\]", "", text)
    text = text.replace("$checkpoint", "checkpoint.h5")  # the variable of a page
    words = [word.removesuffix("...") for word in shlex.split(text, comments=True)]
    words = [PLACEHOLDERS.get(word, word) for word in words]
    return [re.sub(r"=([A-Z])$", lambda m: "=" + PLACEHOLDERS[m[1]], word) for word in words]


def split_options(words):
    """Leading options as a dictionary, and the words after them."""
    options = {}
    while words and words[0].startswith("--"):
        name, _, value = words[0].partition("=")
        options[name] = value
        words = words[1:]
    return options, words


# --- Commands ---------------------------------------------------------------------------------------------------------


def run(*command, folder=ROOT, **variables):
    return deadline.run([str(word) for word in command], cwd=folder, env=os.environ | variables, text=True,
                        stdin=subprocess.DEVNULL, capture_output=True, timeout=120)


def dry_run(arguments, ranks):
    """`arguments` of nanorun, from "train" on."""
    words = [word for word in arguments if word != "--dry-run"]
    own = () if "--ranks" in words else ("--ranks", ranks)
    plan = run(small_run.PROGRAM, *words, "--dry-run", *own)
    require(plan.returncode == 0, plan.stderr.strip())


def nanorun(words, ranks=1):
    if words[1:2] == ["train"]:
        return None if words[2:] == ["--dry-run"] else dry_run(words[1:], ranks)
    if len(words) == 1 or (len(words) == 2 and words[1] in SUBCOMMANDS):
        return None  # names of the program and of subcommands
    with tempfile.TemporaryDirectory(prefix="nanorun-docs-") as folder:  # with none of the files
        job = run(small_run.PROGRAM, *words[1:], folder=folder)
    require(job.returncode != 2, job.stderr.strip())


def require_nanorun(word):
    """A program as the build or the installation names it."""
    presets = "|".join(names_of("configurePresets"))
    require(re.fullmatch(rf"(build/({presets})/bin/|containers/bin/)?nanorun", word), f"{word} is no build of nanorun")


def profiled(words, ranks=1):
    """A profiler whose options are known to be right, and what it starts."""
    options = PROFILERS[words[0]]
    end = next((at for at, word in enumerate(words) if word.endswith("nanorun")), len(words))
    for word in words[1:end]:
        require(not word.startswith("-") or word.partition("=")[0] in options, f"{words[0]}: unknown option {word}")
    if end < len(words):
        require_nanorun(words[end])
        nanorun(words[end:], ranks)


def mpirun(words):
    """Options of Open MPI's beside -n must be those that this test knows to be right."""
    while words[1:2] == ["--mca"]:
        require(re.fullmatch("oob_tcp_keepalive_(time|intvl|probes)", words[2]), f"mpirun: unknown parameter {words[2]}")
        words = [words[0], *words[4:]]
    if len(words) == 1:
        return
    require(words[1] == "-n" and words[2].isdigit(), "mpirun without -n RANKS")
    if words[3] in PROFILERS:
        return profiled(words[3:], int(words[2]))
    require_nanorun(words[3])
    nanorun(words[3:], int(words[2]))


def sbatch_options(script):
    text = (ROOT / script).read_text()
    return dict(line.partition("=")[::2] for line in re.findall(r"^#SBATCH (--\S+)", text, re.MULTILINE))


def started_by(script, arguments, folder):
    """What the job step of a script runs; srun is a stub that tells."""
    stub = Path(folder) / "srun"
    stub.write_text("#!/usr/bin/env bash\nprintf '%s\\0' \"$@\" >\"$ARGUMENTS\"\n")
    stub.chmod(0o755)
    job = run("bash", script, *arguments, PATH=f"{folder}:{os.environ['PATH']}", ARGUMENTS=f"{folder}/arguments",
              SLURM_JOB_ID="1", SLURM_ARRAY_TASK_ID="1", SLURM_SUBMIT_DIR=str(ROOT), SLURM_RESTART_COUNT="0",
              NANORUN_JOBSCRIPTS=str(ROOT / "jobscripts"), NANORUN_BUILD=str(Path(small_run.PROGRAM).parents[1]))
    require(job.returncode == 0, job.stderr.strip())
    return (Path(folder) / "arguments").read_text().split("\0")[:-1]


def sbatch(words):
    if len(words) == 1:
        return None
    given, (script, *arguments) = split_options(words[1:])
    known = {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time", "--array", "--exclusive", "--mem"}
    unknown = given.keys() - known
    require(not unknown, f"sbatch: {unknown} is not known to this test")
    if script == "jobscripts/benchmark.sbatch":
        return with_program(["jobscripts/benchmark.sh", *arguments])
    require(script in TRAINING, f"{script} does not train")
    options = sbatch_options(script) | given
    with tempfile.TemporaryDirectory(prefix="nanorun-docs-") as folder:
        started = started_by(script, arguments, folder)
    return dry_run(started[started.index("train"):], int(options["--nodes"]) * int(options["--ntasks-per-node"]))


def parsed(module, words):
    """Arguments of a Python tool."""
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return module.parse_arguments()
        except SystemExit:
            raise Wrong(said.getvalue()) from None
        except tool.ToolError as error:
            raise Wrong(error) from None


def scaling(words):
    arguments = parsed(scaling_study, words)
    if "--program" in words and arguments.program != "PATH":
        require_nanorun(arguments.program)
    try:
        study = read_study(ROOT / arguments.study)
    except StudyError as error:
        raise Wrong(error) from None
    for ranks in study.ranks:
        dry_run(study.run(ranks, 1).arguments, ranks)


def fineweb(words):
    arguments = parsed(get_fineweb, words)
    if "--program" in words:
        require_nanorun(arguments.program)


def repeat_record(words):
    arguments = parsed(record, words)
    if "--program" in words:
        require_nanorun(arguments.program)
    dry_run(["train", str(arguments.deck), *arguments.override], arguments.ranks or 1)


def check_sweep(path):
    """Every task is one that can be trained."""
    with contextlib.chdir(ROOT):
        try:
            tasks = sweep.read_sweep(path)
        except tool.ToolError as error:
            raise Wrong(error) from None
    for task in tasks.tasks:
        dry_run(["train", tasks.deck, *task.overrides], 1)


def with_program(words):
    """A script whose help names its options, which end at "--", and which runs a build of nanorun."""
    usage = run("bash", ROOT / words[0], "--help").stdout
    for word in words[1:(words + ["--"]).index("--")]:
        require(not word.startswith("--") or re.search(rf"\[{word}[ \]]", usage), f"{words[0]} has no option {word}")
    if "--program" in words:
        require_nanorun(words[words.index("--program") + 1])


def test_script(path, words):
    for word in words[1:]:
        require(f" {word})" in path.read_text(), f"{words[0]} has no option {word}")


def jobscript(words):
    path = ROOT / words[0]
    require(path.is_file(), f"{words[0]}: no such script")
    require(path.suffix == ".sbatch" or path.name in ("site.sh", "setup.sh") or os.access(path, os.X_OK),
            f"{words[0]} cannot be executed")
    if path.suffix in (".sh", ".sbatch"):
        require(run("bash", "-n", path).returncode == 0, f"{words[0]} is no shell script")
    if len(words) == 1:
        return
    tools = {"ensemble.py": lambda: parsed(ensemble, words), "plot_run.py": lambda: parsed(plot_run, words),
             "scaling_study.py": lambda: scaling(words), "measure_node.sh": lambda: with_program(words),
             "measure_node.py": lambda: parsed(measure_node, words),
             "benchmark.sh": lambda: with_program(words), "benchmark.sbatch": lambda: sbatch(["sbatch", *words]),
             "record.sh": lambda: repeat_record(words), "compare.py": lambda: parsed(compare, words),
             "watch.py": lambda: parsed(watch, words),
             "sweep.py": lambda: check_sweep(parsed(sweep, words).sweep), "get_fineweb.py": lambda: fineweb(words),
             "sweep.sbatch": lambda: sbatch(["sbatch", *words]), "train.sbatch": lambda: sbatch(["sbatch", *words]),
             "ensemble.sbatch": lambda: sbatch(["sbatch", *words]), "test.sh": lambda: test_script(path, words),
             "quickstart.sh": lambda: dry_run(["train", "inputs/quickstart.toml", *words[1:]], 2)}
    require(path.name in tools, f"{words[0]} takes no arguments")
    tools[path.name]()


def source(words):
    if len(words) > 1:
        jobscript(words[1:])


def python3(words):
    """A script whose help names the options."""
    words = [word for word in words if word != "-B"]
    script = ROOT / words[1]
    require(script.is_file(), f"{words[1]}: no such script")
    text = script.read_text()
    for word in words[2:]:
        require(not word.startswith("--") or f'"{word}"' in text, f"{words[1]} has no option {word}")


def names_of(presets):
    return [preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())[presets]]


def require_preset(words, presets):
    name = words[words.index("--preset") + 1]
    require(name in names_of(presets), f"{name} is none of the {presets}")


def cmake_texts():
    return "\n".join(path.read_text() for path in [ROOT / "CMakeLists.txt", *(ROOT / "tests").rglob("CMakeLists.txt")])


def ctest(words):
    if words[1] == "--preset":
        require_preset(words, "testPresets")
        words = [words[0], *words[3:]]
    elif words[1] == "--test-dir":
        require(re.fullmatch(r"build/\w+", words[2]), f"no build directory: {words[2]}")
        words = [words[0], *words[3:]]
    if words[-2:-1] == ["--parallel"] and words[-1].isdigit():
        words = words[:-2]
    if len(words) == 1:
        return
    require(words[1] in ("-L", "-R") and len(words) == 3, "ctest: options that this test does not know")
    require(re.search(rf"\b{re.escape(words[2])}", cmake_texts()), f"no test of that name or label: {words[2]}")


def test_program(words):
    """A C++ test program, and the cases that it is to run."""
    name = Path(words[0]).name
    sources = list((ROOT / "tests").rglob(f"{name}.cpp"))
    require(sources, f"{words[0]} is no test")
    cases = re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\)", sources[0].read_text(), re.MULTILINE)
    for word in words[1:]:
        require(word.removeprefix("--gtest_filter=") in [".".join(case) for case in cases], f"{name} has no {word}")


def cmake(words):
    known = {"--preset", "--build", "--install", "--prefix", "--parallel", "--target", "--component", "-S", "-B"}
    variables = ("Kokkos_ROOT", "BLA_VENDOR", "BLAS_LIBRARIES", "MPI_C_COMPILER", "HDF5_C_COMPILER_EXECUTABLE")
    if "--preset" in words:
        require_preset(words, "buildPresets" if "--build" in words else "configurePresets")
    for word in words[1:]:
        if word.startswith("-DNANORUN_"):
            require(f"({word[2:].partition('=')[0]} " in cmake_texts(), f"{word} is no option of the project")
        elif word.startswith("-"):
            require(word in known or re.match(rf"-D(CMAKE_\w+|{'|'.join(variables)})=", word),
                    f"cmake: unknown option {word}")


def apt_get(words):
    scripts = "".join((ROOT / "jobscripts" / name).read_text() for name in ("setup.sh", "test.sh"))
    listed = " ".join(re.findall(r"packages\+?=\(([^)]*)\)", scripts)).split()
    require(words[1] == "install" and set(words[2:]) <= set(listed), f"in no script: {set(words[2:]) - set(listed)}")


def spack(words):
    known = ("env", "install", "repo", "mirror", "fetch", "test", "load", "uninstall", "dev-build", "spec", "audit",
             "-e")
    require(words[1] in known, f"spack {words[1]} is not known to this test")
    for word in words[2:]:
        if ("/" in word and not word.startswith("$PWD")) or word.endswith(".yaml"):
            require((ROOT / word).exists(), f"{word}: no such file")
        require(not word.startswith("+") or f'"{word[1:]}"' in recipe(), f"the recipe has no variant {word}")


def words_from(*known):
    """A command of the system whose options are known to be right."""
    def check(words):
        for word in words[1:]:
            require(not word.startswith("-") or word.partition("=")[0] in known, f"{words[0]}: unknown option {word}")
    return check


def with_files_from(*known):
    """As words_from(); files of the repository must be there."""
    def check(words):
        words_from(*known)(words)
        for word in words[1:]:
            require(not re.match("(benchmarks|spack)/", word) or (ROOT / word).exists(), f"{word}: no such file")
    return check


def container(*known):
    """podman and apptainer: they build images of containers/, save them, or run a command in one."""
    def check(words):
        if len(words) == 1:
            return None  # its name in a text
        if words[1] == "exec":
            return check_of(words[3])(words[3:])
        require(words[1] in ("build", "save", "import", "stop"), f"{words[0]} {words[1]} is not known to this test")
        words_from(*known)(words)
        declared = "".join((ROOT / "containers" / name).read_text() for name in ("Dockerfile", "nanorun.def"))
        for option, value in zip(words, words[1:]):
            name = value.partition("=")[0]
            require(option != "--build-arg" or re.search(rf"(ARG|{{{{) {name}\b", declared), f"no argument {name}")
            require(option != "--target" or f" AS {value}\n" in declared, f"no stage {value}")
            require(not value.startswith("containers/") or value.endswith(".sif") or (ROOT / value).exists(),
                    f"{value}: no such file")
        return None
    return check


CHECKS = {
    "nanorun": nanorun, "mpirun": mpirun, "sbatch": sbatch, "source": source, "python3": python3, "ctest": ctest,
    "cmake": cmake, "apt-get": apt_get, "spack": spack, "mkdir": words_from("-p"), "touch": words_from(),
    "module": words_from(), "srun": words_from("--wait", "--mpi"), "scancel": words_from("--signal"),
    "nsys": profiled, "ncu": profiled, "export": words_from(),
    "scontrol": words_from(), "lfs": words_from("-c", "-S"), "cp": with_files_from("-r", "-al"), ".": words_from(),
    "jube": with_files_from("-o", "-r", "-t"), "benchpark": words_from("--dest"), "ramble": words_from("--workspace-dir"),
    "reframe": with_files_from("-C", "-c", "--system", "-P", "-S", "-n", "-r", "--performance-report"),
    "podman": container("--build-arg", "--target", "-t", "-f", "-o", "--format"), "apptainer": container("--build-arg"),
    "lm_eval": words_from("--model", "--model_args", "--tasks", "--batch_size"),
}


def check_of(word):
    """The check of a command by its first word, or None."""
    if word.startswith("jobscripts/") and not word.endswith("/"):
        return jobscript
    if word == "containers/bin/nanorun":
        return nanorun
    if re.fullmatch(r"build/\w+/bin/nanorun", word):
        return lambda words: (require_nanorun(words[0]), nanorun(words))
    if re.fullmatch(r"build/cpu/bin/test_\w+", word):
        return test_program
    if re.fullmatch(r"[a-z]+=\$\(ls", word):  # the newest of some files
        return words_from("-n")
    return CHECKS.get(word)


def check_command(command):
    """Raises Wrong unless the command can work."""
    try:
        words = words_of(command)
        check = check_of(words[0])
        require(check, f"{words[0]} is no command that this test knows")
        check(words)
    except Wrong as wrong:
        raise AssertionError(f"{command}\n{wrong}") from None


def check_deck(lines):
    tomllib.loads("\n".join(lines))
    with tempfile.TemporaryDirectory(prefix="nanorun-docs-") as folder:
        deck = Path(folder) / "deck.toml"
        deck.write_text("\n".join(lines) + "\n")
        dry_run(["train", str(deck)], 1)


def check_sweep_block(lines):
    with tempfile.TemporaryDirectory(prefix="nanorun-docs-") as folder:
        path = Path(folder) / "sweep.toml"
        path.write_text("\n".join(lines) + "\n")
        check_sweep(path)


def check_block(page, lines):
    if lines[0].startswith("deck = "):
        return check_sweep_block(lines)
    if re.fullmatch(r"\[[a-z]+\]", lines[0]):
        return check_deck(lines)
    if any(page == name and lines[0].startswith(first) for name, first in OTHER_BLOCKS):
        return None
    for command in joined(lines):
        check_command(command)
