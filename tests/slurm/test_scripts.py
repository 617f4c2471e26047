"""The job scripts without Slurm: what they start, and when they continue a run.

Usage: test_scripts.py PROGRAM MPIRUN.
"""

import os
import shutil
import signal
import subprocess
import tomllib
import unittest

from scripts import CHECKPOINT, JOBSCRIPTS, REPOSITORY, SRUN, Script, small_run

SWEEP = """
deck = "deck.toml"
name = "two words"
seeds = [5, 6]
[grid]
"optimizer.muon_lr" = [0.05, 0.1]
"data.end" = ["wrap"]
"""
BENCHMARK = """
[benchmark]
deck = "deck.toml"
vocabulary = 64
seed = 3
entropy_rate = 1.9
sequences = 4
length = 256
checked = 2
steps = 6
overrides = []
"""
LATER = "outputs/other/checkpoints/checkpoint_00000003.h5"


class Restart(Script):
    """Each of the user's words on where to begin holds until the job has a checkpoint of its own."""

    WORDS = [("deck.toml", *words) for words in (
        (), ("train.steps=5",), ("checkpoint.restart=none", "train.steps=5"), ("checkpoint.restart=auto",),
        (f"checkpoint.restart={LATER}", "run.name=a b"))]

    def continued(self, words):
        return ["train", *(word for word in words if not word.startswith("checkpoint.restart=")),
                "checkpoint.restart=auto"]

    def each(self, check):
        for words in self.WORDS:
            for restarts in (None, 0):
                with self.subTest(words=words, restarts=restarts):
                    self.record.unlink(missing_ok=True)
                    check(words, restarts)

    def assert_started(self, words, restarts, expected):
        self.run_script("train.sbatch", *words, restarts=restarts)
        self.assertEqual(self.training(), expected)
        self.assertFalse(self.requeued())

    def test_first_start_leaves_the_words_alone(self):
        self.each(lambda words, restarts: self.assert_started(words, restarts, ["train", *words]))

    def test_a_job_that_stopped_with_a_checkpoint_continues(self):
        def check(words, restarts):
            for ranks in ("exit 75", f"{CHECKPOINT}; exit 75"):
                self.run_script("train.sbatch", *words, restarts=restarts, ranks=ranks, code=75)
                self.assertTrue(self.requeued())
                for again in (1, 2):
                    ranks = f"{CHECKPOINT.replace('250', f'{again}500')}; exit 75"
                    self.run_script("train.sbatch", *words, restarts=again, ranks=ranks, code=75)
                    self.assertEqual(self.training(), self.continued(words))
                    self.assertTrue(self.requeued())
                self.assert_started(words, 3, self.continued(words))
                self.assertEqual(list(self.folder.iterdir()), [], "the record goes when the run has finished")

        self.each(check)

    def test_a_job_that_gets_no_further_is_not_requeued(self):
        """As one whose signal to stop comes before its first step. A checkpoint of the same name is a new one."""
        for first in ("exit 75", f"{CHECKPOINT}; exit 75"):
            self.run_script("train.sbatch", "deck.toml", restarts=0, ranks=first, code=75)
            self.assertTrue(self.requeued())
            said = self.run_script("train.sbatch", "deck.toml", restarts=1, ranks="exit 75", code=75)
            self.assertFalse(self.requeued())
            self.assertIn("job 7 has made no checkpoint since it was requeued, and is not requeued again: ", said)
            self.run_script("train.sbatch", "deck.toml", restarts=2, ranks=f"{CHECKPOINT}; exit 75", code=75)
            self.assertTrue(self.requeued())

    def test_lines_that_srun_labels(self):
        for label in ("0: ", " 0: ", "00: "):
            ranks = f"echo '{label}{CHECKPOINT.partition(chr(39))[2]}; exit 5"
            said = self.run_script("train.sbatch", "deck.toml", ranks=ranks, code=5)
            self.assertEqual(said, f"{label}checkpoint outputs/run/checkpoints/checkpoint_00000250.h5\n")
            self.assertEqual(self.record.read_text(), "outputs/run/checkpoints/checkpoint_00000250.h5\n")

    def test_srun_writes_into_no_file(self):
        self.run_script("train.sbatch", "deck.toml", ranks='exit "${SLURM_STDOUTMODE-5}"', code=5, SLURM_STDOUTMODE="6")

    def test_a_node_lost_before_a_checkpoint_leaves_the_words_alone(self):
        def check(words, restarts):
            self.lose_node("train.sbatch", *words, restarts=restarts, ranks="echo 'step 1/9 loss 5'")
            self.assert_started(words, 1, ["train", *words])

        self.each(check)

    def test_a_node_lost_before_the_step_began_leaves_the_words_alone(self):
        self.each(lambda words, _: self.assert_started(words, 1, ["train", *words]))

    def test_a_node_lost_after_a_checkpoint_continues(self):
        def check(words, restarts):
            self.lose_node("train.sbatch", *words, restarts=restarts, ranks=CHECKPOINT)
            said = self.run_script("train.sbatch", *words, restarts=1)
            self.assertIn("job 7 continues after outputs/run/checkpoints/checkpoint_00000250.h5\n", said)
            self.assertEqual(self.training(), self.continued(words))

        self.each(check)

    def test_a_failed_job_that_is_requeued_by_hand_continues(self):
        self.run_script("train.sbatch", "deck.toml", "checkpoint.restart=none", ranks=f"{CHECKPOINT}; exit 5", code=5)
        self.assertFalse(self.requeued())
        self.run_script("train.sbatch", "deck.toml", "checkpoint.restart=none", restarts=1)
        self.assertEqual(self.training(), ["train", "deck.toml", "checkpoint.restart=auto"])

    def test_the_record_of_an_older_job_with_the_number_is_ignored(self):
        for restarts in (None, 0):
            self.record.write_text("outputs/old/checkpoints/checkpoint_00000001.h5\n")
            self.lose_node("train.sbatch", "deck.toml", "checkpoint.restart=none", restarts=restarts, ranks="true")
            self.assertEqual(self.training(), ["train", "deck.toml", "checkpoint.restart=none"])
            self.run_script("train.sbatch", "deck.toml", "checkpoint.restart=none", restarts=1)
            self.assertEqual(self.training(), ["train", "deck.toml", "checkpoint.restart=none"])

    def test_a_job_that_cannot_keep_its_record_is_not_requeued(self):
        """Else a deck that begins anew would do so for ever."""
        said = self.run_script("train.sbatch", "deck.toml", ranks="rm -rf ../work; exit 75", code=75)
        self.assertFalse(self.requeued(), said)
        self.assertIn("nanorun-7.checkpoint", said)
        self.folder.mkdir()

    def test_the_table_of_times_is_no_checkpoint(self):
        self.run_script("train.sbatch", "deck.toml", ranks="echo 'checkpoint     1.234 s   2 %'; exit 5", code=5)
        self.assertFalse(self.record.exists())

    def test_output_and_exit_code_are_those_of_the_ranks(self):
        ranks = r"printf 'a\\tb  \n\n%s\nlast' '*'; echo problem >&2; exit 5"
        said = self.run_script("train.sbatch", "deck.toml", ranks=ranks, code=5)
        self.assertEqual(sorted(said.splitlines()), sorted(["a\\tb  ", "", "*", "last", "problem"]))

    def test_the_last_words_of_cancelled_ranks_arrive(self):
        """Slurm sends SIGTERM to the script and to the ranks, which then write a checkpoint."""
        ranks = f"trap ': ' TERM; touch $STUBS/at_work; sleep 1 & wait; sleep 0.3; {CHECKPOINT}; exit 75"
        job = self.start("train.sbatch", "deck.toml", ranks=ranks)
        self.until_at_work(job)
        os.killpg(job.pid, signal.SIGTERM)
        said, _ = job.communicate(timeout=60)
        self.assertIn("checkpoint_00000250.h5", said)
        self.assertEqual(self.record.read_text(), "outputs/run/checkpoints/checkpoint_00000250.h5\n")
        self.assertFalse(self.requeued())


