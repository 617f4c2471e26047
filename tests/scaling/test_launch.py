"""Starting runs: resumption, failures, Slurm jobs. The programs are scripts that stand in for the real ones."""

import json
import os
from unittest import mock

from support import ScalingTest, small_run

from study import StudyError
from study.launch import launch
from study.study_file import claim_folder, read_study

MPIRUN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> mpirun.calls
while [[ $1 != -n ]]; do shift; done
export FAKE_RANKS=$2
shift 2
exec "$@"
"""

# Finishes unless a file fail_RANKS exists.
PROGRAM = """#!/usr/bin/env bash
for argument in "$@"; do
  case $argument in
    run.outputs=*) outputs=${argument#*=} ;;
    run.name=*) name=${argument#*=} ;;
    train.steps=*) steps=${argument#*=} ;;
    --dry-run) [[ ! -e bad_deck ]] || { echo "nanorun: deck.toml:3: no such key" >&2; exit 2; }; echo '{}'; exit 0 ;;
  esac
done
outputs=${outputs:1:-1} name=${name:1:-1} # without the quotes
echo "training $name"
[[ ! -e fail_$FAKE_RANKS ]] || exit 3
mkdir -p "$outputs/$name"
echo "{\\"finished\\": true, \\"ranks\\": $FAKE_RANKS, \\"steps\\": $steps}" > "$outputs/$name/summary.json"
"""

# Job 1, 2, ...; while the file hold exists they stay in the queue.
SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> sbatch.calls
env | grep ^SBATCH_ | sort > sbatch.variables || true
[[ ! -e no_slurm ]] || { echo "sbatch: error: Invalid partition" >&2; exit 1; }
while [[ $1 == --* ]]; do
  case $1 in
    --ntasks=*) ranks=${1#*=} ;;
    --output=*) log=${1#*=} ;;
  esac
  shift
done
[[ -e hold ]] || FAKE_RANKS=$ranks "$@" > "$log" 2>&1 || true
wc -l < sbatch.calls
"""
SRUN = '#!/usr/bin/env bash\nexec "$@"\n'
SQUEUE = """#!/usr/bin/env bash
[[ ! -e hold ]] || { echo PENDING; exit 0; }
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


class Launch(ScalingTest):
    def setUp(self):
        super().setUp()
        commands = self.folder / "commands"
        commands.mkdir()
        for name, text in (("mpirun", MPIRUN), ("nanorun", PROGRAM), ("sbatch", SBATCH), ("srun", SRUN),
                           ("squeue", SQUEUE)):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{commands}{os.pathsep}{path}"
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        self.program = str(commands / "nanorun")

    def launch(self, launcher="mpirun", program=None, **values):
        """Returns what the launch says, a line a run."""
        study = read_study(self.write_study(**values))
        claim_folder(study)
        said = []
        launch(study, launcher, program or self.program, said.append)
        return said

    def calls(self, command):
        record = self.folder / f"{command}.calls"
        return record.read_text().splitlines() if record.exists() else []

    def test_runs_everything_once(self):
        said = self.launch(repeats=2, more='[launch]\nmpirun = ["--bind-to", "none"]')
        self.assertEqual(said, ["[1/4] ranks1_repeat1: done", "[2/4] ranks2_repeat1: done",
                                "[3/4] ranks1_repeat2: done", "[4/4] ranks2_repeat2: done"])
        calls = self.calls("mpirun")
        self.assertEqual(len(calls), 4)
        self.assertTrue(calls[1].startswith(f"--bind-to none -n 2 {self.program} train deck.toml "), calls[1])
        self.assertEqual((self.folder / "outputs/test/ranks2_repeat1.log").read_text(), "training ranks2_repeat1\n")

    def test_names_that_are_no_bare_words(self):
        for name in ("a é #$x", "it's [1]*"):
            self.assertEqual(self.launch(name=name, ranks=[1]), ["[1/1] ranks1_repeat1: done"])
            self.assertEqual(self.launch(name=name, ranks=[1]), [])
            self.assertTrue((self.folder / "outputs" / name / "ranks1_repeat1" / "summary.json").is_file())

    def test_resumes_what_is_missing(self):
        self.launch(repeats=2)
        (self.folder / "outputs/test/ranks2_repeat1/summary.json").unlink()
        other = self.folder / "outputs/test/ranks1_repeat2/summary.json"
        other.write_text(json.dumps(json.loads(other.read_text()) | {"finished": False}))
        said = self.launch(repeats=2)
        self.assertEqual(said, ["[1/2] ranks2_repeat1: done", "[2/2] ranks1_repeat2: done"])
        self.assertEqual(len(self.calls("mpirun")), 6)
        self.assertEqual(self.launch(repeats=2), [])
        self.assertEqual(self.launch(repeats=2, ranks=(1, 2, 4)),
                         ["[1/2] ranks4_repeat1: done", "[2/2] ranks4_repeat2: done"])

    def test_runs_side_by_side_fill_the_machine(self):
        """Each has processors of its own; runs that take turns would wait for each other for ever."""
        everything = sorted(os.sched_getaffinity(0))
        if len(everything) < 2:
            self.skipTest("needs two processors")
        (self.folder / "commands/nanorun").write_text(PROGRAM.replace("mkdir", """
