"""What the job scripts do with what Slurm says about their job: requeueing, the environment of the ranks and their
processors. The commands of Slurm are stubs.

Usage: test_job.py PROGRAM MPIRUN.
"""

import re
import shutil

from scripts import CHECKPOINT, JOBSCRIPTS, REPOSITORY, SRUN, Script, small_run

# As `scontrol show job` of Slurm 22.05.
RECORD = """JobId={number}{array} JobName={name}
   UserId=user(1000) GroupId=user(1000) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   Requeue={requeue} Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=node1
   NumNodes=1 NumCPUs={cpus} NumTasks={tasks} CPUs/Task={asked} ReqB:S:C:T=0:0:*:{threads}
   Socks/Node=* NtasksPerN:B:S:C={per_node}:0:{per_socket}:* CoreSpec=*
   MinCPUsNode=8 MinMemoryNode=0 MinTmpDiskNode=0
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network={network}
   Command={command}
   WorkDir=/work Restarts=9

"""


class JobTest(Script):
    """Slurm answers about job 7."""

    def setUp(self):
        super().setUp()
        del self.environment["SLURM_ARRAY_TASK_ID"]
        self.answer(self.record_of())
        self.train = ("train.sbatch", "deck.toml")

    def answer(self, *records):
        (self.stubs / "job").write_text("".join(records))

    def record_of(self, number=7, task=None, of=7, **values):
        known = {"state": "RUNNING", "requeue": 1, "restarts": 0, "name": "train", "asked": 1, "threads": "*",
                 "per_node": 8, "cpus": 8, "tasks": 8, "per_socket": "*", "network": "(null)",
                 "command": "/there/jobscripts/train.sbatch deck.toml"}
        array = "" if task is None else f" ArrayJobId={of} ArrayTaskId={task}"
        return RECORD.format(number=number, array=array, **known | values)

    def calls(self):
        path = self.stubs / "scontrol.calls"
        return path.read_text() if path.exists() else ""

    def variables(self):
        """The environment of srun."""
        return dict(line.split("=", 1) for line in (self.stubs / "environment").read_text().split("\0")[:-1])