class Ensemble(Script):
    NAMES = ["sweep", "two words", " ", 'a "b" c', "it's", "back\\slash", "\\", '"', "12", "1e5", "0x1F", "1_000",
             "true", "nan", "inf", "1979-05-27", "[1]", "{}", "#", "a#b", "$(touch x)", "`x`", "*", "-n", "--dry-run",
             "a=b", "größer", "日本", "..", "a;b", "%s", "'''", '"""', "\\u0041", "\\n", "a,b"]

    def setUp(self):
        super().setUp()
        small_run.write_deck(self.folder)

    def test_a_name_reaches_the_program_as_it_is(self):
        for name in self.NAMES:
            with self.subTest(name=name):
                self.run_script("ensemble.sbatch", "deck.toml", name, "train.steps=4")
                plan = self.dry_run()
                self.assertEqual(plan.returncode, 0, plan.stderr)
                sections = [part for part in plan.stdout.split("\n\n") if part.startswith("[")]
                deck = tomllib.loads("\n".join(sections))
                self.assertEqual(deck["run"]["name"], f"{name}_3")
                self.assertEqual(deck["run"]["seed"], 3)
                self.assertEqual(deck["train"]["steps"], 4)

    def dry_run(self):
        return subprocess.run([small_run.PROGRAM, *self.training(), "--dry-run"], cwd=self.folder, text=True,
                              env=self.environment, stdin=subprocess.DEVNULL, capture_output=True)

    def test_names_that_cannot_be_are_refused(self):
        for name in ("", "a/b", "/", "../x", "a\nb", "a\tb", "\x1b[2J", "\x7f", "train.steps=4", "run.name=x"):
            with self.subTest(name=name):
                said = self.run_script("ensemble.sbatch", "deck.toml", name, code=2)
                self.assertRegex(said, r"^ensemble\.sbatch: .* cannot be the NAME of a directory\n$")
                self.assertNotRegex(said[:-1], r"[\x00-\x1f\x7f]")
                self.assertFalse((self.stubs / "arguments").exists())

    def test_a_name_that_is_not_utf8_is_refused_by_the_program(self):
        self.run_script("ensemble.sbatch", "deck.toml", "a\udcffb")
        arguments = (self.stubs / "arguments").read_bytes().split(b"\0")[:-1]
        plan = subprocess.run([small_run.PROGRAM, *arguments[arguments.index(b"train"):], "--dry-run"], cwd=self.folder,
                              env=self.environment, stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(plan.returncode, 2)
        self.assertEqual(plan.stderr.count(b"\n"), 1, plan.stderr)

    def test_usage(self):
        for arguments in ((), ("deck.toml",)):
            self.assertIn("usage: sbatch", self.run_script("ensemble.sbatch", *arguments, code=2))

    def test_a_task_continues_like_a_job(self):
        words = ("deck.toml", "sweep", "checkpoint.restart=none")
        self.run_script("ensemble.sbatch", *words, ranks="exit 75", code=75)
        self.assertIn("checkpoint.restart=none", self.training())
        self.assertTrue(self.requeued())
        self.run_script("ensemble.sbatch", *words, restarts=1)
        self.assertEqual(self.training(),
                         ["train", "deck.toml", "run.seed=3", 'run.name="sweep_3"', "checkpoint.restart=auto"])


class Sweep(Script):
    """Task 3 has the second learning rate and the first seed."""

    WORDS = ["train", "deck.toml", "optimizer.muon_lr=0.1", 'data.end="wrap"', "run.seed=5",
             'run.name="two words_0.1_5"']

    def setUp(self):
        super().setUp()
        small_run.write_deck(self.folder)
        (self.folder / "sweep.toml").write_text(SWEEP)

    def finish(self, name, steps=12):
        folder = self.folder / "outputs" / name
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(f'{{"finished": true, "steps": {steps}}}')

    def test_a_task_trains_its_combination(self):
        said = self.run_script("sweep.sbatch", "sweep.toml")
        self.assertEqual(self.training(), self.WORDS)
        self.assertEqual(said, "4 of 4 tasks have not finished, and there is no page yet\n")
        plan = subprocess.run([small_run.PROGRAM, *self.training(), "--dry-run"], cwd=self.folder, text=True,
                              env=self.environment, stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(plan.returncode, 0, plan.stderr)

    def test_a_run_that_has_finished_is_skipped(self):
        self.finish("two words_0.1_5")
        said = self.run_script("sweep.sbatch", "sweep.toml")
        self.assertFalse((self.stubs / "arguments").exists())
        self.assertIn("two words_0.1_5 has finished\n", said)
        self.assertIn("3 of 4 tasks have not finished", said)

    def test_a_task_continues_like_a_job(self):
        self.run_script("sweep.sbatch", "sweep.toml", ranks="exit 75", code=75)
        self.assertTrue(self.requeued())
        self.run_script("sweep.sbatch", "sweep.toml", restarts=1)
        self.assertEqual(self.training(), [*self.WORDS, "checkpoint.restart=auto"])

    def test_a_page_that_cannot_be_made_fails_no_run(self):
        for name in ("two words_0.05_5", "two words_0.05_6", "two words_0.1_5", "two words_0.1_6"):
            self.finish(name)  # without decks
        said = self.run_script("sweep.sbatch", "sweep.toml")
        self.assertIn("sweep.py: outputs/two words_0.05_5/deck.toml: ", said)

    def test_what_cannot_be_is_one_line(self):
        self.assertIn("usage: sbatch", self.run_script("sweep.sbatch", code=2))
        self.assertIn("usage: sbatch", self.run_script("sweep.sbatch", "sweep.toml", SLURM_ARRAY_TASK_ID="", code=2))
        for sweep, variables in (("none.toml", {}), ("sweep.toml", {"SLURM_ARRAY_TASK_ID": "5"})):
            said = self.run_script("sweep.sbatch", sweep, code=2, **variables)
            self.assertRegex(said, r"^sweep\.py: .*\n$")
            self.assertFalse((self.stubs / "arguments").exists())


class Benchmark(Script):
    def test_ranks_and_options(self):
        """srun starts the ranks of the job; the options on the command line come after those of the script."""
        small_run.write_deck(self.folder)
        (self.folder / "tiny.toml").write_text(BENCHMARK)
        said = self.run_script("benchmark.sbatch", "--size", "tiny.toml", "--", "optimizer.muon_lr=0.01",
                               ranks='"${@:3}"', SLURM_NTASKS="1", code=3)
        self.assertRegex(said, r"\nNO REFERENCE: tiny\.toml has no \[reference\.cpu\]\n$")
        arguments = (self.stubs / "arguments").read_text().split("\0")
        self.assertEqual(arguments[:4], ["-n", "1", small_run.PROGRAM, "train"])
        self.assertIn("optimizer.muon_lr=0.01", arguments)
        self.assertTrue((self.folder / "outputs" / "benchmark-7" / "benchmark.json").is_file())
        said = self.run_script("benchmark.sbatch", "--size", "tiny.toml", SLURM_NTASKS="3", code=2, SLURM_JOB_ID="8")
        self.assertRegex(said, r"^benchmark\.sh: --ranks: the 4 sequences .* among 3 ranks; .*\n$")

    def test_usage(self):
        self.assertIn("usage: sbatch", self.run_script("benchmark.sbatch", code=2, SLURM_JOB_ID=""))


class Site(Script):
    """Slurm's copy of a script finds the others of its repository."""

    def setUp(self):
        super().setUp()
        del self.environment["NANORUN_BUILD"], self.environment["NANORUN_JOBSCRIPTS"]
        self.checkout = self.top / "a checkout"
        shutil.copytree(JOBSCRIPTS, self.checkout / "jobscripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(REPOSITORY / "inputs", self.checkout / "inputs")
        (self.checkout / "CMakeLists.txt").touch()
        self.program = self.checkout / "build" / "cpu" / "bin" / "nanorun"
        self.write_program(self.program)

    def write_program(self, path):
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def started(self):
        """What the job step runs."""
        return (self.stubs / "arguments").read_text().split("\0")

    def scripts(self):
        """Scripts with arguments; test.sbatch starts ctest, which is a stub here."""
        (self.stubs / "ctest").write_text(SRUN)
        (self.stubs / "ctest").chmod(0o755)
        small_run.write_deck(self.folder)
        (self.folder / "sweep.toml").write_text(SWEEP)
        return [("train.sbatch", "deck.toml"), ("ensemble.sbatch", "deck.toml", "sweep"),
                ("sweep.sbatch", "sweep.toml"), ("test.sbatch",), ("scaling.sbatch", self.program),
                ("benchmark.sbatch",)]

    def check(self, **variables):
        for script, *arguments in self.scripts():
            with self.subTest(script=script):
                code = 1 if script == "benchmark.sbatch" else 0  # for the stub trains nothing
                self.run_script(self.checkout / "jobscripts" / script, *arguments, code=code, **variables)
                expected = self.checkout / "build" / "cpu" if script == "test.sbatch" else self.program
                self.assertIn(str(expected), self.started())

    def test_all_scripts_are_checked(self):
        self.assertEqual(sorted(script for script, *_ in self.scripts()),
                         sorted(path.name for path in JOBSCRIPTS.glob("*.sbatch")))

    def test_submitted_from_the_repository(self):
        self.check(SLURM_SUBMIT_DIR=str(self.checkout))

    def test_submitted_from_elsewhere_after_sourcing(self):
        sourced = subprocess.run(
            ["bash", "-euc", 'source "$1"; echo "$NANORUN_JOBSCRIPTS"', "bash", self.checkout / "jobscripts/site.sh"],
            cwd=self.top, env=self.environment | {"CDPATH": str(self.checkout)}, text=True, capture_output=True)
        self.assertEqual((sourced.stdout, sourced.returncode), (f"{self.checkout}/jobscripts\n", 0), sourced.stderr)
        self.check(NANORUN_JOBSCRIPTS=sourced.stdout.strip())

    def test_run_within_an_allocation(self):
        """With bash and not with sbatch: the script lies beside site.sh."""
        (self.stubs / "ranks").write_text(":")
        subprocess.run(["bash", self.checkout / "jobscripts" / "train.sbatch", "deck.toml"], cwd=self.folder,
                       env=self.environment, stdin=subprocess.DEVNULL, check=True)
        self.assertIn(str(self.program), self.started())

    def test_no_site_is_one_line(self):
        for script, *arguments in self.scripts():
            with self.subTest(script=script):
                for variables in ({}, {"NANORUN_JOBSCRIPTS": str(self.top)}, {"SLURM_SUBMIT_DIR": "/"}):
                    said = self.run_script(script, *arguments, code=2, **variables)
                    self.assertRegex(said, rf"^{script}: site\.sh not found; .*\n$")
                    self.assertFalse((self.stubs / "arguments").exists())

    def test_no_program_is_one_line(self):
        self.program.unlink()
        for script, *arguments in self.scripts()[:3]:
            said = self.run_script(script, *arguments, code=2, NANORUN_JOBSCRIPTS=str(self.checkout / "jobscripts"))
            self.assertEqual(said.count("\n"), 1, said)
            self.assertIn(f"{self.program}: no such program", said)

    def write_user_site(self, *lines, folder="config"):
        """A user's site.sh below `folder`, where XDG_CONFIG_HOME or a home may lead."""
        site = self.top / folder / "nanorun" / "site.sh"
        site.parent.mkdir(parents=True)
        site.write_text("".join(f"{line}\n" for line in lines))
        return site

    def sourced(self, words, code=0, **variables):
        """What `words` expand to after site.sh has been sourced, or why that fails."""
        done = subprocess.run(["bash", "-euc", f'source "$1"; echo "{words}"', "bash", self.checkout / "jobscripts/site.sh"],
                              cwd=self.top, env=self.environment | variables, text=True, capture_output=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout or done.stderr

    def test_the_user_s_settings_come_after_those_of_the_site(self):
        """A user's file holds only what differs, and may use what the site's has set."""
        site = self.checkout / "jobscripts" / "site.sh"
        site.write_text(site.read_text().replace("# export SBATCH_", "export SBATCH_"))
        self.write_user_site("export SBATCH_ACCOUNT=mine", "export NANORUN_BUILD=$NANORUN_JOBSCRIPTS/../build/my",
                             "requeue_at_most=7")
        words = "$SBATCH_ACCOUNT $SBATCH_PARTITION $requeue_at_most $nanorun"
        del self.environment["NANORUN_SITE"]
        self.assertEqual(self.sourced(words, XDG_CONFIG_HOME=f"{self.top}/config"),
                         f"mine gpu 7 {self.checkout}/jobscripts/../build/my/bin/nanorun\n")
        others = f"project gpu 3 {self.program}\n"
        self.assertEqual(self.sourced(words, XDG_CONFIG_HOME=f"{self.top}/none"), others)
        self.assertEqual(self.sourced(words, XDG_CONFIG_HOME=f"{self.top}/config", NANORUN_SITE="/dev/null"), others)
        self.write_user_site("export SBATCH_ACCOUNT=home", folder="home/.config")
        self.environment.pop("XDG_CONFIG_HOME", None)
        self.assertEqual(self.sourced("$SBATCH_ACCOUNT", HOME=f"{self.top}/home"), "home\n")

    def test_a_user_s_settings_that_are_named_must_be_there(self):
        said = self.sourced("never", code=2, NANORUN_SITE=f"{self.top}/none.sh")
        self.assertRegex(said, r"^site\.sh: NANORUN_SITE names \S+/none\.sh, which cannot be read\n$")

    def test_a_job_reads_the_user_s_settings(self):
        other = self.top / "other build" / "bin" / "nanorun"
        self.write_program(other)
        site = self.write_user_site(f"export NANORUN_BUILD='{other.parents[1]}'")
        self.run_script("train.sbatch", "deck.toml", SLURM_SUBMIT_DIR=str(self.checkout), NANORUN_SITE=str(site))
        self.assertIn(str(other), self.started())

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("no zsh")
        commands = f'source "{self.checkout}/jobscripts/site.sh"; echo $nanorun'
        said = subprocess.run(["zsh", "-c", commands], cwd=self.top, env=self.environment, text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(said, f"{self.program}\n")


class Shellcheck(unittest.TestCase):
    def test_scripts(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck")
        scripts = sorted([*JOBSCRIPTS.glob("*.sh"), *JOBSCRIPTS.glob("*.sbatch")])
        self.assertGreater(len(scripts), 6)
        checked = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=REPOSITORY, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(checked.returncode, 0, checked.stdout)


if __name__ == "__main__":
    small_run.main()
