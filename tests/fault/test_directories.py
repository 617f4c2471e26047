"""Ranks that work in different directories, or see different files in them."""

import os
import shutil

from harness import FaultTest, Job, small_run


class Directories(FaultTest):
    def setUp(self):
        super().setUp()
        self.first, self.second = self.folder / "first", self.folder / "second"
        for folder in (self.first, self.second):
            folder.mkdir()
            for name in ("deck.toml", "data.h5"):
                shutil.copy(self.folder / name, folder)

    def start_apart(self, *overrides, folders=None):
        """A job with a rank in each of two folders."""
        first, second = folders or (self.first, self.second)
        command = ["train", "deck.toml", *overrides]
        launcher = [small_run.MPIRUN, "--oversubscribe", "-n", "1", "--wdir", first]
        return Job(self.folder, None, [*command, ":", "-n", "1", "--wdir", second, small_run.PROGRAM, *command], launcher)

    def train_apart(self, *overrides, code=0, folders=None):
        job = self.start_apart(*overrides, folders=folders)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def full_paths(self):
        data = f'["{self.folder}/data.h5"]'
        return f"run.outputs={self.folder}/outputs", f"data.train={data}", f"data.validation={data}"

    def test_relative_paths_in_two_directories(self):
        job = self.train_apart(code=2)
        self.assert_refused(job, "rank 1 works in", self.first, self.second, "run.outputs, data.train, data.validation)")
        for folder in (self.folder, self.first, self.second):
            self.assertFalse((folder / "outputs").exists())

    def test_one_relative_path_in_two_directories(self):
        outputs, train, validation = self.full_paths()
        for arguments, key in (((train, validation), "run.outputs"), ((outputs, validation), "data.train"),
                               ((outputs, train), "data.validation"),
                               ((outputs, train, validation, "checkpoint.restart=a.h5"), "checkpoint.restart")):
            self.assert_refused(self.train_apart(*arguments, code=2), f"relative paths of the deck ({key})")

    def test_full_paths_in_two_directories(self):
        self.train_apart(*self.full_paths())
        self.verify(self.checkpoint(12))
        self.assertEqual(sorted(path.name for path in self.run_folder().iterdir() if path.name.startswith("lock")),
                         ["lock"])

    def test_one_directory_by_two_names(self):
        (self.folder / "alias").symlink_to("first")
        self.train_apart(folders=(self.first, self.folder / "alias"))
        self.verify(self.checkpoint(12, self.first))

    def test_outputs_that_are_not_shared(self):
        """One path, as of a disk of each node, names the working directory of each rank here."""
        arguments = (*self.full_paths()[1:], "run.outputs=/proc/self/cwd/outputs")
        job = self.train_apart(*arguments, code=7)
        self.assert_refused(job, "rank 1 on node", os.uname().nodename, "does not see /proc/self/cwd/outputs/run")
        self.assertFalse(self.run_folder(self.first).exists())
        # Nor does it help that the other node has a directory of an earlier run there.
        self.train(1, folder=self.second)
        kept = sorted(self.run_folder(self.second).rglob("*"))
        self.assert_refused(self.train_apart(*arguments, code=7), "rank 1 on node", "does not see")
        self.assertEqual(sorted(self.run_folder(self.second).rglob("*")), kept)


if __name__ == "__main__":
    small_run.main()
