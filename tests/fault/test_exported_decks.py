"""Small models of all shipped decks, exported: their logits in PyTorch are those of the program."""

import math
import re
import subprocess
import tomllib
from pathlib import Path

from exported_files import ALIVE, exported_model, import_torch, make_alive
from harness import FaultTest, Job, small_run

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
LENGTH = 512  # tokens of a sequence
STEPS = 8
# Beside what begins at zero, what few steps of training leave so small that a mechanism hardly counts.
NOISE = ALIVE | {"embedding": 0.5, "smear_.*": 2, r".*_net\.\d\.out": 0.5,
                 r"block\.\d+\.qkv": 0.3, r"block\.\d+\.attention_out": 0.2}
ROW = 256  # tokens of a row of decks that train on rows
POSITIONS = [0, 1, 2, 63, 127, 128, 200, 255, 300, 383, 450, 511]


def toml_value(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def steps_of(deck):
    """Steps of a small training: every stage has one at least."""
    return max(STEPS, 2 * len(deck.get("stage", [])))


def small(deck, changed):
    """Keys that make the deck's model and training small and leave everything else as it is. `changed`: [model] in the
    test, whose mechanisms read sizes of their own."""
    model, train, window = deck["model"], deck["train"], deck["window"]
    keys = {"run.name": "run", "trace.enabled": False, "head.precision": "fp32",
            "model.vocabulary": 257, "model.head_dim": 8, "model.width": 8 * model["heads"],
            "train.steps": steps_of(deck), "train.sequences": 2, "data.train": ["data.h5"], "data.validation": ["data.h5"],
            "data.end": "wrap", "validation.every": 0, "validation.tokens": 2 * LENGTH, "validation.length": LENGTH,
            "optimizer.muon_momentum_cooldown": 0}
    for key, size, readers in (("bigram_rows", 97, ["bigram_rows"]), ("bigram_sign_rows", 16, ["bigram_sign_rows"]),
                               ("coefficient_width", 8, ["mudd", "gate_nets"]),
                               ("composition_window", 24, ["composed_layers"])):
        if any(changed.get(reader) for reader in readers):
            keys[f"model.{key}"] = size
    if model.get("residual") == "plain":  # what these decks differ in is their size
        heads = min(model["heads"], 5)
        keys |= {"model.heads": heads, "model.width": 8 * heads, "model.layers": min(model["layers"], 6),
                 "model.init_std": 0.02, "train.warmup": 2, "train.cooldown": 0.5}
    if model.get("qk_dims"):
        keys["model.qk_dims"] = [8 * width // model["head_dim"] for width in model["qk_dims"]]
    if "momentum_mix_from" in deck.get("optimizer", {}):
        keys["optimizer.momentum_mix_from"] = 4
    keys |= {f"group.{i}.period_from": 4 for i, group in enumerate(deck.get("group", [])) if "period_from" in group}
    keys |= {f"average.{i}.from_last": 4 for i in range(len(deck.get("average", [])))}
    if train.get("extension_steps"):
        keys["train.extension_steps"] = 2
    if train.get("untie_step", 0) > 0:
        keys["train.untie_step"] = steps_of(deck) // 2 - 1 | 1  # Adam updates in every other step
    if deck.get("data", {}).get("packing") == "rows":
        return keys | {"train.length": LENGTH, "data.row_length": ROW, "window.first": ROW, "window.last": ROW}
    if "stage" not in deck:
        # Long enough windows for the sequence, but not for all of it.
        return keys | {"train.length": LENGTH, "window.first": 128, "window.last": 256 + window["quantum"] % 128}
    for i in range(len(deck["stage"])):
        keys |= {f"stage.{i}.length": 256 + 128 * (i > 1), f"stage.{i}.longest_document": 0,
                 f"stage.{i}.short_window": 16 * (i + 1), f"stage.{i}.long_window": 40 * (i + 1), f"stage.{i}.prefix": 0,
                 f"stage.{i}.prefix_end": 0, f"stage.{i}.attention_document": 0}
        if deck["stage"][i].get("candidates"):
            keys[f"stage.{i}.candidates"] = 256
    return keys | {"data.packing": "stream", "data.prefix_table": "", "validation.last_long_window": 80 + 40 * len(deck["stage"])}


class ExportedDecks(FaultTest):
    def command(self, *arguments):
        job = Job(self.folder, None, arguments)
        self.assertEqual(job.wait(), 0, job.text())
        return job

    def logits(self, checkpoint, tokens):
        """Of the program [positions, vocabulary]."""
        program = Path(small_run.PROGRAM).parent / "nanorun_logits"
        job = subprocess.run([program, checkpoint, "256", *map(str, POSITIONS)], input=" ".join(map(str, tokens)),
                             cwd=self.folder, text=True, capture_output=True, timeout=120)
        self.assertEqual(job.returncode, 0, job.stderr)
        return [[float(logit) for logit in line.split()] for line in job.stdout.splitlines()]

    def check(self, name, *further, **model):
        """Trains the deck with some keys of its [model], and others by `further`, changed, exports, makes all terms alive, and compares."""
        torch = import_torch(self)
        text = (INPUTS / f"{name}.toml").read_text()
        (self.folder / "deck.toml").write_text(text)
        deck = tomllib.loads(text)
        keys = small(deck, deck["model"] | model) | {f"model.{key}": value for key, value in model.items()}
        if not model.get("tied_head", True):
            keys["train.untie_step"] = 0
        self.train(1, "checkpoint.restart=none", *(f"{key}={toml_value(value)}" for key, value in keys.items()), *further)
        self.command("export", self.checkpoint(steps_of(deck)), "model", "--force")
        directory = self.folder / "model"
        weights = make_alive(torch, directory / "model.safetensors", NOISE)
        self.command("import", "model", "alive.h5", "--force")

        tokens = [256] + [byte for i in range(20) for byte in (*(self.folder / f"{i:02}.txt").read_bytes(), 256)]
        at = tokens.index(256, 1) - LENGTH // 2  # a document ends in the middle of the sequence
        sequence = torch.tensor([tokens[at:at + LENGTH]])
        expected = torch.tensor(self.logits("alive.h5", sequence[0].tolist()))
        exported = exported_model(directory, weights)
        with torch.no_grad():
            given = exported(sequence).logits[0, POSITIONS]
            torch.testing.assert_close(given, expected, rtol=1e-5, atol=2e-5)
            self.require_all_alive(torch, exported, sequence)
            rows = torch.tensor([tokens[i:i + LENGTH + 1] for i in (0, LENGTH)])
            losses = torch.nn.functional.cross_entropy(exported.all_logits(rows[:, :-1]).flatten(0, 1),
                                                       rows[:, 1:].flatten())
        job = self.command("eval", "alive.h5", "--data", "data.h5", "--tokens", 2 * LENGTH, "--length", LENGTH)
        loss = next(float(line.split()[1]) for line in job.output if line.startswith("loss "))
        self.assertAlmostEqual(losses.item(), loss, delta=1e-5 * math.ceil(loss))

    def require_all_alive(self, torch, exported, sequence):
        """The tensors of a kind change the logits by far more than their tolerance where they are zero."""
        before, saved = exported(sequence).logits[0, POSITIONS], exported.state_dict()
        saved = {name: tensor.clone() for name, tensor in saved.items()}
        for kind in sorted({re.sub(r"^block\.\d+", "block", name) for name in saved}):
            for name, tensor in exported.named_parameters():
                if re.sub(r"^block\.\d+", "block", name) == kind:
                    tensor.zero_()
            difference = (exported(sequence).logits[0, POSITIONS] - before).abs().max().item()
            self.assertGreater(difference, 1e-3, kind)
            exported.load_state_dict(saved)

    def check_all(self, residual):
        """Of the decks with this kind of residual stream."""
        paths = sorted((*INPUTS.glob("*.toml"), *INPUTS.glob("gpt2/*.toml")))
        decks = {str(path.relative_to(INPUTS).with_suffix("")): tomllib.loads(path.read_text()) for path in paths}
        chosen = [name for name, deck in decks.items() if deck.get("model", {}).get("residual", "unet") == residual]
        self.assertTrue(chosen)
        for name in chosen:
            with self.subTest(name):
                self.check(name)

    def test_unet(self):
        self.check_all("unet")

    def test_scaled(self):
        self.check_all("scaled")

    def test_before(self):
        self.check_all("before")

    def test_bigrams_and_paired_heads_before_attention(self):
        self.check("../tests/golden/medium_bigram")

    def test_plain(self):
        self.check_all("plain")

    def test_plain_models_that_no_deck_has(self):
        rows = "window.first=128", "window.last=128", "window.layers=SLLSLL"
        with self.subTest("nothing beside attention"):
            self.check("gpt2/124m", norm_gains=False, biases=False, tied_head=False, softcap_kind="isru")
        with self.subTest("norms and a bias of the head, layers without attention, documents"):
            self.check("gpt2/350m", *rows, "data.packing=stream", embedding_norm=True, head_bias=True, qk_norm=True,
                       layers_without_attention=[2], softcap_kind="tanh", rotary="half_truncated")

    def test_models_that_no_deck_has(self):
        with self.subTest("narrow embeddings of bigrams"):
            self.check("record81", bigram_columns=20, bigram_sign_rows=16, mudd=False, xsa_layers=[1, 4, 7])
        with self.subTest("learned scalars in place of gate nets, gates on paired layers"):
            self.check("record89", gate_nets=False, composed_layers=[], skip_gate=True, gated_layers=[0, 3, 9, 10],
                       mudd_scale=0.2, mudd_value_scale=0.7, value_layers_gated_by_input=[8])
        with self.subTest("gate nets, gates on paired layers"):
            self.check("record89", gated_layers=[0, 2, 3, 9, 10], bigram_columns=12, softcap_kind="tanh", rotary="full",
                       key_offset_layers=[])
        with self.subTest("no value embeddings, queries and keys without norm"):
            self.check("record20", value_path="none", rotary="full", attention_scale=0, qk_norm=False)
        with self.subTest("little beside attention"):
            self.check("record81", value_path="none", value_layers=[], value_layers_gated_by_input=[], mudd=False,
                       attention_source=-1, skip_gate=False, bigram_rows=0, smear=False, tied_head=False)


if __name__ == "__main__":
    small_run.main()