class Failure(JobTest):
    """A job whose step fails goes on where nanorun has not come to an end of its own, and no oftener than told."""

    LOST = ("srun: error: Node failure on node2", "srun: error: task 1 launch failed: Unspecified error",
            "srun: error: Task launch for StepId=7.0 failed on node node2: Communication connection failure",
            "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-25T18:09:11 DUE TO NODE FAILURE, SEE "
            "SLURMCTLD LOG FOR DETAILS ***", "srun: error: Timed out waiting for job step to complete",
            "srun: error: Unable to create step for job 7: Nodes busy")

    def fail(self, ranks, code, restarts=0, job="7", **variables):
        """Fails after as many requeues; what the script says, and whether the job is requeued."""
        record = (self.stubs / "job").read_text()
        (self.stubs / "job").write_text(re.sub(r"Restarts=\d+ Batch", f"Restarts={restarts} Batch", record))
        said = self.run_script(*self.train, ranks=ranks, code=code, **variables)
        self.assertIn(self.calls(), ("", f"requeue incomplete {job}\n"))
        return said, bool(self.calls())

    def test_ends_of_nanorun_end_the_job(self):
        for code in (1, 2, 3, 4, 5, 7):
            end = f"Exited with exit code {code}"
            for said in ("nanorun: deck.toml:3: no such key", f"srun: error: node1: tasks 0-7: {end}",
                         f"srun: error: spank: no such plugin\nsrun: error: node1: task 0: {end}",
                         "srun: error: node1: tasks 0-1: Killed"):  # by Slurm, after MPI_Abort of one of them
                with self.subTest(code=code, said=said):
                    self.assertEqual(self.fail(f"echo '{said}' >&2; exit {code}", code), (f"{said}\n", False))

    def test_the_first_rank_that_ends_counts_where_srun_kills_the_others(self):
        """As where rank 1 alone ends before MPI is up, and rank 0 waits for it."""
        for code in (1, 2, 3, 4, 5, 7):
            said = [f"srun: error: node1: task 1: Exited with exit code {code}", "srun: error: node2: tasks 0,2-7: Killed"]
            for killed in (137, 143):
                with self.subTest(code=code, killed=killed):
                    told, requeued = self.fail(f"printf '%s\\n' '{said[0]}' '{said[1]}' >&2; exit {killed}", code)
                    self.assertEqual((told.splitlines(), requeued), (said, False))
                    self.assertTrue(self.fail(f"printf '%s\\n' '{said[1]}' '{said[0]}' >&2; exit {killed}", killed)[1])
                    (self.stubs / "scontrol.calls").unlink()
        for end in ("Exited with exit code 6", "Exited with exit code 75", "Segmentation fault"):
            with self.subTest(end=end):
                self.assertTrue(self.fail(f"echo 'srun: error: node1: task 1: {end}' >&2; exit 137", 137)[1])

    def test_ends_of_others_requeue_the_job(self):
        cases = [("", 6, "a rank died, hung or did not answer"), ("", 137, "a rank was ended by signal 9"),
                 ("", 253, "srun started no step of nanorun")]
        cases += [("srun: error: node1: task 0: Killed", code, f"srun ended with exit code {code}, which is none of "
                   "nanorun's") for code in (9, 13, 127, 233)]
        cases += [(line, code, line) for line in self.LOST for code in (0, 1, 2, 6, 137, 233)]
        for line, code, why in cases:
            with self.subTest(line=line, code=code):
                said, requeued = self.fail(f"echo '{line}' >&2; exit {code}", code or 1)
                self.assertTrue(requeued, said)
                self.assertEqual(said.splitlines()[-1], "job 7 goes back to the queue, 1 of at most 3 times in a row "
                                 f"without a new checkpoint: {why}")

    def test_slurm_without_a_step_is_told_from_nanorun(self):
        """srun ends with the code that it is given where it can start no step."""
        self.assertTrue(self.fail('exit "$SLURM_EXIT_ERROR"', 253)[1])

    def test_a_job_that_may_not_be_requeued(self):
        self.answer(self.record_of(requeue=0))
        for code, start, why in ((6, "exit 6", "a rank died, hung or did not answer"),
                                 (75, f"{CHECKPOINT} >&2; exit 75", "it stopped with a checkpoint")):
            said, requeued = self.fail(start, code)
            self.assertFalse(requeued)
            self.assertEqual(said.splitlines()[-1], "job 7 may not be requeued (Requeue=0 in its record, as after "
                             f"sbatch --no-requeue): {why}")
            self.assertNotIn("goes back", said)

    def test_as_often_as_told_without_a_new_checkpoint(self):
        for most in (None, 0, 1, 2):
            variables = {} if most is None else {"requeue_at_most": str(most)}
            times = 3 if most is None else most
            with self.subTest(times=times):
                for restarts in range(times):
                    self.assertTrue(self.fail("exit 137", 137, restarts, **variables)[1])
                said, requeued = self.fail("exit 137", 137, times, **variables)
                self.assertFalse(requeued)
                self.assertEqual(said, f"job 7 is not requeued, after {times} of at most {times} times in a row without a "
                                 "new checkpoint (requeue_at_most in site.sh): a rank was ended by signal 9\n")

    def test_a_new_checkpoint_begins_the_count_anew(self):
        for restarts in range(3):
            self.fail("exit 6", 6, restarts)
        for restarts in range(3, 6):
            said, requeued = self.fail(f"{CHECKPOINT}; exit 6", 6, restarts)
            self.assertTrue(requeued)
            self.assertIn("1 of at most 3 times", said)
        for restarts in (6, 7):
            self.assertTrue(self.fail("exit 6", 6, restarts)[1])
        self.assertFalse(self.fail("exit 6", 6, 8)[1])

    def test_a_job_requeued_by_hand_after_that_begins_to_count_anew(self):
        for restarts in range(3):
            self.fail("exit 6", 6, restarts)
        self.assertFalse(self.fail("exit 6", 6, 3)[1])
        self.assertTrue(self.fail("exit 6", 6, 4)[1])

    def test_a_new_job_does_not_count_on(self):
        for _ in range(5):
            self.assertTrue(self.fail("exit 6", 6)[1])

    def test_the_run_goes_on_from_its_checkpoint(self):
        self.train += ("checkpoint.restart=none",)
        self.fail(f"{CHECKPOINT}; exit 6", 6)
        self.fail("exit 137", 137, 1)
        self.assertEqual(self.training(), ["train", "deck.toml", "checkpoint.restart=auto"])
        self.fail(":", 0, 2)
        self.assertEqual(list(self.folder.iterdir()), [], "no record stays when the run has finished")

    def test_without_a_count_it_is_not_requeued(self):
        (self.folder / "nanorun-7.requeues").mkdir()
        self.assertFalse(self.fail("exit 6", 6, 1)[1])

    def test_what_slurm_has_requeued_or_ended_is_left_alone(self):
        """While the script still runs, as it does on a node that Slurm has lost."""
        for code, start in ((6, "exit 6"), (75, f"{CHECKPOINT}; exit 75")):
            for end in ({"restarts": 1}, {"state": "PENDING", "restarts": 1}, {"state": "COMPLETING"},
                        {"state": "CANCELLED"}):
                with self.subTest(end=end, code=code):
                    self.answer(self.record_of())
                    (self.stubs / "after").write_text(self.record_of(**end))
                    said, requeued = self.fail(f"cp $STUBS/after $STUBS/job; {start}", code)
                    self.assertFalse(requeued)
                    self.assertIn("job 7 is left alone: Slurm has ended or requeued it\n", said)

    def test_a_number_of_times_that_is_none(self):
        for value in ("-1", "three", "1.5", "", "08", "a[$(touch x)]"):
            said = self.run_script("train.sbatch", "deck.toml", code=0 if value == "" else 2, requeue_at_most=value)
            if value:
                self.assertRegex(said, r"^site\.sh: requeue_at_most must be a whole number, not .*\n$")
                self.assertFalse((self.stubs / "arguments").exists())
        self.assertFalse((self.folder / "x").exists())


