"""Links in the places of a run's own files and directories: nothing of others is reached through them."""

import os
import shutil

from harness import FaultTest, restarted_from, small_run

EVERY = ("checkpoint.every=1", "checkpoint.keep=1")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def zeros_first(path):
    path.write_bytes(bytes(16) + b"user data")


def text_of_h5py(path):
    import h5py
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "my simulation"
        file["x"] = range(10)


def attributes_alone(path):
    import h5py
    with h5py.File(path, "w") as file:
        file.attrs["note"] = 1


def soft_link(path):
    import h5py
    with h5py.File(path, "w") as file:
        file["link"] = h5py.SoftLink("/nowhere")


class Links(FaultTest):
    def stranger(self, *names):
        folder = self.folder / "stranger"
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"precious {name}")
        return folder

    def link(self, name, target, run="run"):
        """outputs/<run>/<name> becomes a link."""
        path = self.folder / "outputs" / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def test_heartbeats_are_no_link(self):
        stranger = self.stranger("0", "1", "7", "notes")
        before = contents(stranger)
        link = self.link("heartbeats", stranger)
        for ranks in (None, 2):
            self.assert_refused(self.train(ranks, code=7), "outputs/run/heartbeats: a symbolic link")
        self.assertEqual(contents(stranger), before)
        link.unlink()
        self.train(2)

    def test_heartbeats_become_a_link_in_a_run(self):
        stranger = self.stranger("0", "1")
        before = contents(stranger)
        job = self.start(2, "train.steps=100000", "comm.timeout_seconds=1")  # a heartbeat each 1/16 s
        job.until_step(2)
        heartbeats = self.run_folder() / "heartbeats"
        heartbeats.rename(self.folder / "aside")
        heartbeats.symlink_to(stranger)
        job.until_step(20)
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        self.assertEqual(contents(stranger), before)

    def test_files_of_others_among_the_heartbeats_stay(self):
        heartbeats = self.run_folder() / "heartbeats"
        heartbeats.mkdir(parents=True)
        (heartbeats / "1").write_text("precious")
        self.assert_refused(self.train(2, code=7), "outputs/run/heartbeats/1: is no heartbeat of a run: move it away")
        self.assertEqual((heartbeats / "1").read_text(), "precious")
        (heartbeats / "1").rename(heartbeats / "7")  # which no rank needs
        self.assert_refused(self.train(2), "outputs/run/heartbeats: no heartbeats of a run, or not to be removed, and "
                                           "left alone: 7")
        self.assertEqual((heartbeats / "7").read_text(), "precious")
        (heartbeats / "7").write_text(f"{3:>20} {5:>20} 1 {2:>20}\n")  # a job that crashed left it
        (heartbeats / "8").touch()
        self.train(2, "train.steps=14")
        self.assertFalse(heartbeats.exists())

    def test_checkpoints_on_another_file_system(self):
        scratch = self.stranger("notes")
        self.link("checkpoints", scratch)
        self.train(2, *EVERY, "stop.step=4", code=75)
        self.assertEqual(restarted_from(self.train(2, *EVERY)), 4)
        self.assertEqual(sorted(os.listdir(scratch)), ["checkpoint_00000012.h5", "lock", "notes"])
        self.verify(self.checkpoint(12))
        # The whole of outputs elsewhere is usual.
        (self.folder / "elsewhere").mkdir()
        (self.folder / "linked").symlink_to("elsewhere")
        self.train(2, "run.outputs=linked")
        self.assertTrue((self.folder / "elsewhere/run/checkpoints/checkpoint_00000012.h5").exists())

    def test_checkpoints_elsewhere_are_locked(self):
        scratch = self.stranger()
        for run in ("run", "second"):
            self.link("checkpoints", scratch, run)
        job = self.start(1, *EVERY, "train.steps=100000")
        job.until(lambda: any(scratch.glob("*.h5")), "checkpoint")
        self.assert_refused(self.train(1, "run.name=second", code=4), "outputs/second/checkpoints: a link to",
                            scratch, "another run", "checkpoint.restart=FILE")
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        kept = contents(scratch)
        self.assert_refused(self.train(1, "run.name=second", code=4), self.run_folder())
        self.assertEqual(contents(scratch), kept)
        # Under another name it is the same run, which only the user knows.
        shutil.rmtree(self.folder / "outputs/second")
        self.run_folder().rename(self.folder / "outputs/second")
        self.assert_refused(self.train(1, "run.name=second", code=4), f"checkpoints of {self.run_folder()} by",
                            f"if it is this run under a new name, remove {scratch}/lock")
        self.assertEqual(contents(scratch), kept)
        (scratch / "lock").unlink()
        again = self.train(1, "run.name=second", *EVERY, "train.steps=100000", "stop.walltime_seconds=0.1", code=75)
        self.assertIsNotNone(restarted_from(again))

    def test_a_run_that_is_set_aside_keeps_its_checkpoints(self):
        scratch = self.stranger()
        self.link("checkpoints", scratch)
        self.train(1, "stop.step=4", code=75)
        before = {path: text for path, text in contents(scratch).items() if path.name != "lock"}
        self.assertIn("outputs/run/checkpoints: the link went to outputs/run.1 with the earlier run; this run writes "
                      "into a plain directory", self.train(1, "checkpoint.restart=none", *EVERY).text())
        self.link("checkpoints", scratch, "third")
        self.assert_refused(self.train(1, "run.name=third", code=4), self.folder / "outputs/run.1")
        self.assertEqual({path: text for path, text in contents(scratch).items() if path.name != "lock"}, before)

    def test_checkpoints_of_a_renamed_run_stay(self):
        scratch = self.stranger()
        self.link("checkpoints", scratch, "first")
        self.train(1, "run.name=first", "stop.step=4", code=75)
        (self.folder / "outputs/first").rename(self.folder / "outputs/saved")
        before = contents(scratch)
        self.link("checkpoints", scratch, "second")
        for restart in ("auto", "none"):
            job = self.train(1, "run.name=second", f"checkpoint.restart={restart}", *EVERY, code=4)
            self.assert_refused(job, "outputs/second/checkpoints: a link to", self.folder / "outputs/first",
                                f"remove {scratch}/lock")
        self.assertEqual(contents(scratch), before)

    def test_checkpoints_whose_lock_has_lost_its_text(self):
        """Another run does not take them; their own run goes on, under another name and with another deck too."""
        scratch = self.stranger()
        steps = ("train.steps=40", "validation.tokens=0", "checkpoint.every=1", "checkpoint.keep=2")
        self.link("checkpoints", scratch)
        self.train(None, *steps, "stop.step=2", code=75)
        self.link("checkpoints", scratch, "other")
        lock = scratch / "lock"
        for text in (None, b"", bytes(65)):
            lock.unlink(missing_ok=True)
            if text is not None:
                lock.write_bytes(text)
            before = contents(scratch)
            for command in (("--dry-run",), ()):
                job = self.train(None, *command, "run.name=other", "optimizer.adam_beta1=0.85", *steps, code=4)
                self.assert_refused(job, f"outputs/other/checkpoints: a link to {scratch}, which holds checkpoints of another "
                                    "run, and no lock file there names it", f"the deck of outputs/other/checkpoints/{self.checkpoint(2).name}")
            self.assertEqual(contents(scratch), before)
        for step, name, change in ((3, "run", "run.log_every=2"), (4, "new", "optimizer.adam_beta1=0.85")):
            self.run_folder().rename(self.folder / "outputs" / name)
            job = self.train(None, f"run.name={name}", change, *steps, f"stop.step={step}", code=75)
            self.assertEqual(restarted_from(job), step - 1)
            lock.write_bytes(bytes(65))

    def test_no_run_where_another_has_its_checkpoints(self):
        scratch = self.stranger()
        self.link("checkpoints", scratch)
        self.train(1, *EVERY, "stop.step=4", code=75)
        before = contents(scratch)
        job = self.train(1, "run.outputs=.", "run.name=stranger", code=7)
        self.assert_refused(job, "stranger: has the checkpoints of another run", self.run_folder(), "run.name")
        self.assertEqual(contents(scratch), before)
        self.assertEqual(restarted_from(self.train(1, *EVERY)), 4)

    def test_no_run_among_the_checkpoints_of_another(self):
        """In a plain directory or behind a link, and with a directory between."""
        self.train(1, *EVERY, "stop.step=4", code=75)
        scratch = self.stranger()
        self.link("checkpoints", scratch, "linked")
        self.train(1, "run.name=linked", *EVERY, "stop.step=4", code=75)
        before = contents(self.folder / "outputs"), contents(scratch)
        for outputs, name, says, owner in (("outputs/run", "checkpoints", "has", "run"),
                                           ("outputs/run/checkpoints", "new", "lies among", "run"),
                                           ("outputs/run/checkpoints/new", "new", "lies among", "run"),
                                           ("outputs/linked", "checkpoints", "has", "linked"),
                                           ("outputs/linked/checkpoints", "new", "lies among", "linked"),
                                           ("stranger", "new", "lies among", "linked")):
            for restart in ("auto", "none"):
                with self.subTest(outputs=outputs, name=name, restart=restart):
                    job = self.train(1, f"run.outputs={outputs}", f"run.name={name}", f"checkpoint.restart={restart}",
                                     code=7)
                    self.assert_refused(job, f"{outputs}/{name}: {says} the checkpoints of another run, ",
                                        self.folder / "outputs" / owner, "run.name")
        self.assertEqual((contents(self.folder / "outputs"), contents(scratch)), before)
        # A name is no proof.
        self.train(1, "run.name=checkpoints", "stop.step=2", code=75)
        self.train(1, "run.outputs=outputs/checkpoints", "stop.step=2", code=75)

    def test_checkpoints_of_another_run_are_refused(self):
        self.train(2, *EVERY, "run.name=first", "stop.step=4", code=75)
        first = self.folder / "outputs/first"
        before = contents(first)
        for target in ("../first/checkpoints", first, first / "checkpoints"):
            link = self.link("checkpoints", target)
            for restart in ("auto", "none"):
                job = self.train(2, *EVERY, f"checkpoint.restart={restart}", code=4)
                self.assert_refused(job, "outputs/run/checkpoints: a link to", first, "checkpoint.restart=FILE")
            self.assertEqual(contents(first), before)
            link.unlink()
        own = self.train(2, f"checkpoint.restart={first}/checkpoints/checkpoint_00000004.h5")
        self.assertEqual(restarted_from(own), 4)
        self.assertEqual(contents(first), before)

    def test_checkpoints_become_a_link_in_a_run(self):
        self.train(1, *EVERY, "run.name=first", "stop.step=4", code=75)
        before = contents(self.folder / "outputs/first")
        job = self.start(2, *EVERY, "train.steps=100000")
        job.until(lambda: self.checkpoint(2).exists() or self.checkpoint(3).exists(), "checkpoint")
        (self.run_folder() / "checkpoints").rename(self.folder / "aside")
        self.link("checkpoints", "../first/checkpoints")
        self.assertEqual(job.wait(), 4, job.text())
        self.assertIn("outputs/run/checkpoints: a link to", job.text())
        self.assertEqual(contents(self.folder / "outputs/first"), before)

    def test_link_to_no_directory(self):
        for target in ("nowhere", self.folder / "deck.toml"):
            link = self.link("checkpoints", target)
            self.assert_refused(self.train(1, code=4), "outputs/run/checkpoints: a link to no directory")
            link.unlink()

    def test_lock_of_others_where_the_checkpoints_lie_stays(self):
        stranger = self.stranger("lock")
        self.link("checkpoints", stranger)
        self.assert_refused(self.train(1, code=4), stranger / "lock", "is not the lock file of a run")
        self.assertEqual((stranger / "lock").read_text(), "precious lock")

    def test_unfinished_files_of_users_are_kept(self):
        """Also of a run that goes on, and where they are HDF5; what the program has left itself goes."""
        self.train(1, *EVERY, "stop.step=4", code=75)
        texts = [f"{name}.partial" for name in ("deck.toml", "log.txt", "metrics.jsonl", "summary.json", "trace.h5")]
        for name in texts:
            (self.run_folder() / name).write_text("mine")
        others = [self.checkpoint(step).with_suffix(".h5.partial") for step in (5, 6, 12)]
        data = (self.folder / "data.h5").read_bytes()
        for path, text in zip(others, (self.checkpoint(4).read_bytes(), data, data)):
            path.write_bytes(text)
        own, user, next_one = others
        said = self.train(1).text()
        for name in texts:
            self.assertIn(f"outputs/run/{name}: somebody's own, or the rest of a write that was cut short; the file "
                          f"is kept as outputs/run/{name}.1", said)
            self.assertEqual((self.run_folder() / f"{name}.1").read_text(), "mine")
        self.assertFalse(own.exists())
        self.assertIn(f"{user.name}: no checkpoint of nanorun's; the file is kept\n", said)
        self.assertEqual(user.read_bytes(), data)
        self.assertIn(f"{next_one.name}: no checkpoint of nanorun's; the file is kept as ", said)
        self.assertEqual(next_one.with_name(f"{next_one.name}.1").read_bytes(), data)
        # An earlier trace of the program's own is no user's.
        shutil.copy(self.run_folder() / "trace.h5", self.run_folder() / "trace.h5.partial")
        self.assertNotIn("trace.h5.partial", self.train(1, "train.steps=14").text())
        self.assertFalse((self.run_folder() / "trace.h5.partial").exists())

    def stand(self, name, kind):
        """Puts something that is no file in the place of one in the run's directory."""
        path = self.run_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(self.folder / "precious")
        elif kind == "FIFO":
            os.mkfifo(path)
        else:
            path.mkdir()
        return path

    def test_what_stands_where_nothing_is_written_is_left_alone(self):
        self.train(1, *EVERY, "stop.step=4", code=75)
        (self.folder / "precious").write_text("precious")
        paths = [self.stand(*given) for given in (
            ("checkpoints/checkpoint_00000999.h5.partial", "link"), ("checkpoints/checkpoint_00000003.h5.partial", "FIFO"),
            ("checkpoints/checkpoint_00000888.h5.partial", "directory"), ("trace.json", "link"),
            ("trace.json.partial", "directory"), ("log.txt.partial", "link"), ("heartbeats/3", "link"))]
        before = [path.lstat() for path in paths]
        said = self.train(1, *EVERY).messages()
        self.assertEqual([line.split("nanorun's; ")[-1] for line in said if "no checkpoint" in line],
                         ["a device, FIFO or socket is kept", "a directory is kept", "a symbolic link is kept"])
        self.assertIn("nanorun: warning: outputs/run/heartbeats: no heartbeats of a run, or not to be removed, and "
                      "left alone: 3", said)
        self.assertEqual(len(said), 4, said)
        self.assertEqual([path.lstat().st_ino for path in paths], [stat.st_ino for stat in before])
        self.assertEqual((self.folder / "precious").read_text(), "precious")

    def test_a_stop_saves_where_something_stands(self):
        """At a step whose name the run did not need: what stands there is kept under another name."""
        (self.folder / "precious").write_text("precious")
        path = self.stand("checkpoints/checkpoint_00000005.h5.partial", "link")
        job = self.train(2, "checkpoint.every=4", "stop.step=5", code=75)
        self.assertIn(f"a symbolic link is kept as outputs/run/checkpoints/{path.name}.1", job.text())
        self.assertTrue(path.with_name(f"{path.name}.1").is_symlink())
        self.assertEqual((self.folder / "precious").read_text(), "precious")
        self.verify(self.checkpoint(5))

    def test_names_of_checkpoints_taken_during_the_run(self):
        """What is put there is kept under another name; the checkpoint of this run has its place."""
        (self.folder / "precious").write_text("precious")
        (self.folder / "data.txt").write_bytes(b"my own")
        job = self.start(1, "train.steps=100000", "checkpoint.every=20", "checkpoint.keep=99", "stop.step=160",
                         "run.log_every=100000", "validation.tokens=0")
        job.until(self.checkpoint(20).exists, "checkpoint")
        makes = [lambda path: path.symlink_to(self.folder / "precious"), lambda path: path.symlink_to("nowhere"),
                 lambda path: path.mkdir(), os.mkfifo, lambda path: shutil.copy(self.folder / "data.txt", path),
                 lambda path: shutil.copy(self.checkpoint(20), path)]
        paths = [self.checkpoint(step) for step in range(60, 180, 20)]
        for make, path in zip(makes, paths):
            self.assertFalse(path.exists())
            make(path)
        self.assertEqual(job.wait(), 75, job.text())
        foreign = "not written by this run"
        kinds = [(foreign, "a symbolic link"), (foreign, "a symbolic link"), (foreign, "a directory"),
                 (foreign, "a device, FIFO or socket"),
                 ("not an HDF5 file, so neither a token shard, a checkpoint nor a trace", "the file")]
        names = [f"outputs/run/checkpoints/{path.name}" for path in paths]
        self.assertEqual(job.messages(), [f"nanorun: warning: {name}: {why}; {kind} is kept as {name}.1"
                                          for name, (why, kind) in zip(names, kinds)])
        link, dangling, directory, fifo, file, own = (path.with_name(f"{path.name}.1") for path in paths)
        self.assertTrue(link.is_symlink() and dangling.is_symlink() and directory.is_dir() and fifo.is_fifo())
        self.assertEqual((self.folder / "precious").read_text(), "precious")
        self.assertEqual(file.read_bytes(), b"my own")
        self.assertFalse(own.exists())
        self.verify(*paths)

    def test_a_finished_checkpoint_is_never_thrown_away(self):
        """Also where it cannot get its name."""
        name = "outputs/run/checkpoints/checkpoint_00000004.h5"
        wrapper = self.injecting(f"{name}.partial", "rename:error=EPERM:when=1")
        self.assert_refused(self.train(None, "stop.step=4", wrapper=wrapper, code=4),
                            f"{name}.partial: cannot be renamed to {name}: Operation not permitted; the finished "
                            f"checkpoint is kept as {name}.1")
        self.verify(f"{name}.1")

    def test_a_file_takes_the_place_of_the_checkpoints(self):
        job = self.start(1, "train.steps=100000", "checkpoint.every=100000", "stop.step=200")
        job.until_step(2)
        folder = self.run_folder() / "checkpoints"
        folder.rename(self.folder / "aside")
        folder.write_text("mine")
        self.assertEqual(job.wait(), 4, job.text())
        self.assert_refused(job, "outputs/run/checkpoints: a file stands where a directory of the run belongs: move it "
                            "away")
        self.assertEqual(folder.read_text(), "mine")

    def test_large_sparse_file_of_a_write_that_was_cut_short(self):
        """Holes are zeros, and need not be read."""
        self.train(1, "stop.step=4", code=75)
        path = self.checkpoint(999).with_suffix(".h5.partial")
        path.touch()
        try:
            os.truncate(path, 1 << 43)
        except OSError:
            self.skipTest("needs a file system of large files")
        self.assertEqual(self.train(1).messages(), [])
        self.assertFalse(path.exists())

    def test_summary_of_others_during_the_run(self):
        (self.folder / "precious").write_text("precious")
        for name, is_link in (("summary.json", False), ("summary.json", True), ("summary.json.partial", False),
                              ("summary.json.partial", True)):
            with self.subTest(name=name, is_link=is_link):
                job = self.start(1, "train.steps=100000", "checkpoint.every=100000", "stop.step=200")
                job.until_step(2)
                path = self.run_folder() / name
                path.symlink_to(self.folder / "precious") if is_link else path.write_text("{}")
                self.assertEqual(job.wait(), 75, job.text())
                kept = path.with_name(f"{name}.1")
                self.assert_refused(job, f"outputs/run/{name}: not written by this run; "
                                    f"{'a symbolic link' if is_link else 'the file'} is kept as outputs/run/{name}.1")
                self.assertEqual(kept.read_text(), "precious" if is_link else "{}")
                self.assertEqual(kept.is_symlink(), is_link)
                self.assertEqual(self.summary()["steps"], 200)
                shutil.rmtree(self.run_folder())

    def test_summary_of_others_before_a_start(self):
        self.train(1, "stop.step=4", code=75)
        summary = self.run_folder() / "summary.json"
        for steps, text in ((6, "my notes"), (8, '{"steps": 7}')):
            summary.write_text(text)
            kept = f"summary.json.{steps // 2 - 2}"
            self.assert_refused(self.train(1, f"stop.step={steps}", code=75), f"kept as outputs/run/{kept}")
            self.assertEqual(summary.with_name(kept).read_text(), text)
            self.assertEqual(self.summary()["steps"], steps)
        self.assertEqual(self.train(1).messages(), [])

    def test_what_stands_at_lock_partial(self):
        """Where the lock has further hard links, it is replaced by way of a name that nobody has."""
        self.train(1, "stop.step=4", code=75)
        for step, make in ((6, lambda path: path.write_text("mine")), (8, lambda path: path.mkdir()), (10, os.mkfifo)):
            path = self.run_folder() / "lock.partial"
            make(path)
            os.link(self.run_folder() / "lock", self.folder / "lock")
            before = path.lstat()
            self.assertEqual(self.train(1, f"stop.step={step}", code=75).messages(), [])
            self.assertEqual((path.lstat().st_ino, path.lstat().st_mode), (before.st_ino, before.st_mode))
            self.assertEqual(sorted(one.name for one in self.run_folder().glob("lock*")), ["lock", path.name])
            (self.folder / "lock").unlink()
            path.rmdir() if path.is_dir() else path.unlink()

    def test_unfinished_files_of_other_programs_are_kept(self):
        """Whatever begins like a file of the program's, or is HDF5 of another kind."""
        self.train(1, *EVERY, "train.steps=3")
        other = self.checkpoint(99).with_suffix(".h5.partial")
        for steps, write in enumerate((zeros_first, text_of_h5py, attributes_alone, soft_link), 4):
            with self.subTest(write.__name__):
                write(other)
                data = other.read_bytes()
                said = self.train(1, *EVERY, f"train.steps={steps}").text()
                self.assertIn(f"{other.name}: no checkpoint of nanorun's; the file is kept", said)
                self.assertEqual(other.read_bytes(), data)

    def test_files_that_the_run_has_not_written_are_not_pruned(self):
        self.train(1, "run.name=wide", "model.width=64", "model.heads=4", "stop.step=2", code=75)
        self.train(1, *EVERY, "stop.step=4", code=75)
        notes = self.checkpoint(1)
        notes.write_text("precious")
        other = self.checkpoint(2)
        shutil.copy(self.folder / "outputs/wide/checkpoints/checkpoint_00000002.h5", other)
        kept = other.read_bytes()
        job = self.train(1, *EVERY)
        self.assertIn(f"{notes.name}: not an HDF5 file", job.text())
        self.assertIn(f"{other.name}: a checkpoint of another model", job.text())
        self.assertEqual(self.files(), [notes.name, other.name, self.checkpoint(12).name])
        self.assertEqual((notes.read_text(), other.read_bytes()), ("precious", kept))


if __name__ == "__main__":
    small_run.main()
