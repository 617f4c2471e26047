"""A run's name that has been used before: what lies there is continued, completed, kept or refused, never lost."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

from harness import FaultTest, Job, losses, restarted_from, small_run


class EarlierRun(FaultTest):
    def content(self, folder=None):
        """Every file of the run but the lock and the log."""
        folder = folder or self.run_folder()
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
                if path.is_file() and path.name not in ("lock", "log.txt")}

    def assert_another_training(self, *overrides, changed):
        """Refused, with the keys that differ and what to do; everything stays."""
        before = self.content()
        job = self.train(2, *overrides, code=2)
        self.assert_refused(job, "outputs/run contains", *changed, "another run.name", "checkpoint.restart=none")
        self.assertEqual(losses(job), {})
        self.assertEqual(self.content(), before)

    def test_finished_run_with_another_deck(self):
        self.train(2, "train.steps=3")
        self.assert_another_training("train.steps=3", "run.seed=2", "optimizer.muon_lr=0.1",
                                     changed=("run.seed: 1 -> 2", "optimizer.muon_lr: 0.05 -> 0.1"))
        self.assert_another_training("train.steps=5", "comm.gradients=bf16", changed=("comm.gradients", "train.steps"))
        kept = self.content()
        self.train(2, "train.steps=3", "run.seed=2", "checkpoint.restart=none")
        self.assertEqual(self.content(self.folder / "outputs" / "run.1"), kept)

    def test_finished_run_without_checkpoint(self):
        arguments = ("train.steps=3", "checkpoint.at_end=false")
        self.train(2, *arguments)
        self.assertFalse(any(self.run_folder().rglob("*.h5*")) and self.files())
        self.assert_another_training(*arguments, "run.seed=2", changed=("run.seed: 1 -> 2",))
        before = self.content()
        again = self.train(2, *arguments, "run.log_every=2")
        self.assertIn("the run is finished", again.text())
        self.assertEqual(self.content(), before)

    def test_failed_run_without_checkpoint_keeps_its_figures(self):
        wild = ("model.init_scale=1e30", "model.zero_outputs=false", "validation.tokens=0")
        self.train(2, *wild, code=5)
        self.assert_another_training(changed=("model.init_scale", "validation.tokens"))

    def test_run_killed_before_its_first_checkpoint_is_no_obstacle(self):
        job = self.start(1, "train.steps=100000", "trace.flush_every=1")
        job.until_step(4)
        job.kill()
        before = self.content()
        again = self.train(1, "train.steps=3", "run.seed=2")
        self.assertEqual(sorted(losses(again)), [1, 2, 3])
        self.assertIn("is kept as outputs/run.1", again.text())
        kept = self.content(self.folder / "outputs" / "run.1")
        self.assertEqual({name: text for name, text in kept.items() if "heartbeats" not in name.parts},
                         {name: text for name, text in before.items() if "heartbeats" not in name.parts})

    def test_deck_of_a_killed_run_that_was_changed_in_its_place(self):
        """The metrics tell which deck made them. Of an earlier program's, the deck that is newer has not."""
        stop = ("trace.enabled=false", "stop.step=1")
        self.train(None, "run.name=other", "optimizer.adam_beta1=0.85", *stop, code=75)
        job = self.start(None, "train.steps=12", "trace.enabled=false", "run.log_every=1")
        job.until_step(3)
        job.kill()
        run, kept = self.run_folder(), self.folder / "outputs" / "run.1"
        killed, own = (run / "metrics.jsonl").read_bytes(), (run / "deck.toml").read_bytes()
        other = (self.folder / "outputs" / "other" / "deck.toml").read_bytes()
        unmarked = re.sub(rb',"deck":[0-9]+', b"", killed)
        self.assertNotEqual(killed, unmarked)
        for metrics in (killed, unmarked):
            for deck, again in ((own, True), (other, False), (own.replace(b"muon_lr = 0.05", b"muon_lr = 0.07"), False)):
                shutil.rmtree(run)
                run.mkdir()
                (run / "metrics.jsonl").write_bytes(metrics)
                (run / "deck.toml").write_bytes(deck)
                newer = not again or metrics == killed
                os.utime(run / "deck.toml", (time := (run / "metrics.jsonl").stat().st_mtime + (10 if newer else -10), time))
                job = Job(self.folder, None, ["train", "outputs/run/deck.toml", "run.name=run", *stop])
                self.assertEqual(job.wait(), 75, job.text())
                self.assertEqual("begins again at step 1" in job.text(), again, job.text())
                self.assertEqual("is kept as outputs/run.1" in job.text(), not again, job.text())
                if not again:
                    self.assertEqual((kept / "metrics.jsonl").read_bytes(), metrics)
                    shutil.rmtree(kept)

    def test_another_run_between_the_earlier_one_and_a_new_one(self):
        """It begins and ends while a start has renamed the old directory, but not yet locked the new one."""
        self.train(None, "train.steps=2")
        job = self.start(None, "train.steps=4", "optimizer.adam_beta1=0.8", "checkpoint.restart=none",
                         wrapper=self.injecting("outputs/run", "rename,renameat,renameat2:signal=SIGSTOP:when=1"))
        program = self.stopped_at(job)
        self.train(None, "train.steps=3", "optimizer.adam_beta1=0.7")
        between = self.content()
        os.kill(program, signal.SIGCONT)
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(re.findall("is kept as (.*)", job.text()), ["outputs/run.1", "outputs/run.2"])
        self.assertEqual(self.content(self.folder / "outputs" / "run.2"), between)
        self.assertEqual(self.summary()["steps"], 4)

    def test_run_killed_before_anything_but_metrics_or_its_deck_was_written(self):
        """The same deck begins again in its place."""
        job = self.start(1, "train.steps=100000", "trace.enabled=false")
        job.until_step(4)
        job.kill()
        killed = self.content()
        run, kept = self.run_folder(), self.folder / "outputs" / "run.1"
        for left, said in (("metrics.jsonl", "begins again at step 1"), ("deck.toml", None)):
            before = {path: text for path, text in killed.items() if path.name in ("deck.toml", left)}
            shutil.rmtree(run)
            run.mkdir()
            for path, text in before.items():
                (run / path).write_bytes(text)
            other = ("train.steps=3", "optimizer.adam_beta1=0.85", "trace.enabled=false")
            dry = Job(self.folder, None, ["train", "deck.toml", "--dry-run", *other])
            self.assertEqual(dry.wait(), 0, dry.text())
            self.assertIn("an earlier run of this name is kept as outputs/run.1\n", dry.output)
            self.assertIn("an earlier run of this name is kept as outputs/run.1\n", self.train(1, *other).output)
            self.assertEqual(self.content(kept), before)
            shutil.rmtree(run)
            kept.rename(run)
            job = self.train(1, "train.steps=100000", "trace.enabled=false", "stop.step=2", code=75)
            self.assertEqual("begins again at step 1" in job.text(), said is not None)
            self.assertFalse(kept.exists())

    def test_files_of_no_run_are_kept(self):
        own = self.run_folder()
        own.mkdir(parents=True)
        deck = "# my notes\n" + (self.folder / "deck.toml").read_text()
        (own / "deck.toml").write_text(deck)
        others = ("trace.json", "metrics.jsonl", *(f"{name}.partial" for name in (
            "deck.toml", "summary.json", "trace.json", "trace.h5", "log.txt", "metrics.jsonl")))
        for name in others:
            (own / name).write_text("mine")
        (own / "notes.txt").write_text("mine")
        said = self.train(2, "trace.json_steps=[1]").text()
        for name, text in (("deck.toml", deck), *((name, "mine") for name in others)):
            self.assertRegex(said, f"outputs/run/{name}: .*; the file is kept as outputs/run/{name}.1\n")
            self.assertEqual((own / f"{name}.1").read_text(), text)
            self.assertEqual((own / name).exists(), not name.endswith(".partial"))
        self.assertNotEqual((own / "deck.toml").read_text(), deck)
        self.assertEqual((own / "notes.txt").read_text(), "mine")
        self.assertNotIn("is kept as", self.train(2).text())

    def test_lock_of_no_run_is_kept(self):
        lock = self.run_folder() / "lock"
        lock.parent.mkdir(parents=True)
        (self.folder / "mine").write_text("mine")
        os.link(self.folder / "mine", lock)
        self.assert_refused(self.train(2, code=7), "outputs/run/lock: is not the lock file of a run", "run.name")
        self.assertEqual(lock.read_text(), "mine")

    def test_locks_of_earlier_programs(self):
        lock = self.run_folder() / "lock"
        lock.parent.mkdir(parents=True)
        lock.write_text("process 7 on host n7\n")
        self.train(2)
        self.assertRegex(lock.read_text(), "^process [0-9]+ on node ")

    def test_copy_by_hard_links(self):
        """Original and copy both go on, and neither changes the other's files."""
        self.train(2, "stop.step=4", code=75)
        copy = self.folder / "outputs" / "copy"
        shutil.copytree(self.run_folder(), copy, copy_function=os.link)

        def contents(folder):
            return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        before = contents(self.run_folder())
        self.assertEqual(restarted_from(self.train(2, "run.name=copy", "stop.step=8", code=75)), 4)
        self.assertEqual(contents(self.run_folder()), before)
        before = contents(copy)
        self.assertEqual(restarted_from(self.train(2)), 4)
        self.assertEqual(contents(copy), before)
        self.assertEqual(list((self.folder / "outputs").rglob("*.partial")), [])

    def test_finished_run_is_extended(self):
        self.train(2, "train.steps=3")
        more = self.train(2, "train.steps=5")
        self.assertEqual(restarted_from(more), 3)
        self.assertEqual(sorted(losses(more)), [4, 5])
        self.assertEqual(self.summary()["steps"], 5)

    def test_finished_run_completes_its_summary(self):
        """As if it had been killed between the last checkpoint and the summary."""
        self.train(2)
        whole = self.summary()
        again = self.train(2)
        self.assertIn("the run is finished", again.text())
        stale = dict(whole, finished=False, steps=6, stopped_by="SIGTERM received")
        for left in (None, json.dumps(stale), "{", "[]", ""):
            path = self.run_folder() / "summary.json"
            path.unlink() if left is None else path.write_text(left)
            job = self.train(None)
            self.assertEqual(losses(job), {})
            for key in ("finished", "steps", "tokens", "final_train_loss", "final_val_loss", "train_seconds"):
                self.assertEqual(self.summary()[key], whole[key], key)
            self.assertGreater(self.summary()["tokens_per_second"], 0)
        self.assertIn("the run is finished", self.train(2).text())

    def test_older_checkpoint_begins_another_course(self):
        """What comes after it is set aside, and "auto" goes on with the new course alone."""
        self.train(2, "checkpoint.every=3", "checkpoint.keep=9")
        old = {step: self.checkpoint(step).read_bytes() for step in (6, 9, 12)}
        job = self.train(2, f"checkpoint.restart={self.checkpoint(3)}", "optimizer.muon_lr=0.1", "stop.step=5", code=75)
        self.assertEqual(restarted_from(job), 3)
        self.assertEqual(self.files(), ["checkpoint_00000003.h5", "checkpoint_00000005.h5",
                                        *(f"checkpoint_{step:08}.h5.1" for step in old)])
        for step, content in old.items():
            aside = self.checkpoint(step).with_name(self.checkpoint(step).name + ".1")
            self.assertEqual(aside.read_bytes(), content)
            self.assertIn(f" to {aside.relative_to(self.folder)}, since", (self.run_folder() / "log.txt").read_text())
        again = self.train(2, "optimizer.muon_lr=0.1")
        self.assertEqual(restarted_from(again), 5)

    def test_checkpoint_from_elsewhere_begins_a_run_of_its_own(self):
        self.train(2, "run.name=source", "stop.step=4", code=75)
        source = self.folder / "outputs" / "source" / "checkpoints" / "checkpoint_00000004.h5"
        self.train(2, "stop.step=8", code=75)
        before = self.content()
        job = self.start(2, "train.steps=100000", f"checkpoint.restart={source}")
        job.until_step(6)
        job.kill()  # before any checkpoint of its own is due
        self.assertEqual(restarted_from(job), 4)
        self.assertEqual(self.content(self.folder / "outputs" / "run.1"), before)
        self.assertEqual(self.files(), ["checkpoint_00000004.h5"])
        again = self.train(2, "train.steps=100000", "stop.step=6", code=75)
        self.assertEqual(restarted_from(again), 4)

    def test_failed_starts_leave_nothing(self):
        """restart = "none" moves the old run away once data, memory and deck are known to be good."""
        self.train(2, "train.steps=2")
        before = self.content()
        none = ("checkpoint.restart=none",)
        big = ("model.width=16384", "model.heads=512", "model.head_dim=32", "model.layers=1024", "model.mlp_ratio=64")
        for overrides, code in (((*none, 'data.train=["absent.h5"]'), 3), ((*none, *big), 1),
                                ((*none, "data.end=error", "train.steps=100000"), 3),
                                (("checkpoint.restart=absent.h5",), 4),
                                ((*none, "stop.file=deck.toml"), 7)):
            for ranks in (None, 2):
                self.train(ranks, *overrides, code=code)
            self.assertEqual(os.listdir(self.folder / "outputs"), ["run"])
            self.assertEqual(self.content(), before)
        self.train(2, "run.name=fresh", "data.end=error", "train.steps=100000", code=3)
        self.assertEqual(os.listdir(self.folder / "outputs"), ["run"])

    def test_stop_file_is_not_any_file(self):
        """Only an empty file is taken for one that a user made to stop the last run."""
        (self.folder / "notes").write_text("precious")
        (self.folder / "link").symlink_to("notes")
        (self.folder / "directory").mkdir()
        for name in ("notes", "link", "directory", "data.h5", "/dev/null"):
            self.assert_refused(self.train(None, f"stop.file={name}", code=7), name, "stop file")
        self.assertEqual((self.folder / "notes").read_text(), "precious")
        self.assertTrue((self.folder / "link").is_symlink() and Path("/dev/null").is_char_device())
        (self.folder / "empty").touch()
        self.train(2, "stop.file=empty")
        self.assertFalse((self.folder / "empty").exists())

    def assert_not_begun_anew(self, *inject, said):
        """Checkpoints that cannot be listed or read for a reason of the system's stop the run."""
        if shutil.which("strace") is None:
            self.skipTest("needs strace")
        self.train(2, "checkpoint.every=3", "stop.step=6", code=75)
        before = self.content()
        job = self.start(1, wrapper=["strace", "-f", "-qq", "-o", self.folder / "strace", *inject])
        code = job.wait()
        if "ptrace" in job.text() or not (self.folder / "strace").exists():
            self.skipTest("strace may not trace here")
        self.assertEqual(code, 4, job.text())
        self.assert_refused(job, *said)
        self.assertIsNone(restarted_from(job))
        self.assertEqual(losses(job), {})
        self.assertEqual(self.content(), before)

    def test_checkpoints_that_cannot_be_opened_as_directory(self):
        self.assert_not_begun_anew("-P", "outputs/run/checkpoints", "-e", "trace=openat", "-e",
                                   "inject=openat:error=EACCES", said=("outputs/run/checkpoints", "Permission denied"))

    def test_checkpoints_that_cannot_be_listed(self):
        for error, text in (("EIO", "Input/output error"), ("ESTALE", "Stale file handle")):
            with self.subTest(error):
                self.assert_not_begun_anew("-P", "outputs/run/checkpoints", "-e", "trace=getdents64", "-e",
                                           f"inject=getdents64:error={error}", said=("outputs/run/checkpoints", text))
                shutil.rmtree(self.run_folder())

    def test_checkpoint_that_cannot_be_read(self):
        path = "outputs/run/checkpoints/checkpoint_00000006.h5"
        self.assert_not_begun_anew("-P", path, "-e", "trace=openat", "-e", "inject=openat:error=EACCES",
                                   said=(path, "Permission denied"))

    def test_output_directory_is_removed(self):
        job = self.start(2, "train.steps=100000", "checkpoint.every=50")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        shutil.rmtree(self.run_folder(), ignore_errors=True)
        job.until(lambda: any("was removed while the run goes on" in line for line in job.errors), "warning")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "another checkpoint")
        other = self.train(2, code=7)
        self.assert_refused(other, "in use by")
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        log = (self.run_folder() / "log.txt").read_text()
        self.assertIn("step     1/100000", log)
        self.assertIn("stopped at step", log)
        again = self.train(2, "train.steps=100000", "stop.walltime_seconds=0.1", code=75)
        self.assertIsNotNone(restarted_from(again))

    def test_many_listed_shards(self):
        """A deck of more than 64 KB."""
        names = [f"{'long' * 12}_{i:04}.h5" for i in range(1100)]
        for name in names:
            os.link(self.folder / "data.h5", self.folder / name)
        shards = "[" + ", ".join(f'"{name}"' for name in names) + "]"
        deck = self.folder / "deck.toml"
        deck.write_text(deck.read_text().replace('train = ["data.h5"]', f"train = {shards}"))
        self.train(2, "stop.step=3", code=75)
        self.assertGreater((self.run_folder() / "deck.toml").stat().st_size, 1 << 16)
        self.assertEqual(restarted_from(self.train(2)), 3)

    def test_planted_links_are_not_followed(self):
        victim = self.folder / "victim"
        self.train(2, "run.name=first", "stop.step=3", code=75)
        for name in ("lock", "log.txt", "metrics.jsonl", "deck.toml", "summary.json", "trace.h5",
                     "deck.toml.partial", "summary.json.partial", "trace.h5.partial",
                     "checkpoints/checkpoint_00000012.h5.partial"):
            shutil.copytree(self.folder / "outputs" / "first", self.run_folder())
            victim.write_text("precious")
            link = self.run_folder() / name
            link.unlink(missing_ok=True)
            link.symlink_to(victim)
            job = self.start(2)
            self.assertNotEqual(job.wait(), 0, job.text())
            self.assertRegex(job.text(), rf"outputs/run/{re.escape(name)}: (cannot be (replaced|removed): )?a symbolic link")
            self.assertEqual(victim.read_text(), "precious")
            self.assertTrue(link.is_symlink())
            shutil.rmtree(self.run_folder())

    def test_fifos_hold_nothing_up(self):
        self.train(2, "run.name=first", "stop.step=3", code=75)
        for name in ("lock", "log.txt", "metrics.jsonl", "deck.toml", "summary.json", "trace.h5", "stop",
                     "checkpoints/checkpoint_00000003.h5", "checkpoints/checkpoint_00000012.h5.partial"):
            shutil.copytree(self.folder / "outputs" / "first", self.run_folder())
            path = self.run_folder() / name
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            job = self.start(2)
            self.assertNotEqual(job.wait(), 0, job.text())
            self.assertIn(f"outputs/run/{name}: ", job.text())
            self.assertTrue(path.is_fifo())
            shutil.rmtree(self.run_folder())

    def test_start_that_died_does_not_block_the_name(self):
        """Neither before nor after deck.toml is written has a run begun."""
        for path in ("deck.toml.partial", "trace.h5.partial"):
            job = self.start(1, "train.steps=3", wrapper=self.injecting(
                f"outputs/run/{path}", "openat:error=ENOSPC:when=1"))
            self.assertEqual(job.wait(), 7, job.text())
            for deck in ("run.seed=1", "run.seed=2"):
                self.assertEqual(sorted(losses(self.train(1, "train.steps=3", deck, "checkpoint.restart=auto"))), [1, 2, 3])
                shutil.rmtree(self.run_folder())

    def test_finished_run_with_an_older_checkpoint(self):
        """The last checkpoint is of step 8, since checkpoint.at_end is off; the run is finished all the same."""
        arguments = ("checkpoint.every=4", "checkpoint.at_end=false")
        self.train(2, *arguments)
        before = self.content()
        self.assertIn("steps are made; its newest sound checkpoint is that of step 8", self.train(2, *arguments).text())
        self.assertEqual(self.content(), before)
        self.assert_another_training(*arguments, "optimizer.muon_lr=0.2", changed=("optimizer.muon_lr",))
        more = self.train(2, *arguments, "train.steps=14")
        self.assertEqual(restarted_from(more), 8)
        self.assertEqual((self.run_folder() / "summary.json.1").read_bytes(), before[Path("summary.json")])

    def test_run_whose_checkpoints_are_gone_is_kept(self):
        self.train(2, "stop.step=6", code=75)
        self.checkpoint(6).rename(self.run_folder() / "checkpoints" / "best.h5")
        before = self.content()
        again = self.train(2)
        self.assertEqual(sorted(losses(again)), list(range(1, 13)))
        self.assertIn("is kept as outputs/run.1", again.text())
        self.assertEqual(self.content(self.folder / "outputs" / "run.1"), before)

    def test_run_stopped_before_its_first_step_is_no_obstacle(self):
        for more in ((), (), ("train.steps=13",)):
            job = self.start(None, *more, wrapper=self.injecting("deck.toml", "openat:signal=SIGTERM:when=1"))
            self.assertEqual(job.wait(), 75, job.text())
            self.assertIn("stopped at step 0: SIGTERM received", job.text())
            self.assertEqual(self.summary()["steps"], 0)
        job = self.train(None, "train.steps=14")
        self.assertEqual(sorted(losses(job)), list(range(1, 15)))
        self.assertEqual([path.name for path in self.run_folder().parent.iterdir()], ["run"])

    def test_no_file_in_the_place_of_the_newest_checkpoint(self):
        self.train(None, "stop.step=3", code=75)
        newest = self.checkpoint(9)
        for make, remove, kind in ((newest.mkdir, newest.rmdir, "a directory"),
                                   (lambda: os.mkfifo(newest), newest.unlink, "a device, FIFO or socket"),
                                   (lambda: newest.symlink_to("gone"), newest.unlink, "a link to nothing")):
            make()
            self.assert_refused(self.train(2, code=4), newest.name,
                                f"{kind} stands where a checkpoint of the run belongs: move it away")
            remove()
        self.assertEqual(restarted_from(self.train(None)), 3)

    def test_half_a_log_of_a_copied_directory_goes(self):
        self.train(None, "stop.step=3", code=75)
        partial = self.run_folder() / "log.txt.partial"
        partial.write_text("step")
        self.train(None)
        self.assertFalse(partial.exists())

    def test_renamed_directory_is_locked_again_before_a_checkpoint(self):
        job = self.start(1, "train.steps=100000", "checkpoint.every=20", "run.log_every=100000")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        self.run_folder().rename(self.folder / "outputs" / "moved")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "another checkpoint")
        self.assert_refused(self.train(1, "run.seed=2", code=7), "in use by")
        self.assertTrue((self.run_folder() / "deck.toml").exists())
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())

    def test_checkpoint_that_cannot_be_removed_keeps_no_other(self):
        self.train(1, "stop.step=1", code=75)
        self.checkpoint(1).rename(self.folder / "kept.h5")
        self.checkpoint(1).symlink_to(self.folder / "kept.h5")
        job = self.train(1, "checkpoint.every=1", "checkpoint.keep=1")
        self.assert_refused(job, "checkpoint_00000001.h5: cannot be removed: a symbolic link")
        self.assertEqual(self.files(), [self.checkpoint(1).name, self.checkpoint(12).name])


if __name__ == "__main__":
    small_run.main()