class Names(JobTest):
    """Slurm's commands name the task of the array, and no other job."""

    def stop(self, *arguments, **variables):
        self.run_script(*(arguments or self.train), ranks="exit 75", code=75, **variables)
        return self.calls()

    def test_tasks_of_an_array(self):
        """The last one has the number of the array, for which Slurm shows all."""
        siblings = [self.record_of(8, task=1), self.record_of(9, task=2)]
        self.answer(self.record_of(task=3, name="a ArrayTaskId=5 JobId=7 "), *siblings)
        self.assertEqual(self.stop(), "requeue incomplete 7_3\n")
        self.answer(*siblings, self.record_of(task=0))
        self.assertEqual(self.stop(), "requeue incomplete 7_0\n")
        self.answer(self.record_of(task=12, of=4))
        self.assertEqual(self.stop(), "requeue incomplete 4_12\n")

    def test_a_plain_job_with_the_variables_of_another(self):
        outer = {"SLURM_ARRAY_JOB_ID": "3", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}
        self.assertEqual(self.stop(**outer), "requeue incomplete 7\n")
        self.assertIn("usage: sbatch", self.run_script("sweep.sbatch", "sweep.toml", code=2, **outer))
        self.assertIn("usage: sbatch", self.run_script("ensemble.sbatch", "deck.toml", "a", code=2, **outer))

    def test_the_seed_is_that_of_the_task(self):
        self.answer(self.record_of(task=12, of=4))
        self.run_script("ensemble.sbatch", "deck.toml", "a", SLURM_ARRAY_JOB_ID="3", SLURM_ARRAY_TASK_ID="2")
        self.assertEqual(self.training(), ["train", "deck.toml", "run.seed=12", 'run.name="a_12"'])

    def test_without_an_answer(self):
        """The number of a task is its own, but for the last one, whose array's number is known to be the same."""
        self.answer()
        for variables, name in (({}, "7"), ({"SLURM_ARRAY_JOB_ID": "3", "SLURM_ARRAY_TASK_ID": "2"}, "7"),
                                ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2")):
            self.assertEqual(self.stop(**variables), f"requeue incomplete {name}\n")

    def test_restarts_are_those_that_slurm_counts(self):
        for restarts, count, continues in ((0, "1", False), (0, "x", False), (1, "", True), (1, "0", True)):
            self.record.write_text("checkpoint\n")
            self.answer(self.record_of(restarts=restarts))
            self.run_script(*self.train, SLURM_RESTART_COUNT=count)
            self.assertEqual("checkpoint.restart=auto" in self.training(), continues)

    def test_a_count_of_restarts_that_is_no_number(self):
        """Slurm sets none, so that the job has not been requeued; the text is nothing that the shell evaluates."""
        self.answer()
        for count in ("", "abc", "08", "-1", "1.5", "1 2", "0x1", "restarts", "PATH", "a[$(touch x)]", "9" * 30,
                      "1;touch x"):
            with self.subTest(count=count):
                self.record.write_text("checkpoint\n")
                self.assertEqual(self.run_script(*self.train, SLURM_RESTART_COUNT=count), "")
                self.assertNotIn("checkpoint.restart=auto", self.training())
                self.assertEqual(list(self.folder.iterdir()), [])


class Environment(JobTest):
    """srun takes what the job and site.sh say, and nothing from a job in which it was submitted."""

    LEAKED = """SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK
        SLURM_CPU_FREQ_REQ SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE SLURM_EXACT SLURM_EXCLUSIVE SLURM_GPU_BIND SLURM_GPUS
        SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GRES SLURM_HINT SLURM_KILL_BAD_EXIT SLURM_MEM_BIND
        SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NETWORK SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_GPU
        SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_SOCKET SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_PTY_PORT SLURM_STDERRMODE
        SLURM_STDINMODE SLURM_STDOUTMODE SLURM_STEP_GRES SLURM_STEP_ID SLURM_STEP_NUM_TASKS SLURM_THREADS_PER_CORE
        SLURM_TIMELIMIT SLURM_TRES_PER_TASK SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV""".split()

    def setUp(self):
        super().setUp()
        self.checkout = self.top / "checkout"
        shutil.copytree(JOBSCRIPTS, self.checkout / "jobscripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(REPOSITORY / "inputs", self.checkout / "inputs")
        with open(self.checkout / "jobscripts" / "site.sh", "a") as site:
            site.write("export SITE_LIBRARY=/opt/site SLURM_HINT=multithread\n")
        (self.stubs / "ctest").write_text(SRUN)
        (self.stubs / "ctest").chmod(0o755)
        small_run.write_deck(self.folder)
        (self.folder / "sweep.toml").write_text('deck = "deck.toml"\nname = "s"\nseeds = [1, 2, 3]\n')
        self.environment |= {"NANORUN_JOBSCRIPTS": str(self.checkout / "jobscripts")}

    def each_script(self):
        for script, *arguments in (("train.sbatch", "deck.toml"), ("ensemble.sbatch", "deck.toml", "a"),
                                   ("sweep.sbatch", "sweep.toml"), ("test.sbatch",), ("benchmark.sbatch",),
                                   ("scaling.sbatch", small_run.PROGRAM, "train")):
            yield script, self.checkout / "jobscripts" / script, arguments

    def test_ranks_get_what_the_site_sets(self):
        self.answer(self.record_of(task=2, per_node=4))
        leaked = {name: "1" for name in self.LEAKED} | {"SLURM_EXPORT_ENV": "NONE", "SLURM_MPI_TYPE": "none"}
        for name, script, arguments in self.each_script():
            with self.subTest(script=name):
                code = 1 if name == "benchmark.sbatch" else 0  # the stub trains nothing
                self.run_script(script, *arguments, code=code, **leaked)
                found = self.variables()
                kept = {name for name in self.LEAKED if found.get(name) == "1"}
                self.assertEqual(kept, {"SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK"}, "a rank has one processor")
                expected = {"SITE_LIBRARY": "/opt/site", "SLURM_HINT": "multithread", "SLURM_MPI_TYPE": "pmix",
                            "SLURM_EXPORT_ENV": "ALL", "SLURM_NTASKS_PER_NODE": "4", "SLURM_ARRAY_TASK_ID": "2",
                            "SLURM_ARRAY_JOB_ID": "7"}
                self.assertEqual({key: found.get(key) for key in expected}, expected)

    def test_all_scripts_are_tried(self):
        self.assertEqual({name for name, *_ in self.each_script()},
                         {path.name for path in JOBSCRIPTS.glob("*.sbatch")})

    def test_what_the_job_asked_for_is_kept(self):
        self.answer(self.record_of(threads=1, per_socket=2, network="single_node_vni", per_node=0))
        self.run_script(*self.train)
        found = self.variables()
        expected = {"SLURM_THREADS_PER_CORE": "1", "SLURM_NTASKS_PER_SOCKET": "2", "SLURM_NETWORK": "single_node_vni",
                    "SLURM_NTASKS_PER_NODE": None}
        self.assertEqual({key: found.get(key) for key in expected}, expected)

    def test_ranks_without_a_number_on_each_node(self):
        """Slurm leaves another job's number of ranks alone where this one says none."""
        self.answer(self.record_of(per_node=0, tasks=2))
        self.run_script(*self.train, SLURM_NTASKS="5", SLURM_NPROCS="5")
        self.assertEqual([self.variables().get(key) for key in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_OVERCOMMIT")],
                         ["2", "2", None])

    def test_more_ranks_than_processors(self):
        self.answer(self.record_of(cpus=4))
        self.run_script(*self.train, SLURM_JOB_CPUS_PER_NODE="4", SLURM_TASKS_PER_NODE="8")
        self.assertEqual(self.variables()["SLURM_OVERCOMMIT"], "1")
        self.assertEqual(self.variables()["SRUN_CPUS_PER_TASK"], "1")

    def test_site_is_found_beside_the_submitted_script(self):
        """Without a variable, from another directory, as after sbatch --export=NONE."""
        del self.environment["NANORUN_JOBSCRIPTS"]
        for name, script, arguments in self.each_script():
            with self.subTest(script=name):
                self.answer(self.record_of(8, task=1), self.record_of(task=2, command=f"{script} deck.toml /x y"))
                self.run_script(script, *arguments, code=1 if name == "benchmark.sbatch" else 0)
                self.assertEqual(self.variables()["SITE_LIBRARY"], "/opt/site")


class Processors(JobTest):
    """A rank has its share of the processors of its node, and never fewer than it asked for."""

    def processors(self, cpus, tasks, cores_of=None, **record):
        self.answer(self.record_of(**record))
        if cores_of:
            (self.stubs / "node").write_text(f"NodeName=node1\n   Sockets=2 ThreadsPerCore={cores_of} Weight=1\n")
        self.run_script(*self.train, SLURM_JOB_CPUS_PER_NODE=cpus, SLURM_TASKS_PER_NODE=tasks, SLURMD_NODENAME="node1")
        (self.stubs / "node").unlink(missing_ok=True)
        options = [word for word in (self.stubs / "arguments").read_text().split("\0") if "cpus-per-task" in word]
        self.assertEqual(len(options), 1)
        share = int(options[0].removeprefix("--cpus-per-task="))
        found = self.variables()
        self.assertEqual({found["SRUN_CPUS_PER_TASK"], found["SLURM_CPUS_PER_TASK"]}, {str(share)})
        return share

    def test_share_of_the_node(self):
        for cpus, tasks, share in (("64", "8", 8), ("64(x2)", "8(x2)", 8), ("8", "8", 1), ("70(x3)", "8(x3)", 8),
                                   ("64,32(x2)", "8(x2),4", 4), ("96,2", "8,2", 1), ("4", "8", 1)):
            self.assertEqual(self.processors(cpus, tasks), share, (cpus, tasks))

    def test_never_fewer_than_asked_for(self):
        for cpus, tasks, asked, share in (("64", "8", 4, 8), ("64", "8", 12, 12), ("8", "8", 2, 2)):
            self.assertEqual(self.processors(cpus, tasks, asked=asked), share, (cpus, tasks, asked))

    def test_whole_cores(self):
        """srun gives a rank no part of a core: 24 processors are 12 cores, so that 8 ranks have one core each."""
        for cpus, threads, used, share in (("24", 2, "*", 2), ("128", 2, "*", 16), ("128", 2, 1, 8), ("128", 2, 2, 16),
                                           ("128", 1, 1, 16)):
            self.assertEqual(self.processors(cpus, "8", threads, threads=used), share, (cpus, threads, used))

    def test_what_slurm_does_not_say(self):
        for cpus, tasks in (("", ""), ("64", ""), ("64(x2)", "8"), ("x", "y"), ("64(x", "8"), ("a[$(touch x)]", "1"),
                            ("0", "0"), ("08", "1")):
            self.assertEqual(self.processors(cpus, tasks, asked=3), 3, (cpus, tasks))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.answer()
        for asked, share in (("5", "5"), ("", "1"), ("x", "1"), ("08", "1")):
            self.run_script(*self.train, SLURM_CPUS_PER_TASK=asked)
            self.assertEqual(self.variables()["SRUN_CPUS_PER_TASK"], share)

    def test_a_share_that_srun_refuses(self):
        ranks = 'echo "$3" >>$STUBS/tried; [[ $3 == *=2 ]] || { echo "srun: error: Unable to create step for job 7: ' \
            'More processors requested than permitted" >&2; exit 253; }'
        self.answer(self.record_of(asked=2))
        said = self.run_script(*self.train, ranks=ranks, SLURM_JOB_CPUS_PER_NODE="64", SLURM_TASKS_PER_NODE="8")
        self.assertEqual((self.stubs / "tried").read_text(), "--cpus-per-task=8\n--cpus-per-task=2\n")
        self.assertIn("job 7 starts again with the processors that it asked for\n", said)
        self.assertEqual(self.calls(), "")

    def test_a_step_whose_number_is_in_use(self):
        """Three more steps are tried."""
        ranks = ('echo "$3" >>$STUBS/tried; [[ $(wc -l <$STUBS/tried) -gt {} ]] || '
                 '{{ echo "srun: error: task 0 launch failed: Unspecified error" >&2; exit 1; }}')
        for failing, code in ((2, 0), (4, 1)):
            self.answer()
            said = self.run_script(*self.train, ranks=ranks.format(failing), code=code)
            again = "job 7 starts its ranks again, with the next number of a step\n"
            self.assertEqual(said.count(again), min(failing, 3))
            self.assertEqual((self.stubs / "tried").read_text().count("\n"), min(failing, 3) + 1)
            (self.stubs / "tried").unlink()


if __name__ == "__main__":
    small_run.main()
