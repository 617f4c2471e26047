"""The exit codes that the help of each command lists: those with which it ends, and no others."""

import re
import shutil
import subprocess

from harness import FaultTest, Job, small_run

COMMANDS = ("train", "shard", "export", "import", "verify", "info", "eval", "sample", "keys")
# Defects of the program, and ranks that die, are for other tests.
ELSEWHERE = {1, 6}
NAN = b"\0\0\xc0\x7f"


def listed(command):
    """What the help of a command says of each exit code."""
    said = subprocess.run([small_run.PROGRAM, command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {int(code): what for code, what in re.findall(r"^  (\d+) +(\S.*)$", said.partition("\nExit codes")[2], re.M)}


class ExitCodes(FaultTest):
    def command(self, code, *arguments, full=False):
        """Runs a command that ends with the code, for one reason; `full`: nobody can write standard output."""
        streams = {}
        if full:
            streams["stdout"] = open("/dev/full", "w")
            self.addCleanup(streams["stdout"].close)
        job = Job(self.folder, None, arguments, **streams)
        self.assertEqual(job.wait(), code, (arguments, job.text()))
        if code not in (0, 75):  # it ends in order, without MPI's abort and its words
            self.assertNotRegex(job.text(), "rank 0|MPI_ABORT", arguments)
        self.seen.setdefault(arguments[0], set()).add(code)

    def train(self, code, *overrides, **options):
        self.command(code, "train", "deck.toml", "trace.enabled=false", "train.steps=2", *overrides, **options)

    def test_help_lists_them(self):
        self.seen = {}
        (self.folder / "junk.h5").write_text("junk")
        self.end_train()
        self.checkpoint_path = self.checkpoint(2)
        self.command(0, "export", self.checkpoint_path, "model")
        weights = (self.folder / "model" / "model.safetensors").read_bytes()
        content = self.checkpoint_path.read_bytes()
        values = next(part for part in (weights[i:i + 16] for i in range(len(weights) // 2, len(weights), 16))
                      if content.count(part) == 1)
        self.flipped = self.folder / "flipped.h5"
        self.flipped.write_bytes(content.replace(values, bytes([values[0] ^ 1]) + values[1:]))
        self.end_shard()
        self.end_export_and_import()
        self.end_verify()
        self.end_eval_and_sample()
        for command in ("info", "keys"):
            self.command(0, command)
            self.command(2, command, "--foo")
            self.command(7, command, full=True)
        self.command(2, "keys", "no such key")
        for command in COMMANDS:
            codes = listed(command)
            self.assertEqual(set(codes) - ELSEWHERE, self.seen[command], command)
            self.assertIn(1, codes, command)
            self.assertEqual(6 in codes, command in ("train", "shard", "verify", "eval"), command)

    def end_train(self):
        self.train(0)
        self.train(0, "run.name=planned", "--dry-run")
        self.train(2, "x.y=1")
        self.train(3, "data.train=junk.h5", "run.name=b")
        self.train(4, "checkpoint.weights=junk.h5", "run.name=c")
        self.train(5, "model.init_scale=1e30", "model.zero_outputs=false", "validation.tokens=0", "run.name=d")
        self.train(7, "run.outputs=junk.h5")
        self.train(7, "--dry-run", full=True)
        self.train(75, "stop.step=1", "run.name=e")

    def end_shard(self):
        self.command(0, "shard", "a", "00.txt", "--text")
        self.command(2, "shard", "b")
        self.command(2, "shard", "b", "--text", "--list", "absent")
        self.command(3, "shard", "b", "absent.txt", "--text")
        self.command(3, "shard", "b", "00.txt", "--tokenizer", "junk.h5")
        self.command(7, "shard", "a", "00.txt", "--text")
        self.command(7, "shard", "c", "00.txt", "--text", full=True)

    def end_export_and_import(self):
        self.command(2, "export", "data.h5", "data.bin", "--bf16")
        for file in ("junk.h5", "absent.h5"):
            self.command(3, "export", file, "other")
        self.command(3, "export", self.checkpoint_path, "other", "--tokenizer", "junk.h5")
        self.command(4, "export", self.flipped, "other")
        self.command(7, "export", self.checkpoint_path, "model")
        self.command(0, "import", "model", "back.h5")
        self.command(2, "import", "model")
        self.command(3, "import", "absent", "other.h5")
        self.command(7, "import", "model", "back.h5")
        self.command(7, "import", "model", "absent/back.h5")

    def end_verify(self):
        self.command(0, "verify", "data.h5", self.checkpoint_path)
        self.command(2, "verify")
        self.command(3, "verify", "junk.h5", self.flipped)
        self.command(4, "verify", self.flipped, "junk.h5")
        self.command(7, "verify", "data.h5", full=True)

    def end_eval_and_sample(self):
        model = self.folder / "model"
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-1024 * len(NAN):] = 1024 * NAN
        (model / "model.safetensors").write_bytes(weights)
        self.command(0, "import", "model", "nan.h5")
        for command in ("eval", "sample"):
            self.command(0, command, self.checkpoint_path)
            self.command(2, command, self.checkpoint_path, "--tokens", "zero")
            self.command(3, command, self.checkpoint_path, "--tokenizer", "junk.h5")
            for file in ("junk.h5", "absent.h5", "data.h5", self.flipped):
                self.command(4, command, file)
            given = ("--data", "data.h5", "--tokens", 256) if command == "eval" else ()
            self.command(5, command, "nan.h5", *given)
            self.command(7, command, self.checkpoint_path, full=True)
        self.command(3, "eval", self.checkpoint_path, "--data", "absent.h5")
        self.command(3, "eval", self.checkpoint_path, "--hellaswag", "absent.bin")

    def test_full_disk_of_an_import(self):
        """The checkpoint is the output here, not what is read."""
        self.seen = {}
        self.train(0)
        self.command(0, "export", self.checkpoint(2), "model")
        small = self.folder / "small"
        small.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", small]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
            self.skipTest("needs the right to mount")
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        self.command(7, "import", "model", "small/back.h5")
        self.assertEqual(list(small.iterdir()), [])


if __name__ == "__main__":
    small_run.main()