if (( FAKE_RANKS == 1 )); then
  touch "here_$name"
  until [[ -e here_ranks1_repeat1 && -e here_ranks1_repeat2 ]]; do sleep 0.01; done
fi
grep Cpus_allowed_list /proc/self/status
mkdir""", 1))
        said = self.launch(more="[launch]\ncores = 2\nfill = true")
        self.assertEqual(said, ["[1/3] ranks1_repeat1: done", "[2/3] ranks1_repeat2: done", "[3/3] ranks2_repeat1: done"])
        logs = [(self.folder / "outputs/test" / f"{name}.log").read_text()
                for name in ("ranks1_repeat1", "ranks1_repeat2", "ranks2_repeat1")]
        for i in range(2):
            self.assertIn(f"Cpus_allowed_list:\t{everything[i]}\n", logs[i])
        self.assertRegex(logs[2], f"Cpus_allowed_list:\t{everything[0]}[-,]{everything[1]}\n")
        self.assertEqual(self.launch(more="[launch]\ncores = 2\nfill = true"), [])

    def test_machines_that_cannot_be_filled(self):
        with self.assertRaisesRegex(StudyError, r"launch.fill: this process may use \d+ processors, launch.cores says 100000"):
            self.launch(more="[launch]\ncores = 100000\nfill = true")
        with self.assertRaisesRegex(StudyError, "launch.fill: runs under mpirun alone"):
            self.launch("slurm", name="other", more="[launch]\ncores = 2\nfill = true")

    def test_a_failed_run_is_named_and_the_others_go_on(self):
        (self.folder / "fail_2").touch()
        said = self.launch(ranks=(1, 2, 4))
        self.assertEqual(said[1], "[2/3] ranks2_repeat1: failed with exit code 3, see outputs/test/ranks2_repeat1.log")
        self.assertEqual(said[2], "[3/3] ranks4_repeat1: done")
        (self.folder / "fail_2").unlink()
        self.assertEqual(self.launch(ranks=(1, 2, 4)), ["[1/1] ranks2_repeat1: done"])

    def test_a_bad_deck_starts_no_run(self):
        (self.folder / "bad_deck").touch()
        with self.assertRaisesRegex(StudyError, "deck.toml:3: no such key"):
            self.launch()
        self.assertEqual(self.calls("mpirun"), [])

    def test_missing_programs(self):
        with self.assertRaisesRegex(StudyError, "/no/nanorun: no such program"):
            self.launch(program="/no/nanorun")
        os.environ["PATH"] = "/nowhere"
        with self.assertRaisesRegex(StudyError, "mpirun is not on the PATH"):
            self.launch()

    def test_slurm_submits_a_job_a_run(self):
        said = self.launch("slurm", more='[launch]\nsbatch = ["--partition=gpu", "--time=00:05:00"]')
        self.assertEqual(said, ["[1/2] ranks1_repeat1: submitted as job 1", "[2/2] ranks2_repeat1: submitted as job 2"])
        call = self.calls("sbatch")[1]
        self.assertTrue(call.startswith("--parsable --partition=gpu --time=00:05:00 --ntasks=2 "), call)
        self.assertIn("--output=outputs/test/ranks2_repeat1.log", call)
        self.assertIn(f"scaling.sbatch {self.program} train deck.toml ", call)
        log = (self.folder / "outputs/test/ranks2_repeat1.log").read_text()  # outside a job site.sh says something too
        self.assertEqual(log.splitlines()[-1], "training ranks2_repeat1")
        self.assertEqual(self.launch("slurm"), [])

    def placed(self, settings, ranks=(1, 2, 4, 8, 9, 24), gpus=None):
        """Where the jobs of the rank counts are placed: the options of sbatch behind their --ntasks."""
        if gpus is not None:
            os.environ["SBATCH_GPUS_PER_NODE"] = gpus
            self.addCleanup(os.environ.pop, "SBATCH_GPUS_PER_NODE", None)
        (self.folder / "sbatch.calls").unlink(missing_ok=True)
        self.launch("slurm", name=f"s{len(list((self.folder / 'outputs').glob('*')))}", kind="weak", ranks=ranks,
                    more=f"[launch]\n{settings}")
        found = []
        for count, call in zip(ranks, self.calls("sbatch")):
            words = call.split(" --job-name=")[0].split()
            found.append(" ".join(words[words.index(f"--ntasks={count}") + 1:]))
        return found

    def test_slurm_places_the_ranks(self):
        spread = ["--nodes=1 --ntasks-per-node=1", "--nodes=1 --ntasks-per-node=2", "--nodes=1 --ntasks-per-node=4",
                  "--nodes=1 --ntasks-per-node=8", "--nodes=2 --ntasks-per-node=5", "--nodes=3 --ntasks-per-node=8"]
        (self.folder / "outputs").mkdir()
        for settings, more in (("ranks_per_node = 8", " --exclusive"), ("ranks_per_node = 8\nexclusive = false", ""),
                               ("gpus_per_node = 8", " --gpus-per-node=8 --exclusive"),
                               ('sbatch = ["--gpus-per-node=h100:8"]', " --exclusive")):
            self.assertEqual(self.placed(settings), [place + more for place in spread])
        self.assertEqual(self.placed("ranks_per_node = 2\ngpus_per_node = 8", ranks=(3,)),
                         ["--nodes=2 --ntasks-per-node=2 --gpus-per-node=8 --exclusive"])
        self.assertEqual(self.placed('ranks_per_node = 2\nsbatch = ["--nodes", "3"]', ranks=(4,)),
                         ["--ntasks-per-node=2 --exclusive"])
        self.assertEqual(self.placed("", ranks=(4,)), ["--exclusive"])
        for gpus in ("4", "a100:4"):
            self.assertEqual(self.placed("", ranks=(8,), gpus=gpus), ["--nodes=2 --ntasks-per-node=4 --exclusive"])

    def test_slurm_reads_how_gpus_are_asked_for(self):
        (self.folder / "outputs").mkdir()
        for words in ('"--gres=gpu:8"', '"--gres=nvme,gpu:h100:8"', '"--gres", "gpu:a100:4,gpu:h100:4"',
                      '"--gpus-per-node=4", "--gpus-per-node=h100:8"', '"--gpus=16", "--gres=gpu:8"',
                      '"--tres-per-node=gres/gpu:8"', '"--tres-per-node", "gres/nvme:1,gres/gpu:h100=8"'):
            with self.subTest(words=words):
                self.assertEqual(self.placed(f"sbatch = [{words}]", ranks=(8, 16)), [
                    "--nodes=1 --ntasks-per-node=8 --exclusive", "--nodes=2 --ntasks-per-node=8 --exclusive"])
        self.assertEqual(self.placed('sbatch = ["--tres-per-task=cpu=2"]', ranks=(16,)), ["--exclusive"])
        os.environ["SBATCH_GRES"] = "gpu:4"
        self.addCleanup(os.environ.pop, "SBATCH_GRES", None)
        self.assertEqual(self.placed("", ranks=(8,)), ["--nodes=2 --ntasks-per-node=4 --exclusive"])

    def test_slurm_prefers_the_gpus_of_the_study_to_those_of_the_environment(self):
        """sbatch does not see the others: it would ask for both."""
        (self.folder / "outputs").mkdir()
        gres = "gpu:h100:8,nvme:1"
        for variables in ({"SBATCH_GPUS_PER_NODE": "8"}, {"SBATCH_GRES": gres},
                          {"SBATCH_GPUS_PER_NODE": "8", "SBATCH_GRES": gres}):
            for settings, added in (('sbatch = ["--gres=gpu:4"]', ""), ('sbatch = ["--gpus-per-node=4"]', ""),
                                    ('sbatch = ["--tres-per-node=gres/gpu:4"]', ""),
                                    ("gpus_per_node = 4", " --gpus-per-node=4")):
                with self.subTest(variables=variables, settings=settings), mock.patch.dict(os.environ, variables):
                    self.assertEqual(self.placed(settings, ranks=(8,)),
                                     [f"--nodes=2 --ntasks-per-node=4{added} --exclusive"])
                    self.assertEqual((self.folder / "sbatch.variables").read_text(),
                                     "SBATCH_GRES=nvme:1\n" if "SBATCH_GRES" in variables else "")
            with mock.patch.dict(os.environ, variables):
                self.placed("ranks_per_node = 8", ranks=(8,))
                self.assertEqual((self.folder / "sbatch.variables").read_text(),
                                 "".join(f"{name}={value}\n" for name, value in sorted(variables.items())))

    def test_slurm_places_no_ranks_on_an_unknown_number_of_gpus(self):
        for words in ('"--gpus=16"', '"-G", "16"', '"-G16"', '"--gpus-per-task=1"', '"--gpus-per-socket=2"'):
            with self.subTest(words=words), self.assertRaisesRegex(StudyError, "^--gpus.* launch.ranks_per_node"):
                self.launch("slurm", ranks=[1], more=f"[launch]\nsbatch = [{words}]")
        with self.assertRaisesRegex(StudyError, "^--tres-per-task asks for GPUs, .* launch.ranks_per_node"):
            self.launch("slurm", ranks=[1], more='[launch]\nsbatch = ["--tres-per-task=cpu=2,gres/gpu:1"]')
        os.environ["SBATCH_GPUS"] = "16"
        self.addCleanup(os.environ.pop, "SBATCH_GPUS", None)
        with self.assertRaisesRegex(StudyError, "^SBATCH_GPUS asks for GPUs, .* launch.ranks_per_node"):
            self.launch("slurm", ranks=[1])
        self.assertEqual(self.calls("sbatch"), [])
        (self.folder / "outputs").mkdir(exist_ok=True)
        self.assertEqual(self.placed('sbatch = ["--gpus=0"]', ranks=(16,)), ["--exclusive"])
        self.assertEqual(self.placed("ranks_per_node = 8", ranks=(16,)), ["--nodes=2 --ntasks-per-node=8 --exclusive"])

    def test_slurm_obeys_the_placement_of_the_study(self):
        (self.folder / "outputs").mkdir()
        for words, place in (('"-N", "4"', "--ntasks-per-node=4 --exclusive"),
                             ('"-N4"', "--ntasks-per-node=4 --exclusive"),
                             ('"--nodes=2-4"', "--exclusive"), ('"-N", "4", "--ntasks-per-node=4"', "--exclusive"),
                             ('"--ntasks-per-node=4"', "--nodes=4 --exclusive"),
                             ('"--exclusive=user"', "--nodes=2 --ntasks-per-node=8"),
                             ('"--oversubscribe"', "--nodes=2 --ntasks-per-node=8"),
                             ('"-s"', "--nodes=2 --ntasks-per-node=8")):
            with self.subTest(words=words):
                self.assertEqual(self.placed(f"sbatch = [{words}]", ranks=(16,), gpus="8"), [place])

    def test_slurm_jobs_in_the_queue_are_left_alone(self):
        (self.folder / "hold").touch()
        self.launch("slurm")
        self.assertEqual(self.launch("slurm"), ["[1/2] ranks1_repeat1: still queued as job 1",
                                                "[2/2] ranks2_repeat1: still queued as job 2"])
        (self.folder / "hold").unlink()
        self.assertEqual(self.launch("slurm")[0], "[1/2] ranks1_repeat1: submitted as job 3")
        self.assertEqual(len(self.calls("sbatch")), 4)

    def test_slurm_refuses(self):
        (self.folder / "no_slurm").touch()
        self.assertEqual(self.launch("slurm", ranks=[1]),
                         ["[1/1] ranks1_repeat1: not submitted: sbatch: error: Invalid partition"])

    def test_the_script_reports_nothing_before_a_run_has_finished(self):
        (self.folder / "hold").touch()
        study = self.write_study()
        said = self.script(study, "--launcher", "slurm", "--program", self.program,
                           commands=self.folder / "commands", code=1)
        self.assertIn("missing: ranks2_repeat1 not started", said)
        self.assertIn("there is no report yet", said)
        self.assertFalse((self.folder / "outputs/test/report.html").exists())

    def test_the_script_names_mistakes(self):
        said = self.script(self.write_study(sequences=3), code=2)
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("scaling_study.py: study.toml: study.ranks: 3 sequences", said)


if __name__ == "__main__":
    small_run.main()
