"""A dry run says with which checkpoint the run begins, and why it would be refused: the run then does just that."""

import os
import shutil
import subprocess

from harness import FaultTest, Job, restarted_from, small_run

STEPS = ("train.steps=6", "checkpoint.every=3", "checkpoint.keep=9", "validation.tokens=0")


class DryRun(FaultTest):
    def begin(self):
        """A finished run of six steps."""
        self.train(1, *STEPS)

    def dry(self, *overrides):
        """The lines that follow the plan, and those on standard error."""
        job = Job(self.folder, 1, ["train", "deck.toml", "--dry-run", *STEPS, *overrides])
        self.assertEqual(job.wait(), 0, job.text())
        plan = next(i for i, line in enumerate(job.output) if line.startswith("bytes sent per rank"))
        return job.output[plan + 1:], job.messages()

    def assert_refused_alike(self, *overrides, code):
        before = self.content()
        planned, said = self.dry(*overrides)
        self.assertEqual(self.content(), before)
        self.assertEqual(said, [])
        message, = self.train(1, *STEPS, *overrides, code=code).messages()
        self.assertEqual(planned, ["warning: " + message.removeprefix("nanorun: ") + "\n"])

    def assert_ends_alike(self, *overrides, code, wrapper=()):
        """The plan is printed, and then the dry run ends as the run does, with the message that is returned."""
        before = self.content()
        ranks = None if wrapper else 1  # mpirun takes no rank of another user
        planned = Job(self.folder, ranks, ["train", "deck.toml", "--dry-run", *STEPS, *overrides], wrapper)
        self.assertEqual(planned.wait(), code, planned.text())
        self.assertIn("bytes sent per rank", planned.text())
        self.assertEqual(self.content(), before)
        started = self.train(ranks, *STEPS, *overrides, code=code, wrapper=wrapper)
        self.assertEqual(started.messages(), planned.messages())
        warnings, refusal = planned.messages()[:-1], planned.messages()[-1]
        self.assertTrue(all(warning.startswith("nanorun: warning: ") for warning in warnings), warnings)
        return refusal

    def assert_continues(self, step, *overrides):
        before = self.content()
        planned, (skipped,) = self.dry(*overrides)
        self.assertEqual(self.content(), before)
        self.assertEqual(planned, [
            f"continues from the checkpoint outputs/run/checkpoints/checkpoint_{step:08}.h5, step {step}\n"])
        self.assertEqual(restarted_from(self.train(1, *STEPS, *overrides)), step)
        return skipped

    def content(self):
        return {path: path.read_bytes() for path in self.run_folder().rglob("*")
                if path.is_file() and os.access(path, os.R_OK)}

    def as_user(self):
        """Wrapper that starts the program as somebody whom permissions hold back."""
        self.folder.chmod(0o755)
        return () if os.getuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    def test_other_state_of_the_optimizer(self):
        self.begin()
        for changed in ("optimizer.adam_period=2", "optimizer.normuon_beta=0.9"):
            self.assert_refused_alike("train.steps=9", changed, code=4)

    def test_too_few_steps(self):
        self.begin()
        self.assert_refused_alike("train.steps=3", code=2)
        self.assert_refused_alike("train.steps=3", f"checkpoint.restart={self.checkpoint(6)}", code=2)

    def test_step_larger_than_the_shards(self):
        """Refused before the run allocates or writes anything."""
        refusal = self.assert_ends_alike("train.sequences=60000", code=3)
        self.assertRegex(refusal, "no shard holds the 15360001 tokens of one step: the largest of 1 shards holds .*")
        self.assertFalse(self.run_folder().exists())

    def test_another_training(self):
        self.begin()
        shutil.copy(self.checkpoint(3), self.folder / "first.h5")
        self.assert_refused_alike("train.steps=9", "checkpoint.weights=first.h5", code=2)
        self.assert_refused_alike("train.steps=9", "run.seed=2", code=2)

    def test_another_step_than_that_of_the_name(self):
        self.begin()
        shutil.copy(self.checkpoint(6), self.checkpoint(9))
        self.assertIn("contains step 6, not that of its name; skipped", self.assert_continues(6, "train.steps=12"))

    def test_newest_is_damaged(self):
        self.begin()
        with self.checkpoint(6).open("r+b") as file:
            file.seek(-64, 2)
            file.write(b"x" * 64)
        (self.run_folder() / "summary.json").unlink()
        self.assertRegex(self.assert_continues(3), r"checkpoint_00000006\.h5: .*; skipped")

    def test_other_shards(self):
        self.begin()
        self.assertEqual(len(self.dry("train.steps=9")[0]), 1)
        (self.folder / "data.h5").unlink()
        small_run.write_data(self.folder, seed=1)
        planned, _ = self.dry("train.steps=9")
        message, = self.train(1, *STEPS, "train.steps=9", code=3).messages()
        self.assertEqual(planned[1:], ["warning: " + message.removeprefix("nanorun: ") + "\n"])

    def test_checkpoints_of_another_run(self):
        self.begin()
        other = self.folder / "outputs" / "other"
        other.mkdir()
        (other / "checkpoints").symlink_to(self.run_folder() / "checkpoints")
        self.assert_ends_alike("run.name=other", code=4)
        self.assert_ends_alike("run.outputs=outputs/run", "run.name=checkpoints", code=7)
        self.assert_ends_alike("run.outputs=outputs/run/checkpoints", "run.name=new", code=7)

    def test_what_stands_in_the_way(self):
        """Under every name that the run needs, of whatever kind."""
        self.train(1, *STEPS, "stop.step=3", code=75)
        (self.folder / "precious").write_text("precious")
        kinds = {"a symbolic link": lambda path: path.symlink_to(self.folder / "precious"),
                 "a directory": lambda path: path.mkdir(), "a device, FIFO or socket": os.mkfifo}
        needed = [("checkpoints/checkpoint_00000006.h5.partial", 4), ("lock", 7), ("heartbeats", 7), ("heartbeats/0", 7),
                  *((name, 7) for name in ("deck.toml", "deck.toml.partial", "log.txt", "metrics.jsonl", "summary.json",
                                           "summary.json.partial", "trace.h5", "trace.h5.partial", "trace.json"))]
        for number, (name, code) in enumerate(needed):
            with self.subTest(name):
                kind, make = list(kinds.items())[number % 3 if name != "heartbeats" else 0]
                path, aside = self.run_folder() / name, self.folder / "aside"
                path.parent.mkdir(exist_ok=True)
                if path.exists():
                    path.rename(aside)
                make(path)
                message = self.assert_ends_alike("trace.json_steps=[4]", code=code)
                self.assertIn(f"outputs/run/{name}: ", message)
                self.assertTrue(message.endswith(": move it away"), message)
                if name != "heartbeats/0":
                    self.assertIn(f": {kind} stands where", message)
                path.rmdir() if kind == "a directory" else path.unlink()
                if aside.exists():
                    aside.rename(path)
        self.assertEqual((self.folder / "precious").read_text(), "precious")
        self.train(1, *STEPS, "trace.json_steps=[4]")

    def test_what_is_set_aside_is_in_nobodys_way(self):
        self.train(1, *STEPS, "stop.step=3", code=75)
        (self.run_folder() / "trace.h5.partial").mkdir()
        (self.run_folder() / "heartbeats").symlink_to(self.folder)
        self.dry("checkpoint.restart=none")
        self.train(1, *STEPS, "checkpoint.restart=none")

    def test_stop_file(self):
        for file in ("outputs", "outputs/run", "outputs/../outputs/run"):
            self.assertIn(f"stop.file = {file}: the run's directory outputs/run ",
                          self.assert_ends_alike(f"stop.file={file}", code=2))
        self.assertFalse((self.folder / "outputs").exists())
        for file in ("outputs/run/trace.h5", "outputs/run/heartbeats/new", "deck.toml/stop"):
            self.assert_ends_alike(f"stop.file={file}", code=2)
        self.assert_ends_alike("stop.file=deck.toml", code=7)

    def test_inputs_that_the_start_would_rename_or_replace(self):
        self.begin()
        run, anew = self.run_folder(), "checkpoint.restart=none"
        shutil.copy(self.folder / "data.h5", run / "tokens.h5")
        (run / "linked.h5").symlink_to(self.folder / "data.h5")
        (self.folder / "link.h5").symlink_to(run / "tokens.h5")
        shutil.copy(self.checkpoint(6), run / "best.h5")
        moved = "{}: {} names it, but this start would rename outputs/run with all that is in it: move the file out of there"
        checkpoint = self.checkpoint(3).relative_to(self.folder)
        for key, value, file, more in (
                ("data.train", '["outputs/run/tok*.h5"]', "outputs/run/tokens.h5", (anew,)),
                ("data.train", '["outputs/run/linked.h5"]', "outputs/run/linked.h5", (anew,)),
                ("data.train", '["link.h5"]', "link.h5", (anew,)),
                ("data.validation", '["outputs/run/tokens.h5"]', "outputs/run/tokens.h5", (anew, "validation.tokens=4096")),
                ("checkpoint.weights", checkpoint, checkpoint, (anew,)),
                ("checkpoint.restart", "outputs/run/best.h5", "outputs/run/best.h5", ("train.steps=9",))):
            with self.subTest(value):
                message = self.assert_ends_alike(*more, f"{key}={value}", code=2)
                self.assertIn(moved.format(file, key), message)
        stays = self.train(1, *STEPS, "train.steps=9", f"checkpoint.restart={self.checkpoint(6)}",
                           "data.train=outputs/run/tokens.h5", "data.changed=accept")
        self.assertEqual(restarted_from(stays), 6)
        shutil.rmtree(run)
        run.mkdir()
        shutil.copy(self.folder / "data.h5", run / "trace.h5")
        self.assertIn("outputs/run/trace.h5: data.train names it, but the run writes a file of this name",
                      self.assert_ends_alike("data.train=outputs/run/trace.h5", code=2))
        self.train(1, *STEPS, "data.train=outputs/run/trace.h5", "trace.enabled=false")

    def test_inputs_on_whose_way_the_start_would_rename_or_remove_something(self):
        """Each link of a chain counts, and each name among the checkpoints that the start would take."""
        self.begin()
        run, data = self.run_folder(), self.folder / "data.h5"
        (run / "mid.h5").symlink_to(data)
        (self.folder / "a.h5").symlink_to(run / "mid.h5")
        (run / "folder").symlink_to(self.folder)
        (self.folder / "way").symlink_to(run / "folder")
        partial, newer = (self.checkpoint(step).with_name(self.checkpoint(step).name + end)
                          for step, end in ((4, ".partial"), (9, "")))
        shutil.copy(data, partial)
        shutil.copy(data, newer)
        (self.folder / "b.h5").symlink_to("c.h5")
        (self.folder / "c.h5").symlink_to(partial)
        moved = "this start would rename outputs/run with all that is in it: move the file out of there"
        removed = f"the run removes or renames unfinished checkpoints, as {partial}: rename the file"
        anew, older = "checkpoint.restart=none", f"checkpoint.restart={self.checkpoint(6)}"
        for file, said, more in (("a.h5", moved, anew), ("way/data.h5", moved, anew), ("outputs/run/folder/data.h5", moved, anew),
                                 (partial.relative_to(self.folder), removed, older), ("b.h5", removed, older),
                                 (newer.relative_to(self.folder), f"goes on from step 6 and renames {newer}", older)):
            with self.subTest(file):
                message = self.assert_ends_alike(f"data.train={file}", "data.changed=accept", more, code=2)
                self.assertIn(f"{file}: data.train names it, but ", message)
                self.assertIn(said, message)
        self.assertEqual((partial.read_bytes(), newer.read_bytes()), (data.read_bytes(), data.read_bytes()))

    def test_files_of_users_under_the_names_of_unfinished_checkpoints(self):
        """The one that the start needs gets another name."""
        self.train(1, *STEPS, "stop.step=3", code=75)
        partials = [self.checkpoint(step).with_suffix(".h5.partial") for step in (5, 6)]
        for partial in partials:
            partial.write_text("my notes")
        planned, _ = self.dry()
        kept = "no checkpoint of nanorun's; the file is kept"
        warnings = [f"warning: outputs/run/checkpoints/{partials[0].name}: {kept}\n",
                    f"warning: outputs/run/checkpoints/{partials[1].name}: {kept} as outputs/run/checkpoints/"
                    f"{partials[1].name}.1\n"]
        self.assertEqual(planned[-2:], warnings)
        self.assertEqual(self.train(1, *STEPS).messages(), ["nanorun: " + line.rstrip("\n") for line in warnings])

    def test_checkpoints_that_cannot_be_renamed_or_written(self):
        self.begin()
        folder = self.run_folder() / "checkpoints"
        if subprocess.run(["chattr", "+a", folder], stderr=subprocess.DEVNULL).returncode == 0:
            self.addCleanup(subprocess.run, ["chattr", "-a", folder])
            self.assertIn("no checkpoint could be renamed or removed there: the directory is append-only",
                          self.assert_ends_alike("train.steps=9", code=4))
            subprocess.run(["chattr", "-a", folder], check=True)
        mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec \"$@\""
        wrapper = ("unshare", "-m", "sh", "-c", mount, "sh")
        if Job(self.folder, None, ["keys"], wrapper).wait() != 0:
            self.skipTest("needs the right to mount")
        self.assertIn("outputs/run/checkpoints: cannot be written: Read-only file system: allow it",
                      self.assert_ends_alike("train.steps=9", code=4, wrapper=wrapper))

    def test_steps_that_the_run_would_miss(self):
        """Or a trace of which only the beginning is sound."""
        self.train(1, *STEPS, "stop.step=3", code=75)
        (self.run_folder() / "metrics.jsonl").write_bytes(b"")
        trace = self.run_folder() / "trace.h5"
        damaged = trace.read_bytes()
        damaged = damaged[:len(damaged) // 2] + bytes(len(damaged) - len(damaged) // 2)
        trace.write_bytes(damaged)
        planned, _ = self.dry()
        said = self.train(1, *STEPS).messages()
        self.assertEqual(sorted("nanorun: " + line.rstrip("\n") for line in planned if line.startswith("warning: ")),
                         sorted(said))
        self.assertEqual(len(said), 2, said)
        self.assertIn("nanorun: warning: outputs/run/metrics.jsonl: lacks steps 1 to 3, which an earlier job could not write",
                      said)
        self.assertEqual((self.run_folder() / "trace.h5.1").read_bytes(), damaged)

    def test_what_is_not_permitted_comes_with_a_remedy(self):
        self.begin()
        user = self.as_user()
        for path, mode in ((self.run_folder(), 0o555), (self.run_folder() / "lock", 0o444)):
            before = path.stat().st_mode
            path.chmod(mode)
            message = self.assert_ends_alike("train.steps=9", code=7, wrapper=user)
            self.assertTrue(message.endswith(
                ": Permission denied: allow it (chmod, chattr), or change run.name or run.outputs"), message)
            path.chmod(before)

    def test_directories_that_cannot_be_written(self):
        user = self.as_user()
        for name, code in (("outputs", 7), ("outputs/run", 7), ("outputs/run/checkpoints", 4)):
            with self.subTest(name):
                locked = self.folder / name
                locked.mkdir(exist_ok=True)
                for path in [self.folder / "outputs", *(self.folder / "outputs").rglob("*")]:
                    path.chmod(0o777)
                locked.chmod(0o555)
                self.assertIn("Permission denied", self.assert_ends_alike(code=code, wrapper=user))
                locked.chmod(0o777)

    def test_what_this_user_may_not_do(self):
        """Whatever the start would need after it has begun to change the directory."""
        user = self.as_user()
        self.train(1, *STEPS, "stop.step=3", code=75)
        outputs, run, stops = self.folder / "outputs", self.run_folder(), self.folder / "stops"
        stops.mkdir()
        (stops / "stop").touch()
        for path in (outputs, stops, *outputs.rglob("*")):
            path.chmod(0o777)
        deck = (run / "deck.toml").stat().st_mtime_ns
        denied = "Permission denied"
        for path, mode, override, said in (
                (run / "trace.h5", 0o222, "run.seed=1", f"outputs/run/trace.h5: cannot be opened: {denied}"),
                (run, 0o333, "run.seed=1", f"outputs/run: cannot be opened: {denied}"),
                (outputs, 0o555, "checkpoint.restart=none",
                 "outputs/run: cannot be renamed, so that the earlier run in it could not be kept: outputs: cannot be "
                 f"written: {denied}: choose another run.name"),
                (stops, 0o555, "stop.file=stops/stop",
                 "stops/stop: is the stop file of an earlier stop, which cannot be removed: stops: cannot be written: "
                 f"{denied}: remove it")):
            with self.subTest(override, path=path.name):
                path.chmod(mode)
                message = self.assert_ends_alike(override, code=7, wrapper=user)
                path.chmod(0o777)
                self.assertIn(said, message)
                self.assertEqual((run / "deck.toml").stat().st_mtime_ns, deck)

    def test_mount_point(self):
        self.train(1, *STEPS, "stop.step=3", code=75)
        mounting = ("unshare", "-m", "sh", "-c", 'mount --bind outputs/run outputs/run && exec "$@"', "sh")
        if Job(self.folder, None, ["keys"], mounting).wait() != 0:
            self.skipTest("may not mount here")
        message = self.assert_ends_alike("checkpoint.restart=none", code=7, wrapper=mounting)
        self.assertIn("outputs/run: cannot be renamed", message)
        self.assertIn("a file system is mounted there: choose another run.name", message)

    def test_files_of_others_in_a_sticky_directory(self):
        """As in /tmp: whoever may write there may not rename or remove what another user owns."""
        user = self.as_user()
        if not user:
            self.skipTest("needs a second user")
        self.train(1, *STEPS, "stop.step=3", code=75)
        outputs, run, stops = self.folder / "outputs", self.run_folder(), self.folder / "stops"
        stops.mkdir()
        (stops / "stop").touch()
        partial = self.checkpoint(6).with_suffix(".h5.partial")
        partial.touch()
        heartbeats = run / "heartbeats"
        heartbeats.mkdir(exist_ok=True)
        (heartbeats / "0").touch()
        owned = "another user owns it, and the directory has the sticky bit: "
        for path, sticky, override, code, said in (
                (stops / "stop", stops, "stop.file=stops/stop", 7,
                 f"stops/stop: is the stop file of an earlier stop, which cannot be removed: {owned}remove it"),
                (run, outputs, "checkpoint.restart=none", 7, f"outputs/run: cannot be renamed, so that the earlier run in "
                 f"it could not be kept: {owned}choose another run.name"),
                (run / "deck.toml", run, "run.seed=1", 7,
                 f"outputs/run/deck.toml: cannot be replaced: {owned}undo that, or change run.name"),
                (heartbeats / "0", heartbeats, "run.seed=1", 7,
                 f"outputs/run/heartbeats/0: cannot be replaced: {owned}undo that, or change run.name"),
                (partial, partial.parent, "run.seed=1", 4, f"{partial.name}: cannot be replaced: {owned}undo that")):
            with self.subTest(path=path.name):
                for one in (outputs, stops, *outputs.rglob("*")):
                    os.chown(one, 65534, 65534)
                    one.chmod(0o777)
                for one in (sticky, path):
                    os.chown(one, 0, 0)
                sticky.chmod(0o1777)
                self.assertIn(said, self.assert_ends_alike(override, code=code, wrapper=user))

    def test_mounted_and_immutable_files(self):
        """A checkpoint that is damaged gets another name before the run continues from an older one."""
        for step in (2, 3):
            self.train(1, *STEPS, f"stop.step={step}", code=75)
        partial = self.checkpoint(6).with_suffix(".h5.partial")
        partial.touch()
        (self.run_folder() / "deck.toml.partial").touch()
        for name, code in (("deck.toml", 7), ("deck.toml.partial", 7), ("summary.json", 7), ("trace.h5", 7),
                           (f"checkpoints/{partial.name}", 4), ("checkpoints/checkpoint_00000003.h5", 4)):
            path = f"outputs/run/{name}"
            mounting = ("unshare", "-m", "sh", "-c", f'mount --bind deck.toml {path} && exec "$@"', "sh")
            if Job(self.folder, None, ["keys"], mounting).wait() != 0:
                self.skipTest("may not mount here")
            with self.subTest(path=path):
                self.assertTrue(self.assert_ends_alike(code=code, wrapper=mounting).endswith(
                    f"{path}: cannot be replaced: a file system is mounted there: undo that, or change run.name"))

    def test_lock_of_others_behind_a_link(self):
        user = self.as_user()
        if not user:
            self.skipTest("needs a second user")
        scratch = self.folder / "scratch"
        scratch.mkdir()
        (scratch / "lock").touch()
        self.run_folder().mkdir(parents=True)
        (self.run_folder() / "checkpoints").symlink_to(scratch)
        for path in (scratch, self.folder / "outputs", self.run_folder()):
            path.chmod(0o777)
        self.assertIn("scratch/lock: cannot be opened: Permission denied", self.assert_ends_alike(code=4, wrapper=user))

    def test_unreadable_and_strange_checkpoints(self):
        user = self.as_user()
        self.train(1, *STEPS, "stop.step=3", code=75)
        newest, older = self.checkpoint(3), self.checkpoint(2)
        for path in (self.folder / "outputs", *(self.folder / "outputs").rglob("*")):
            path.chmod(0o777)
        newest.chmod(0o000)
        self.assertIn("checkpoint_00000003.h5: cannot be opened: Permission denied: make it readable, or move it away to "
                      "continue from an earlier one", self.assert_ends_alike(code=4, wrapper=user))
        newest.chmod(0o777)
        newest.write_bytes(b"damaged")
        os.mkfifo(older)
        self.assertTrue(self.train(1, *STEPS, code=4).messages()[-1].endswith(
            f"{older.name}: a device, FIFO or socket stands where a checkpoint of the run belongs: move it away"))

    def test_log_as_large_as_the_limit_of_files(self):
        self.train(1, *STEPS, "stop.step=3", code=75)
        with (self.run_folder() / "log.txt").open("a") as log:
            log.write("x" * 9000000)
        limited = ("sh", "-c", 'ulimit -f 16600; exec "$@"', "sh")  # blocks of 512 bytes
        self.assertRegex(self.assert_ends_alike(code=7, wrapper=limited), "log.txt: has [0-9]+ bytes, as many as the file "
                         "size limit .* allows: raise the limit")

    def test_stop_file_of_a_long_name(self):
        name = "s" * 250
        self.train(1, *STEPS, "stop.step=3", code=75)
        (self.folder / name).touch()
        self.dry(f"stop.file={name}")
        self.assertIn("removed the stop file", self.train(1, *STEPS, f"stop.file={name}").text())
        self.assertEqual([path.name for path in self.folder.glob("lock*")], [])

    def test_long_paths(self):
        """Ranks cannot share a file of such a path; no directory is made."""
        outputs = f"{'a' * 120}/{'b' * 90}"
        ends = []
        for words in (("--dry-run",), ()):
            ends.append(Job(self.folder, 1, ["train", "deck.toml", *words, *STEPS, f"run.outputs={outputs}"]))
            self.assertEqual(ends[-1].wait(), 4, ends[-1].text())
            self.assert_refused(ends[-1], "checkpoint_00000006.h5.partial: ", "too long for the path of a file")
        self.assertEqual(ends[0].messages(), ends[1].messages())
        self.assertFalse((self.folder / ("a" * 120)).exists())

    def test_on_two_ranks(self):
        self.train(1, *STEPS, "stop.step=3", code=75)
        (self.run_folder() / "heartbeats").mkdir()
        (self.run_folder() / "heartbeats/1").mkdir()
        refused = Job(self.folder, 2, ["train", "deck.toml", "--dry-run", *STEPS])
        self.assertEqual(refused.wait(), 7, refused.text())
        self.assert_refused(refused, "outputs/run/heartbeats/1: is not a regular file: move it away")
        self.assertEqual(self.train(2, *STEPS, code=7).messages(), refused.messages())
        self.dry()

    def test_what_passes_is_warned_of(self):
        """Another job in the directory, and too little space: the run may start later."""
        live = self.start(1, "train.steps=100000", "validation.tokens=0")
        live.until_step(2)
        warning, = self.dry()[0]
        self.assertRegex(warning, "warning: the output directory outputs/run is in use by process .*")
        live.kill()
        limited = ("sh", "-c", 'ulimit -f 20000; exec "$@"', "sh")
        job = Job(self.folder, None, ["train", "deck.toml", "--dry-run", *STEPS, "run.name=large", "model.width=512",
                                      "model.heads=32"], limited)
        self.assertEqual(job.wait(), 0, job.text())
        self.assertRegex(job.text(), "warning: outputs/large/checkpoints: a checkpoint needs .* limit")
        self.assertFalse((self.folder / "outputs/large").exists())

    def test_finished(self):
        self.begin()
        self.assertIn("the run is finished: all 6 steps are made\n", self.dry()[0])
        self.assertIn("the run is finished", self.train(1, *STEPS).text())


if __name__ == "__main__":
    small_run.main()
