"""Exported models in Hugging Face's transformers, which few machines have: small models of records 21, 81 and 89 have
nanorun's loss there, write its text, and their tokenizer gives its ids. They fit GPUs too. Prints a line for each."""

import os
import re
import struct
import tempfile
import unittest
from pathlib import Path

from harness import FaultTest, Job, small_run

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
WORDS = "the of and to in is that it was for on are as with his they at be this from have or by one had not".split()
STEPS = 60
LENGTH = 1024  # tokens of a sequence
WRITTEN = 60  # tokens
SIZES = {"bf16": ("model.width=256", "model.heads=2", "model.head_dim=128"),  # what kernels of GPUs take
         "fp32": ("model.width=64", "model.heads=2", "model.head_dim=32")}
COMMON = ("run.name=run", "trace.enabled=false", "model.vocabulary=512", f"train.steps={STEPS}",
          "train.sequences=2", 'data.train=["data.h5"]', 'data.validation=["data.h5"]', "data.end=wrap",
          "validation.every=0", f"validation.tokens={4 * LENGTH}", f"validation.length={LENGTH}")
UNET = (f"train.length={LENGTH}", "window.first=256", "window.last=512")
STAGED = ("model.bigram_rows=997", "model.coefficient_width=16", "train.extension_steps=2", "data.packing=stream",
          "optimizer.muon_momentum_steps=5", "optimizer.muon_momentum_cooldown=4", f"train.untie_step={STEPS // 2 - 1}",
          "validation.last_long_window=900",
          *(f"stage.{i}.{key}={value}" for i in range(4) for key, value in (
              ("length", 512 * (1 + (i > 1))), ("longest_document", 0), ("short_window", 64 * (i + 1)),
              ("long_window", 160 * (i + 1)))))
DECKS = {"record21": UNET, "record81": STAGED,
         "record89": (*STAGED, "train.mlp_precision=working", "model.bigram_sign_rows=64", 'data.prefix_table=""',
                      *(f"stage.{i}.{key}=0" for i in (0, 1) for key in ("prefix", "prefix_end")))}


def merges():
    """Of the words, without and with a blank before them: each as the shortest beginnings that are there."""
    lines = []
    for word in WORDS:
        for spelling in (word, "Ġ" + word):
            for size in range(1, len(spelling)):
                line = f"{spelling[:size]} {spelling[size]}"
                if line not in lines:
                    lines.append(line)
    return "#version: 0.2\n" + "".join(line + "\n" for line in lines)


