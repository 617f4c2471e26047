"""What lies under the names of a run's files, but was not written by nanorun, is kept under another name: whatever an
earlier start has left beside it, while the run goes on too, and the dry run says it before."""

import os
import shutil

from harness import FaultTest, Job, restarted_from, small_run

STEPS = ("train.steps=6", "validation.tokens=0", "trace.json_steps=[2]")
OTHER_METRICS = '{"step":1,"acc":0.1}\n{"step":700,"acc":0.9}\n'


class ForeignFiles(FaultTest):
    def put(self, *names):
        """Writes files of a user's; returns their bytes by their names."""
        run = self.run_folder()
        run.mkdir(parents=True, exist_ok=True)
        texts = {"deck.toml": b"# my notes\n" + (self.folder / "deck.toml").read_bytes(),
                 "trace.h5": (self.folder / "data.h5").read_bytes(), "trace.json": b'{"traceEvents":[]}',
                 "metrics.jsonl": OTHER_METRICS.encode(), "summary.json": b'{"steps": 3}', "log.txt": b"my log\n"}
        wanted = {name: texts[name] for name in names or texts}
        for name, text in wanted.items():
            (run / name).write_bytes(text)
        return wanted

    def assert_kept(self, job, wanted):
        """Each under its name with .1, with one warning."""
        warnings = [line for line in job.messages() if " is kept as " in line]
        for name, text in wanted.items():
            self.assertEqual((self.run_folder() / f"{name}.1").read_bytes(), text)
            self.assertEqual(len([line for line in warnings if line.endswith(f" is kept as outputs/run/{name}.1")]), 1, name)
        self.assertEqual(len(warnings), len(wanted), warnings)

    def dry(self, *overrides, code=0, wrapper=()):
        job = Job(self.folder, None, ["train", "deck.toml", "--dry-run", *STEPS, *overrides], wrapper)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def as_user(self):
        self.folder.chmod(0o755)
        return () if os.getuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    def stop(self, job, code=75):
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), code, job.text())

    def test_beside_what_an_earlier_start_has_left(self):
        """Neither a lock nor a directory of checkpoints says that the files are nanorun's."""
        (self.folder / "elsewhere").mkdir()
        left = {"nothing": lambda run: None, "checkpoints": lambda run: (run / "checkpoints").mkdir(),
                "link": lambda run: (run / "checkpoints").symlink_to(self.folder / "elsewhere"),
                "empty lock": lambda run: (run / "lock").touch(),
                "lock": lambda run: (run / "lock").write_text("job 3.pbs, process 7 on node n7")}
        for ranks, (name, make) in zip((None, 2, None, 2, None), left.items()):
            with self.subTest(name):
                wanted = self.put()
                make(self.run_folder())
                planned = [line.rstrip("\n") for line in self.dry().output if line.startswith("warning: ")]
                job = self.train(ranks, *STEPS)
                self.assert_kept(job, wanted)
                self.assertEqual(["nanorun: " + line for line in planned],
                                 [line for line in job.messages() if " is kept as " in line])
            shutil.rmtree(self.run_folder())

    def test_own_files_are_nobody_elses(self):
        """Restarts, a run that begins again after a crash, and a deck that changes."""
        long = (*STEPS, "train.steps=100000", "checkpoint.every=0")
        job = self.start(None, *long, "trace.flush_every=1")
        job.until_step(4)
        job.kill()
        self.assertEqual(self.train(None, *long, "stop.step=3", code=75).messages(), [])
        for step in (4, 5):
            job = self.train(None, *STEPS, f"stop.step={step}", f"run.log_every={step}", "trace.json_steps=[4]", code=75)
            self.assertEqual(job.messages(), [])
        self.assertEqual(self.train(None, *STEPS).messages(), [])
        self.assertEqual(self.train(None, *STEPS, "train.steps=9").messages(), [])
        self.assertEqual(sorted(path.name for path in self.run_folder().glob("*.1")), ["summary.json.1", "trace.json.1"])

    def test_refused_start_leaves_nothing(self):
        wanted = self.put("deck.toml", "trace.h5", "metrics.jsonl")
        limited = ("sh", "-c", 'ulimit -f 20000; exec "$@"', "sh")
        self.train(None, *STEPS, "model.width=512", "model.heads=32", wrapper=limited, code=4)
        self.assertEqual(sorted(os.listdir(self.run_folder())), sorted(wanted))
        self.assert_kept(self.train(None, *STEPS), wanted)

    def test_put_there_between_two_starts(self):
        self.train(None, *STEPS, "stop.step=3", code=75)
        wanted = self.put("deck.toml", "trace.json", "metrics.jsonl")
        job = self.train(None, *STEPS, "trace.json_steps=[5]")
        self.assertEqual(restarted_from(job), 3)
        self.assert_kept(job, wanted)

    def test_notes_in_the_deck_of_the_run(self):
        self.train(None, *STEPS, "stop.step=3", code=75)
        deck = self.run_folder() / "deck.toml"
        noted = deck.read_text() + "# good so far\n"
        deck.write_text(noted)
        job = Job(self.folder, None, ["train", "outputs/run/deck.toml", "stop.step=5"])
        self.assertEqual(job.wait(), 75, job.text())
        self.assert_kept(job, {"deck.toml": noted.encode()})

    def test_put_there_while_the_run_goes_on(self):
        job = self.start(None, "train.steps=100000", "validation.tokens=0", "trace.json_steps=[2]")
        job.until_step(3)
        wanted = self.put("trace.json", "summary.json")
        self.stop(job)
        self.assert_kept(job, wanted)

    def test_written_into_the_trace_while_the_run_goes_on(self):
        for text in (b"mine", (self.folder / "data.h5").read_bytes()):
            job = self.start(None, "train.steps=100000", "validation.tokens=0")
            job.until_step(3)
            (self.run_folder() / "trace.h5").write_bytes(text)
            self.stop(job)
            self.assertIn("outputs/run/trace.h5: ", job.messages()[0])
            self.assertEqual((self.run_folder() / "trace.h5").read_bytes(), text)
            shutil.rmtree(self.run_folder())

    def test_another_directory_in_place_of_the_runs(self):
        for linked in (False, True):
            with self.subTest(linked=linked):
                job = self.start(None, "train.steps=100000", "validation.tokens=0")
                job.until_step(3)
                self.run_folder().rename(self.folder / "old")
                stranger = self.folder / "stranger" if linked else self.run_folder()
                stranger.mkdir()
                (stranger / "deck.toml").write_text("mine")
                if linked:
                    self.run_folder().symlink_to(stranger)
                job.until(lambda: any("made again" in line for line in job.errors), "warning")
                self.stop(job)
                self.assert_kept(job, {"deck.toml": b"mine"})
                self.run_folder().unlink() if linked else shutil.rmtree(self.run_folder())
                shutil.rmtree(self.folder / "old")

    def test_notes_in_place_of_the_lock(self):
        """During a run they are kept; before a start they keep it from beginning."""
        job = self.start(None, "train.steps=100000", "validation.tokens=0")
        job.until_step(3)
        lock = self.run_folder() / "lock"
        lock.unlink()
        lock.write_text("my notes on host n7")
        job.until(lambda: any("made again" in line for line in job.errors), "warning")
        self.stop(job)
        self.assert_kept(job, {"lock": b"my notes on host n7"})
        lock.write_text("my notes on host n7")
        self.assert_refused(self.train(None, code=7), "outputs/run/lock: is not the lock file of a run; move it")
        self.assertEqual(lock.read_text(), "my notes on host n7")

    def test_lock_that_a_crash_has_left_blank(self):
        self.train(None, *STEPS, "stop.step=3", code=75)
        for step, text in ((3, b""), (4, bytes(24))):
            (self.run_folder() / "lock").write_bytes(text)
            self.dry()
            self.assertEqual(restarted_from(self.train(None, *STEPS, f"stop.step={step + 1}", code=75)), step)

    def test_log_of_somebody_elses_beside_a_finished_run(self):
        self.train(None, *STEPS)
        wanted = self.put("log.txt")
        self.assertTrue(any(" is kept as outputs/run/log.txt.1\n" in line for line in self.dry().output))
        job = self.train(None, *STEPS)
        self.assertIn("the run is finished", job.text())
        self.assert_kept(job, wanted)

    def test_metrics_with_some_of_the_keys(self):
        self.run_folder().mkdir(parents=True)
        lines = "".join(f'{{"step":{i},"loss":2.{i},"train_seconds":{i}}}\n' for i in (1, 2, 3)).encode()
        (self.run_folder() / "metrics.jsonl").write_bytes(lines)
        self.assert_kept(self.train(None, *STEPS), {"metrics.jsonl": lines})

    def test_own_files_under_their_partial_names(self):
        self.train(None, *STEPS, "stop.step=3", code=75)
        for name in ("deck.toml", "summary.json", "trace.json", "trace.h5"):
            shutil.copy(self.run_folder() / name, self.run_folder() / f"{name}.partial")
        self.assertEqual(self.train(None, *STEPS, "stop.step=4", code=75).messages(), [])
        self.assertEqual([path.name for path in self.run_folder().glob("*.partial*")], [])

    def test_rest_of_a_log_beside_a_finished_run(self):
        self.train(None, *STEPS)
        partial = self.run_folder() / "log.txt.partial"
        partial.write_text("mine")
        self.train(None, *STEPS)
        self.assertEqual(partial.read_text(), "mine")

    def test_checkpoint_of_another_training_is_not_pruned(self):
        every = ("checkpoint.every=1", "checkpoint.keep=1")
        for name, override in (("seed", "run.seed=2"), ("name", "run.log_every=1")):
            self.train(None, f"run.name={name}", override, "stop.step=2", code=75)
            self.train(None, *every, "stop.step=4", code=75)
            other = self.folder / "outputs" / name / "checkpoints" / self.checkpoint(2).name
            shutil.copy(other, self.checkpoint(2))
            job = self.train(None, *every, "stop.step=6", "run.log_every=3", code=75)
            self.assert_refused(job, f"{other.name}: a checkpoint of another training, which this run has not written; "
                                "the file is kept")
            self.assertEqual(self.files(), [self.checkpoint(2).name, self.checkpoint(6).name])
            shutil.rmtree(self.run_folder())

    def test_summary_and_notes_where_no_run_was(self):
        wanted = self.put("summary.json")
        (self.run_folder() / "deck.toml").write_text("notes")
        self.assert_kept(self.train(None, *STEPS), wanted | {"deck.toml": b"notes"})
        (self.run_folder() / "deck.toml").write_text("notes")
        shutil.rmtree(self.run_folder() / "checkpoints")
        self.assert_refused(self.train(None, *STEPS, code=2), "outputs/run contains a finished run of a different training",
                            "its deck cannot be read: outputs/run/deck.toml:1: syntax error", "run.name")

    def test_directory_moved_aside_leaves_room_for_its_new_name(self):
        name = "l" * (240 - len("outputs//checkpoints/checkpoint_00000006.h5.partial") - 3)
        for code, run in ((4, name), (0, name[1:])):
            self.dry(f"run.name={run}", code=code)
            job = self.train(None, *STEPS, f"run.name={run}", code=code)
        self.assertEqual(job.messages(), [])
        self.assertEqual(os.listdir(self.folder / "outputs"), [run])

    def test_large_files(self):
        """Nothing is read whole before its size is known; the message names the file."""
        self.train(None, *STEPS, "stop.step=3", code=75)
        limited = ("sh", "-c", 'ulimit -v 8000000; exec "$@"', "sh")
        for name in ("metrics.jsonl", "deck.toml", "trace.json"):
            os.truncate(self.run_folder() / name, 1 << 40)
        job = self.train(None, *STEPS, "stop.step=4", wrapper=limited, code=75)
        self.assertEqual(sorted(line.split(" is kept as ")[1] for line in job.messages()),
                         ["outputs/run/deck.toml.1", "outputs/run/metrics.jsonl.1"])
        for name in ("lock", "summary.json"):
            before = (self.run_folder() / name).read_bytes()
            os.truncate(self.run_folder() / name, 1 << 40)
            self.assert_refused(self.train(None, *STEPS, wrapper=limited, code=7),
                                f"outputs/run/{name}: {1 << 40} bytes are too many for a file of a run: move it away")
            (self.run_folder() / name).write_bytes(before)
        self.train(None, *STEPS)


if __name__ == "__main__":
    small_run.main()
