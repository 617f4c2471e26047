"""Every command of the documentation is one that works.
Usage: test_commands.py PROGRAM MPIRUN.
"""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import OTHER_CODE, check_block, check_command, check_of, joined, run, small_run, words_of
from pages import PAGES, ROOT, blocks

RUN = ROOT / "docs" / "tutorial.md"  # whose blocks test_tutorial.py runs


class Commands(unittest.TestCase):
    def test_blocks(self):
        count = 0
        for page in PAGES:
            for kind, text in blocks(page.read_text()) if page != RUN else ():
                if kind == "text":  # what a command prints
                    continue
                lines = [line for line in text.splitlines() if line.strip()]
                count += 1
                with self.subTest(page=page.name, line=lines[0]):
                    check_block(page.name, lines)
        self.assertGreaterEqual(count, 18)

    def test_blocks_make_the_shards_that_they_train_on(self):
        """In a directory without any other file."""
        count = 0
        for page in PAGES:
            for _, text in blocks(page.read_text()) if page != RUN else ():
                if not re.search(r"^\S*nanorun shard .*\n\S*nanorun train ", text, re.MULTILINE):
                    continue
                *commands, training = [words_of(command) for command in joined(text.splitlines()) if command]
                count += 1
                with self.subTest(page=page.name), tempfile.TemporaryDirectory(prefix="nanorun-docs-") as folder:
                    self.check_shards(commands, training, Path(folder))
        self.assertGreaterEqual(count, 4)

    def check_shards(self, commands, training, folder):
        """The commands in front of a training make what it reads."""
        for program, *words in commands:
            job = run(small_run.PROGRAM if program.endswith("nanorun") else program, *words, folder=folder)
            self.assertEqual(job.returncode, 0, job.stderr)
        files = [word.partition("=")[2] for word in training if re.match(r"data\.(train|validation)=", word)]
        self.assertEqual([(folder / name).is_file() for name in files], 2 * [True], files)

    def test_all_indented_lines_are_in_blocks(self):
        for page in PAGES:
            text = page.read_text()
            found = sum(len(re.findall(r"^.*\S", inside, re.M)) for kind, inside in blocks(text) if kind is None)
            outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
            self.assertEqual(found, len(re.findall(r"^ {4,}\S", outside, re.M)), page.name)

    def test_code_within_text(self):
        count = 0
        for page in PAGES:
            for code in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", page.read_text()):
                code = " ".join(code.split())
                if code in OTHER_CODE or not check_of(code.split()[0]):
                    continue
                count += 1
                with self.subTest(page=page.name, code=code):
                    check_command(code)
        self.assertGreaterEqual(count, 40)

    def test_examples_of_the_help(self):
        """Those that the help of each command ends with."""
        def examples(*command):
            said = subprocess.run([small_run.PROGRAM, *command, "--help"], stdout=subprocess.PIPE, text=True,
                                  check=True).stdout
            return said, re.findall(r"^  ((?:mpirun|nanorun) .*)$", said.partition("\nExamples:\n")[2], re.MULTILINE)
        said, shown = examples()
        commands = re.findall(r"^  ([a-z]+) ", said.partition("\nSubcommands:\n")[2].partition("\n\n")[0], re.MULTILINE)
        for command in commands:
            of_command = examples(command)[1]
            self.assertGreaterEqual(len(of_command), 2, command)
            shown += of_command
        self.assertGreaterEqual(len(shown), 20)
        for command in shown:
            with self.subTest(command=command):
                check_command(command)

    def test_wrong_commands_are_found(self):
        deck = "inputs/record21.toml"
        train, script = f"build/cpu/bin/nanorun train {deck}", f"jobscripts/train.sbatch {deck}"
        wrong = [
            f"sbatch --nodes=2 --ntasks-per-node=8 --time=4:00:00 {script} run.name=first", f"sbatch {script} x=y",
            f"sbatch --gpus=8 {script}", f"sbatch jobscripts/trains.sbatch {deck}",
            f"sbatch --array=1-2 jobscripts/ensemble.sbatch {deck}", f"mpirun -n 16 {train}",
            f"mpirun -n 8 {train} run.nam=first", f"mpirun -n 8 {train}s", f"mpirun {train}", "nanorun train",
            f"mpirun -n 8 build/gpu/bin/nanorun train {deck}", f"nanorun train {deck} train.sequences=0",
            "nanorun shard --list", "nanorun shards a b", "nanorun verify --all FILE", "nanorun export SHARD",
            "ctest --preset gpu", "ctest -L unitary", "ctest --preset cpu -L unitary", "build/cpu/bin/test_none",
            "build/cpu/bin/test_files --gtest_filter=Files.None", "cmake --preset gpu",
            "cmake -S . -DNANORUN_GPU=ON", "cmake --builds build", "jobscripts/tools/plot_runs.py outputs/x",
            "jobscripts/plot_run.py outputs/x", "jobscripts/tools/plot_run.py --picture x outputs/x",
            "jobscripts/test.sh --all", "jobscripts/tools/scaling_study.py inputs/studies/none.toml",
            "jobscripts/tools/scaling_study.py inputs/studies/weak.toml --launcher pbs",
            "jobscripts/tools/ensemble.py --goal 3 outputs/x", "source jobscripts/sites.sh", "apt-get install nanorun",
            "spack repo add spack/none", "jobscripts/tools/compare.py outputs/x --goal 3",
            "jobscripts/tools/watch.py outputs/x --wandb",
            "jobscripts/tools/watch.py outputs/x --every 0", "jobscripts/tools/sweep.py none.toml --list",
            "jobscripts/tools/sweep.py inputs/sweeps/muon_lr.toml", "jobscripts/tools/get_fineweb.py --dataset x",
            "jobscripts/tools/get_fineweb.py --shards 104", f"sbatch --array=1-9 jobscripts/sweep.sbatch {deck}",
            "jobscripts/tools/get_fineweb.py --program build/gpu/bin/nanorun",
            "python3 tests/bench/compare_pytorch.py SHARD.bin --pair 3", "make", "jobscripts/benchmark.sh --rank 2",
            "jube run benchmarks/jube/none.yaml", "cp -r spack/none .", "apt-get install jubes",
            "podman build --target tpu -f containers/Dockerfile .", "apptainer build --build-arg BASES=x a.sif b.def",
            "podman build -f containers/Containerfile .", "mpirun -n 2 containers/nanorun train " + deck,
            "jobscripts/record.sh inputs/record21.toml", "jobscripts/record.sh none.toml --seeds 2",
            "nanorun keys mu0n",
            "jobscripts/record.sh inputs/record21.toml --seeds 2 -- train.wide=1",
            "jobscripts/benchmark.sh --program build/gpu/bin/nanorun", "sbatch jobscripts/benchmark.sbatch --gpus 8",
        ]
        for command in wrong:
            with self.subTest(command=command):
                with self.assertRaises(AssertionError):
                    check_command(command)


if __name__ == "__main__":
    small_run.main()
