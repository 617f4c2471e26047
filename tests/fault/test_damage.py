"""Checkpoints that are damaged, foreign or half written."""

import random
import time

import harness
import old_hdf5
from harness import FaultTest, restarted_from, small_run


class Damage(FaultTest):
    def two_checkpoints(self):
        """Trains 6 of 12 steps with checkpoints of steps 3 and 6; returns the newer one."""
        self.train(2, "checkpoint.every=3", "stop.step=6", code=75)
        self.assertEqual(self.files(), ["checkpoint_00000003.h5", "checkpoint_00000006.h5"])
        return self.checkpoint(6)

    def assert_file_refused(self, path, *parts):
        self.assert_refused(self.train(2, f"checkpoint.restart={path}", code=4), path, *parts)

    def assert_passed_over(self, path, *parts):
        """With "auto" the older checkpoint is taken, and a warning says why."""
        damaged = path.read_bytes()
        job = self.train(2)
        self.assert_refused(job, "warning", path.name, *parts)
        self.assertEqual(restarted_from(job), 3)
        aside = path.with_name(path.name + ".1")
        self.assertIn(f"renamed {path.relative_to(self.folder)} to {aside.relative_to(self.folder)}, since", job.text())
        self.assertEqual(aside.read_bytes(), damaged)

    def test_flipped_byte(self):
        import h5py

        path = self.two_checkpoints()
        with h5py.File(path) as file:
            weights = file["weights/head"].id.get_offset()
        damaged = bytearray(path.read_bytes())
        damaged[weights + 1000] ^= 1
        path.write_bytes(damaged)
        self.assert_refused(self.verify(path, code=4), path, "checksum")
        self.assert_file_refused(path, "checksum")
        self.assert_passed_over(path, "checksum")

    def test_truncated(self):
        path = self.two_checkpoints()
        path.write_bytes(path.read_bytes()[:-1000])
        self.assert_refused(self.verify(path, code=3), path, "truncated")
        self.assert_file_refused(path, "truncated")
        self.assert_passed_over(path, "truncated")

    def test_foreign_file(self):
        path = self.two_checkpoints()
        path.write_bytes((self.folder / "data.h5").read_bytes())
        self.assert_file_refused(path, "is not a nanorun checkpoint")
        self.assert_passed_over(path, "is not a nanorun checkpoint")

    def test_no_checkpoint_readable(self):
        self.two_checkpoints()
        for step in (3, 6):
            self.checkpoint(step).write_text("not HDF5")
        job = self.train(2, code=4)
        self.assertEqual(len(job.messages()), 3, job.messages())  # a warning for each, then the refusal
        self.assertIn("none of its checkpoints can be read", job.messages()[-1])
        self.assertEqual(self.files(), ["checkpoint_00000003.h5", "checkpoint_00000006.h5"])

    def test_another_model(self):
        self.two_checkpoints()
        job = self.train(2, "model.width=64", "model.heads=4", code=4)
        self.assert_refused(job, "checkpoint_00000006.h5", "belongs to another model", "/weights/head is [384, 32] there and [384, 64]")
        self.verify(self.checkpoint(3), self.checkpoint(6))

    def test_newer_format(self):
        import h5py

        path = self.two_checkpoints()
        with h5py.File(path, "r+") as file:
            file.attrs.modify("format_version", 7)
        content = path.read_bytes()
        said = "checkpoint format version 7; this program reads versions 1 to 4"
        self.assert_file_refused(path, said)
        # Passing over it would make its steps again and then remove it.
        self.assert_refused(self.train(2, code=4), path.name, said)
        self.assertEqual(path.read_bytes(), content)

    def test_flipped_bit_in_the_structure(self):
        """What describes the file's contents has checksums of HDF5's own."""
        path = self.two_checkpoints()
        damaged = bytearray(path.read_bytes())
        damaged[damaged.index(b"train_seconds")] ^= 1
        path.write_bytes(damaged)
        self.assert_refused(self.verify(path, code=3), path)
        self.assert_file_refused(path, path.name)
        self.assert_passed_over(path)

    def test_old_format(self):
        """Files as earlier versions of the program wrote them."""
        path = self.two_checkpoints()
        old_hdf5.convert(path)
        old_hdf5.convert(self.folder / "data.h5")
        self.verify(path, "data.h5")
        self.assertEqual(restarted_from(self.train(2, "stop.step=7", code=75)), 6)

    def test_old_format_on_which_hdf5_crashes(self):
        path = self.two_checkpoints()
        old_hdf5.convert(path)
        old_hdf5.share_fill_value(path, "adam/m/head")
        self.assert_refused(self.verify(path, code=3), path, "HDF5 crashes", "damaged")
        self.assert_file_refused(path, "HDF5 crashes")
        self.assert_passed_over(path, "HDF5 crashes")

    def test_old_shard_on_which_hdf5_crashes(self):
        shard = self.folder / "data.h5"
        old_hdf5.convert(shard)
        old_hdf5.share_fill_value(shard, "tokens")
        self.assert_refused(self.verify(shard, code=3), shard, "HDF5 crashes", "damaged")
        self.assert_refused(self.train(2, code=3), "data.h5", "HDF5 crashes")

    def test_compressed_shard(self):
        """Megabytes that would become gigabytes."""
        import h5py

        with h5py.File(self.folder / "data.h5", "r+") as file:
            size = len(file["tokens"])
            del file["tokens"]
            file.create_dataset("tokens", (size,), dtype="<u2", chunks=(size,), compression="gzip")
        for job in (self.verify("data.h5", code=3), self.train(2, code=3)):
            self.assert_refused(job, "data.h5: tokens: compressed or filtered", "h5repack -f NONE -l CONTI")

    def test_killed_while_writing(self):
        """All ranks die at random moments of a write: complete checkpoints stay sound and the run goes on."""
        arguments = ["model.vocabulary=20000", "checkpoint.every=1", "train.steps=1000"]
        draw = random.Random(1)
        newest, interrupted = None, 0
        for _ in range(6):
            job = self.start(2, *arguments)
            folder = self.run_folder() / "checkpoints"
            job.until(lambda: restarted_from(job) == newest and len(harness.losses(job)) > 1, "second step")
            job.until(lambda: any(folder.glob("*.partial")), "checkpoint write")
            time.sleep(draw.uniform(0, 0.04))
            job.kill()
            complete = sorted(folder.glob("checkpoint_*.h5"))
            interrupted += any(folder.glob("*.partial"))
            self.verify(*complete)
            newest = int(complete[-1].stem.split("_")[1])
        self.assertGreaterEqual(interrupted, 1)
        job = self.train(2, *arguments, f"stop.step={newest + 1}", code=75)
        self.assertEqual(restarted_from(job), newest)
        self.assertFalse(any(folder.glob("*.partial")))


if __name__ == "__main__":
    small_run.main()
