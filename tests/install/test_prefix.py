"""Installs the program, moves the prefix, and runs it from there. Usage: test_prefix.py CMAKE BUILD_DIR."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import installed


class Prefix(installed.Installed):
    def test_version(self):
        self.assertRegex(self.run_program("--version"), r"^nanorun \d+\.\d+\.\d+ \(.*\)\n$")

    def test_decks(self):
        inputs = self.prefix / "share" / "nanorun" / "inputs"
        decks = sorted(inputs.glob("*.toml"))
        self.assertIn("record21.toml", [deck.name for deck in decks])
        for deck in decks:
            self.assertRegex(self.run_program("train", "--dry-run", deck), r"\nparameters +\d+")
        self.assertEqual(list(self.elsewhere.iterdir()), [self.prefix], "a dry run writes nothing")
        self.assertTrue((inputs / "studies" / "strong.toml").is_file())

    def test_files_for_suites_of_benchmarks(self):
        """They name the job scripts by their place beside them."""
        share = self.prefix / "share" / "nanorun"
        for name in ("jube/nanorun.yaml", "reframe/nanorun_test.py", "reframe/settings.py",
                     "benchpark/repo/nanorun/application.py", "benchpark/experiments/nanorun/experiment.py"):
            self.assertTrue((share / "benchmarks" / name).is_file(), name)
        self.assertTrue(os.access(share / "jobscripts" / "benchmark.sh", os.X_OK))

    def test_documents_and_job_scripts(self):
        documents = self.prefix / "share" / "doc" / "nanorun"
        for name in ("README.md", "LICENSE", "docs/keys.md", "docs/building.md"):
            self.assertTrue((documents / name).is_file(), name)
        files = sorted((self.prefix / "share" / "nanorun" / "jobscripts").rglob("*"))
        scripts = [file for file in files if file.is_file()]
        self.assertIn("plot_run.py", [script.name for script in scripts])
        for script in scripts:
            self.assertNotRegex(script.read_text(), r"source .*setup\.sh|ctest", f"{script.name} needs the sources")

    def test_job_scripts_find_the_program(self):
        """Slurm runs a copy of the script; site.sh had been sourced before sbatch."""
        scripts = self.prefix / "share" / "nanorun" / "jobscripts"
        with tempfile.TemporaryDirectory(prefix="nanorun-spool-") as spool:
            stub = Path(spool) / "srun"
            stub.write_text("#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
            stub.chmod(0o755)
            for script, *arguments in (("train.sbatch", "deck.toml"), ("ensemble.sbatch", "deck.toml", "sweep")):
                copy = shutil.copy(scripts / script, Path(spool) / "slurm_script")
                variables = {"PATH": f"{spool}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1",
                             "SLURM_SUBMIT_DIR": spool}
                job = subprocess.run(["bash", "-euc", 'source "$0"; exec bash "$@"', scripts / "site.sh", copy, *arguments],
                                     cwd=spool, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                self.assertEqual(job.returncode, 0, job.stderr)
                self.assertIn(str(self.prefix.resolve() / "bin" / "nanorun"), job.stdout.splitlines())

    def test_tools_start(self):
        for tool in ("plot_run.py", "ensemble.py", "scaling_study.py", "benchmark.py", "record.py"):
            command = [self.prefix / "share" / "nanorun" / "jobscripts" / "tools" / tool, "--help"]
            job = subprocess.run([sys.executable, "-B", *command], cwd=self.elsewhere, capture_output=True, text=True)
            self.assertEqual((job.returncode, job.stderr), (0, ""))

    def test_measurement_of_a_node(self):
        """Through a symbolic link, with the installed program and decks, as far as it comes without data."""
        with tempfile.TemporaryDirectory(prefix="nanorun-node-") as folder:
            link = Path(folder) / "measure"
            link.symlink_to(self.prefix / "share" / "nanorun" / "jobscripts" / "measure_node.sh")
            usage = subprocess.run([link, "--help"], cwd=folder, capture_output=True, text=True)
            self.assertEqual((usage.returncode, usage.stderr), (0, ""))
            self.assertIn(f"(default: {self.prefix.resolve() / 'bin' / 'nanorun'})", usage.stdout)
            (Path(folder) / "mpirun").touch(mode=0o755)  # one is looked for, and not started
            job = subprocess.run([link, "--gpus", "1", "--data", folder, "--only", "losses"], cwd=folder,
                                 env=os.environ | {"PATH": f"{os.environ['PATH']}{os.pathsep}{folder}"},
                                 capture_output=True, text=True)
            self.assertEqual((job.returncode, job.stdout), (2, ""))
            self.assertIn(f"{Path(folder).resolve()} holds no token shards *train*.h5", job.stderr)
            self.assertFalse((Path(folder) / "outputs").exists())

    def test_run_path_follows_the_program(self):
        """Of the build directory, no library is needed; the prefix's own library directory is searched relative to
        bin."""
        dynamic = subprocess.run(
            ["readelf", "--dynamic", self.prefix / "bin" / "nanorun"], check=True, capture_output=True, text=True
        ).stdout
        paths = [line.split("[")[1].rstrip("]").split(":") for line in dynamic.splitlines() if "RUNPATH" in line]
        self.assertEqual(len(paths), 1, dynamic)
        self.assertTrue(any(path.startswith("$ORIGIN/../lib") for path in paths[0]), paths)
        self.assertNotIn(str(self.BUILD), dynamic)


if __name__ == "__main__":
    installed.main(sys.argv)