class Transformers(FaultTest):
    def prepare(self, folder):
        """Texts of words in a certain order, and their shard through a table of merges."""
        folder.mkdir(exist_ok=True)
        (folder / "vocab.bpe").write_text(merges())
        texts = []
        for i in range(40):
            words = [WORDS[(k * k + i * k // 7) % len(WORDS)] for k in range(900)]
            texts.append(f"{i:02}.txt")
            (folder / texts[-1]).write_text(" ".join(words) + ".\n")
        job = Job(folder, None, ["shard", "data.h5", *texts, "--tokenizer", "vocab.bpe"])
        self.assertEqual(job.wait(), 0, job.text())

    @classmethod
    def setUpClass(cls):
        # It keeps copies of the models' Python files.
        home = tempfile.TemporaryDirectory(prefix="nanorun-transformers-")
        cls.addClassCleanup(home.cleanup)
        os.environ |= {"HF_HOME": home.name, "HF_MODULES_CACHE": f"{home.name}/modules", "HF_HUB_OFFLINE": "1"}
        try:
            import transformers  # first, since it is soon known to be absent
            import torch
        except ImportError:
            raise unittest.SkipTest("needs PyTorch and transformers") from None
        cls.torch, cls.transformers = torch, transformers

    def command(self, *arguments):
        job = Job(self.folder, None, arguments)
        self.assertEqual(job.wait(), 0, job.text())
        return "".join(job.output)

    def ids(self, text):
        """Of a text by the program, without the token that begins a document."""
        (self.folder / "text.txt").write_text(text)
        self.command("shard", "text.h5", "text.txt", "--tokenizer", "vocab.bpe", "--force")
        self.command("export", "text.h5", "text.bin", "--force")
        content = (self.folder / "text.bin").read_bytes()[1024:]
        return [*struct.unpack(f"<{len(content) // 2}H", content)][1:]

    def export(self, name):
        """Trains the deck made small; returns the checkpoint and the directory of the exported model."""
        (self.folder / "deck.toml").write_text((INPUTS / f"{name}.toml").read_text())
        precision = "bf16" if "gpus" in small_run.build_facts() else "fp32"
        self.train(None, *COMMON, *DECKS[name], *SIZES[precision], f"head.precision={precision}")
        checkpoint = self.checkpoint(STEPS)
        directory = self.folder / f"exported_{name}"
        self.command("export", checkpoint, directory, "--tokenizer", "vocab.bpe")
        return checkpoint, str(directory)

    def evaluate(self, checkpoint):
        """The loss of the first sequences of the shard."""
        said = self.command("eval", checkpoint, "--data", "data.h5", "--tokens", 4 * LENGTH, "--length", LENGTH)
        return float(re.search(r"^loss +(\S+)", said, re.M)[1])

    def load(self, directory):
        return self.transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()

    def check(self, name):
        checkpoint, directory = self.export(name)
        model = self.load(directory)
        tokenizer = self.transformers.AutoTokenizer.from_pretrained(directory)
        text = (self.folder / "00.txt").read_text()[:2000] + " \n\tÄ€x the_of"
        ids = self.ids(text)
        same_ids = (tokenizer(text)["input_ids"], tokenizer.decode(ids)) == (ids, text)
        loss = self.loss(model)
        expected = self.evaluate(checkpoint)
        written, sampled, margin = self.write(model, tokenizer, checkpoint)
        print(f"{name}: {self.command('--version').strip()}, transformers {self.transformers.__version__}, PyTorch "
              f"{self.torch.__version__}: loss {loss:.6f}, of nanorun {expected:.6f}, difference {loss - expected:.1e}; "
              f"ids of {len(text)} characters {'same' if same_ids else 'differ'}; text of {WRITTEN} tokens "
              f"{'same' if written == sampled else 'differs'} (its two likeliest tokens are at least {margin:.2g} "
              f"apart): {written!r}", flush=True)
        self.assertTrue(same_ids)
        self.assertAlmostEqual(loss, expected, delta=1e-3)
        self.assertEqual(written, sampled)

    def loss(self, model):
        """Of the sequences of evaluate(), by transformers."""
        self.command("export", "data.h5", "data.bin")
        content = (self.folder / "data.bin").read_bytes()[1024:]
        tokens = self.torch.tensor(struct.unpack_from(f"<{4 * LENGTH + 1}H", content))
        losses = []
        with self.torch.no_grad():
            for at in range(0, 4 * LENGTH, LENGTH):
                row = tokens[None, at:at + LENGTH + 1]
                # The loss that the model itself gives, which sees one token more than `nanorun eval` does.
                own = model(row, labels=row).loss.item()
                logits = model.all_logits(row[:, :-1]).float()
                losses.append(self.torch.nn.functional.cross_entropy(logits[0], row[0, 1:]).item())
                self.assertAlmostEqual(own, losses[-1], 4)
        return sum(losses) / len(losses)

    def write(self, model, tokenizer, checkpoint):
        """The likeliest continuation of a prompt by transformers and by `nanorun sample`, and by how much the likeliest
        two tokens of it differ at least."""
        prompt = "the of and"
        ids = self.torch.tensor([[tokenizer.eos_token_id, *tokenizer(prompt)["input_ids"]]])
        with self.torch.no_grad():
            out = model.generate(ids, max_new_tokens=WRITTEN, do_sample=False, pad_token_id=tokenizer.eos_token_id)
            best = model(out).logits[0, ids.shape[1] - 1:-1].float().topk(2).values
        sampled = self.command("sample", checkpoint, "--tokenizer", "vocab.bpe", "--prompt", prompt, "--tokens", WRITTEN,
                               "--temperature", 0)
        written = tokenizer.decode(out[0, 1:], skip_special_tokens=True)
        return written.removesuffix("\n"), sampled.removesuffix("\n"), (best[:, 0] - best[:, 1]).min().item()

    def test_saved_anew(self):
        """What transformers writes, nanorun imports."""
        _, directory = self.export("record81")
        self.load(directory).save_pretrained(self.folder / "anew")
        # The weights alone: how a trained checkpoint's are narrowed for GPUs (optimizer.muon_truncates) is not exported.
        self.command("import", directory, "exported.h5")
        self.command("import", "anew", "anew.h5")
        self.assertEqual(self.evaluate("anew.h5"), self.evaluate("exported.h5"))

    def test_record21(self):
        self.check("record21")

    def test_record81(self):
        self.check("record81")

    def test_record89(self):
        self.check("record89")


if __name__ == "__main__":
    small_run.main()
