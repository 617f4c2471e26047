"""A checkpoint's model as a directory for PyTorch, and back."""

import ast
import importlib
import json
import os
import re
import shutil
import struct
import sys
from pathlib import Path

from exported_files import exported_model, import_torch, read_header, tensors, write_header
from harness import FaultTest, Job, small_run

SOURCES = Path(__file__).resolve().parents[2] / "src" / "commands" / "pytorch"
FILES = ["config.json", "configuration_nanorun.py", "generation_config.json", "model.safetensors", "modeling_nanorun.py"]


def imported_packages(text):
    """The packages that a Python file asks for, as three generations of transformers find them."""
    def by_lines(code):
        found = re.findall(r"^\s*import\s+(\S+)\s*$", code, re.M) + re.findall(r"^\s*from\s+(\S+)\s+import", code, re.M)
        return {name.split(".")[0] for name in found if not name.startswith(".")}

    def by_syntax(node):
        if isinstance(node, ast.Try):
            return set()
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
        return {name.split(".")[0] for name in names}.union(*map(by_syntax, ast.iter_child_nodes(node)))

    return {"every line": by_lines(text),
            "lines outside of try": by_lines(re.sub(r"\s*try\s*:.*?except.*?:", "", text, flags=re.S)),
            "syntax outside of try": by_syntax(ast.parse(text))}


class ExportedModel(FaultTest):
    def command(self, *arguments, ranks=None, code=0):
        job = Job(self.folder, ranks, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def exported(self, *overrides):
        """The last checkpoint of a short run is exported to model/."""
        self.train(2, "trace.enabled=false", *overrides)
        self.command("export", self.checkpoint(12), "model", ranks=2)
        return self.folder / "model"

    def test_exported_model_comes_back_bit_for_bit(self):
        """Bit for bit; the window is the one that training has ended with."""
        model = self.exported("window.last=200", "window.layers=LSSL")
        self.assertEqual(sorted(os.listdir(model)), FILES)
        self.command("import", "model", "back.h5")
        self.verify("back.h5")
        self.assertIn(b'import model back.h5","started":"', (self.folder / "back.h5").read_bytes())
        self.command("export", "back.h5", "again")
        for name in FILES:
            self.assertEqual((self.folder / "again" / name).read_bytes(), (model / name).read_bytes(), name)
        job = self.command("eval", "back.h5", "--data", "data.h5", "--tokens", 1024, "--length", 256)
        self.assertIn(f"loss           {self.summary()['final_val_loss']} nats per token\n", job.output)
        job = self.train(2, "run.name=begun", "checkpoint.weights=back.h5", "train.steps=1", "window.layers=LSSL")
        self.assertIn("begins with the weights of back.h5, step 0\n", job.output)

    def test_tokenizer(self):
        """Tables of merges and ranks come out as vocab.json and merges.txt, a tokenizer.json as it is."""
        merges = "#version: 0.2\na b\nĠ ab\n"
        (self.folder / "vocab.bpe").write_text(merges)
        self.command("shard", "bpe", "00.txt", "01.txt", "--tokenizer", "vocab.bpe")
        self.train(2, "trace.enabled=false", "model.vocabulary=300", 'data.train=["bpe.h5"]', "train.steps=2",
                   "validation.tokens=0")
        checkpoint = self.checkpoint(2)
        self.command("export", checkpoint, "model", "--tokenizer", "vocab.bpe")
        model = self.folder / "model"
        self.assertEqual(sorted(os.listdir(model)),
                         sorted([*FILES, "merges.txt", "tokenizer_config.json", "vocab.json"]))
        self.assertEqual((model / "merges.txt").read_text(), merges)
        vocabulary = json.loads((model / "vocab.json").read_text())
        self.assertEqual(sorted(vocabulary.values()), list(range(259)))
        self.assertEqual([vocabulary[spelling] for spelling in ("!", "ab", "Ġab", "<|endoftext|>")], [0, 256, 257, 258])
        settings = json.loads((model / "tokenizer_config.json").read_text())
        self.assertEqual([settings[key] for key in ("tokenizer_class", "bos_token", "eos_token", "model_max_length")],
                         ["GPT2Tokenizer", "<|endoftext|>", "<|endoftext|>", 256])
        config = json.loads((model / "config.json").read_text())
        self.assertEqual((config["bos_token_id"], config["nanorun_tokenizer"]["name"]), (258, "bpe-259"))

        added = [{"id": 258, "content": "<|endoftext|>", "special": True}]
        table = {"added_tokens": added, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", "Ġ ab"]}}
        (self.folder / "table.json").write_text(json.dumps(table))
        self.command("export", checkpoint, "fast", "--tokenizer", "table.json")
        fast = self.folder / "fast"
        self.assertEqual((fast / "tokenizer.json").read_bytes(), (self.folder / "table.json").read_bytes())
        settings = json.loads((fast / "tokenizer_config.json").read_text())
        self.assertEqual(settings["tokenizer_class"], "PreTrainedTokenizerFast")
        self.assertFalse((fast / "vocab.json").exists())

        drawn = [self.command("sample", checkpoint, "--tokens", 20, "--tokenizer", name).output
                 for name in ("vocab.bpe", "model/merges.txt", "fast/tokenizer.json")]
        self.assertEqual(drawn, 3 * drawn[:1])
        job = self.command("export", checkpoint, "fast", "--tokenizer", "vocab.bpe", "--force", code=7)
        self.assert_refused(job, "fast/tokenizer.json: transformers would read it in place of vocab.json")
        job = self.command("export", checkpoint, "b", "--tokenizer", "vocab.bpe", "--end-of-text", 5, code=2)
        self.assert_refused(job, "--end-of-text 5: the end-of-text token of vocab.bpe is 258")
        job = self.command("export", "bpe.h5", "b", "--tokenizer", "vocab.bpe", code=2)
        self.assert_refused(job, "bpe.h5: not a checkpoint")

    def test_bf16(self):
        """Half the bytes; the scalars stay as they are. Rounding again changes nothing."""
        self.exported()
        self.command("export", self.checkpoint(12), "half", "--bf16")
        header, values = read_header(self.folder / "half" / "model.safetensors")
        self.assertEqual(header["head"]["dtype"], "BF16")
        self.assertEqual(header["skip.0"]["dtype"], "F32")
        self.assertLess(2 * len(values), len(read_header(self.folder / "model" / "model.safetensors")[1]) + 200)
        self.command("import", "half", "half.h5")
        self.command("export", "half.h5", "again", "--bf16")
        self.assertEqual((self.folder / "again/model.safetensors").read_bytes(),
                         (self.folder / "half/model.safetensors").read_bytes())

    def test_weights_that_are_no_numbers(self):
        """Those of a run that diverged: both commands warn and go on, and a NaN stays one when it is rounded."""
        model = self.exported()
        header, values = read_header(model / "model.safetensors")
        for change, said in (({"head": 0x7fffffff}, "head holds NaN or infinity"),
                             ({"head": 0xffffffff, "embedding": 0x7f800000}, "and 1 more tensor hold NaN")):
            changed = bytearray(values)
            for name, bits in change.items():
                struct.pack_into("<I", changed, header[name]["data_offsets"][0], bits)
            write_header(model / "model.safetensors", header, bytes(changed))
            job = self.command("import", "model", "back.h5", "--force")
            self.assertRegex(job.text(), f"warning: model/model.safetensors: .*{said}.*\n")
            self.verify("back.h5")
            job = self.command("export", "back.h5", "again", "--bf16", "--force")
            self.assertRegex(job.text(), f"warning: back.h5: .*{said}.*\n")
            rounded, halves = read_header(self.folder / "again" / "model.safetensors")
            half, = struct.unpack_from("<H", halves, rounded["head"]["data_offsets"][0])
            self.assertGreater(half & 0x7fff, 0x7f80)

    def test_dot_in_the_name_of_the_directory(self):
        self.train(2, "trace.enabled=false", "train.steps=1")
        for name, warned in (("model.v1", True), ("model.v1/", True), ("dir.d/model", False), ("model", False)):
            job = self.command("export", self.checkpoint(1), name, "--force")
            self.assertEqual([f"nanorun: warning: {name}: some versions of transformers" in line
                              for line in job.messages()], [True] * warned, name)

    def test_imports_of_the_python_files(self):
        """No version of transformers takes one of the files for a package that it has to ask for."""
        model = self.exported()
        plain, scaled, before = (SOURCES / f"modeling_nanorun_{name}.py" for name in ("plain", "scaled", "before"))
        for path in (model / "configuration_nanorun.py", model / "modeling_nanorun.py", plain, scaled, before):
            text = path.read_text()
            self.assertEqual(text, (SOURCES / path.name).read_text())
            for version, packages in imported_packages(text).items():
                self.assertEqual(packages - {"torch", "transformers"} - sys.stdlib_module_names, set(),
                                 f"{path.name}, {version}")
        # These files it copies along.
        relative = r"^\s*from\s+\.(\S+)\s+import"
        self.assertEqual(re.findall(relative, (model / "modeling_nanorun.py").read_text(), re.M),
                         ["configuration_nanorun"])
        for path in (plain, scaled):
            self.assertEqual(re.findall(relative, path.read_text(), re.M), ["modeling_nanorun"])
        self.assertEqual(re.findall(relative, before.read_text(), re.M),
                         ["modeling_nanorun", "modeling_nanorun_scaled"])

    def test_part_of_a_package(self):
        """As transformers imports the files, and in place of it."""
        torch = import_torch(self)
        model = self.exported()
        weights = tensors(torch, model / "model.safetensors")
        (self.folder / "package").mkdir()
        shutil.copytree(model, self.folder / "package" / "model")
        sys.path.insert(0, str(self.folder))
        try:
            module = importlib.import_module("package.model.modeling_nanorun")
        finally:
            sys.path.remove(str(self.folder))
        self.assertEqual(module.NanorunConfig.__module__, "package.model.configuration_nanorun")
        self.assertNotIn("configuration_nanorun", sys.modules)
        config = module.NanorunConfig(**json.loads((model / "config.json").read_text()))
        packaged = module.NanorunForCausalLM(config)
        packaged.load_state_dict(weights)
        tokens = torch.tensor([[256, 97, 98, 99]])
        with torch.no_grad():
            self.assertTrue(torch.equal(packaged(tokens).logits, exported_model(model, weights)(tokens).logits))

    def test_safetensors_are_no_checkpoints(self):
        """Whoever gives them where a checkpoint belongs is told how to make one."""
        model = self.exported()
        said = "make one of the model in its directory with: nanorun import DIRECTORY CHECKPOINT"
        file = "model/model.safetensors"
        begun = ["deck.toml", "run.name=begun"]
        for arguments in (["eval", file], ["sample", file], ["train", *begun, f"checkpoint.weights={file}"],
                          ["train", *begun, f"checkpoint.restart={file}"]):
            self.assert_refused(self.command(*arguments, code=4), f"{file}: a safetensors file, not a checkpoint", said)
        for arguments in (["export", file, "other"], ["verify", file]):
            self.assert_refused(self.command(*arguments, code=3), f"{file}: a safetensors file", said)
        for key in ("weights", "restart"):
            job = self.command("train", *begun, "--dry-run", f"checkpoint.{key}={file}")
            self.assertIn(f"warning: {file}: a safetensors file, not a checkpoint; {said}\n", job.output)
        job = self.command("eval", model.name, code=4)
        self.assert_refused(job, "model: a directory, not a checkpoint", "nanorun import DIRECTORY CHECKPOINT")
        self.assert_refused(self.command("import", file, "back.h5", code=3), f"{file}: a file; name the directory")

    def sampled(self, model, change, *arguments, code=0):
        """What the model samples when a function has changed its weights, lists of numbers by name."""
        header, values = read_header(model / "model.safetensors")
        weights = {name: list(memoryview(values)[slice(*entry["data_offsets"])].cast("f"))
                   for name, entry in header.items() if name != "__metadata__"}
        change(weights)
        order = sorted(weights, key=lambda name: header[name]["data_offsets"])
        write_header(model / "model.safetensors", header,
                     b"".join(struct.pack(f"<{len(weights[name])}f", *weights[name]) for name in order))
        self.command("import", "model", "changed.h5", "--force")
        return self.command("sample", "changed.h5", *arguments, code=code)

    def test_sample_ends_with_a_whole_character(self):
        """A model that writes nothing but the three bytes of the euro sign."""
        model = self.exported()
        euro = "€".encode()

        def change(weights):
            for name, values in weights.items():
                values[:] = [1.0, 0.0] if name.endswith("residual_mix") else [0.0] * len(values)
            # The embedding of a byte has one number, in the column of the byte that follows it.
            for column, (byte, following) in enumerate(zip((*euro[-1:], *euro[:-1]), euro)):
                weights["embedding"][32 * byte + column] = 1.0
                weights["head"][32 * following + column] = 9.0
            weights["embedding"][32 * 256] = 1.0

        for tokens, text in ((2, "\n"), (3, "€\n"), (4, "€\n"), (5, "€\n"), (6, "€€\n")):
            job = self.sampled(model, change, "--tokens", tokens, "--temperature", 0)
            self.assertEqual("".join(job.output), text)
        begun = os.fsdecode(b"a" + euro[:1])  # the prompt ends within a character, too
        for tokens, text in ((1, "a\n"), (2, "a€\n"), (3, "a€\n")):
            job = self.sampled(model, change, "--prompt", begun, "--tokens", tokens, "--temperature", 0)
            self.assertEqual("".join(job.output), text)

    def test_sample_of_no_numbers(self):
        model = self.exported()

        def change(weights):
            weights["block.0.mlp_out"][0] = float("nan")

        job = self.sampled(model, change, "--prompt", "abc", code=5)
        self.assert_refused(job, "changed.h5: its model gives NaN in place of logits")

    def test_export_refuses(self):
        model = self.exported()
        for token in (257, 65535):
            job = self.command("export", self.checkpoint(12), "other", "--end-of-text", token, code=2)
            self.assert_refused(job, "has a vocabulary of 257", f"--end-of-text must be below that, not {token}")
        (model / "notes.txt").write_text("mine")
        job = self.command("export", self.checkpoint(12), "model", code=7)
        self.assert_refused(job, "model: holds config.json already", "--force")
        self.command("export", self.checkpoint(12), "model", "--force")
        self.assertEqual((model / "notes.txt").read_text(), "mine")
        job = self.command("export", "data.h5", "data.bin", "--bf16", code=2)
        self.assert_refused(job, "data.h5: not a checkpoint")
        self.command("export", "data.h5", "data.bin")
        self.assert_refused(self.command("import", "model", "data.h5", code=7), "data.h5: exists; name another file")

    def test_inputs_of_an_import_are_no_outputs(self):
        model = self.exported()
        for name in ("model.safetensors", "config.json"):
            before = (model / name).read_bytes()
            job = self.command("import", "model", f"model/{name}", "--force", code=7)
            self.assert_refused(job, f"model/{name}: is an input and cannot be written")
            self.assertEqual((model / name).read_bytes(), before)

    def test_one_command_at_a_time(self):
        model = self.exported()
        (model / "model.safetensors.partial").write_text("of another command")
        before = {name: (model / name).read_bytes() for name in FILES}
        job = self.command("export", self.checkpoint(12), "model", "--force", "--bf16", code=7)
        self.assert_refused(job, "model/model.safetensors.partial: ")
        self.assertEqual({name: (model / name).read_bytes() for name in FILES}, before)
        (model / "model.safetensors.partial").unlink()
        for name in ("config.json.partial", "modeling_nanorun.py.partial"):
            (model / name).write_text("mine")
            job = self.command("export", self.checkpoint(12), "model", "--force", "--bf16", code=7)
            self.assert_refused(job, f"model/{name}: exists")
            self.assertEqual((model / name).read_text(), "mine")
            self.assertEqual({name: (model / name).read_bytes() for name in FILES}, before)
            self.assertFalse((model / "model.safetensors.partial").exists())
            (model / name).unlink()
        (self.folder / "back.h5.partial").write_text("of another command")
        job = self.command("import", "model", "back.h5", code=7)
        self.assert_refused(job, "back.h5.partial: ")

    def refuse_import(self, *said):
        job = self.command("import", "model", "back.h5", code=3)
        self.assert_refused(job, *said)
        self.assertEqual(list(self.folder.glob("back.h5*")), [])
        return job

    def test_import_refuses_weights(self):
        """Files of weights that are damaged, of another kind, or of other tensors than config.json describes."""
        model = self.exported()
        file = model / "model.safetensors"
        good = file.read_bytes()
        header, values = read_header(file)
        for content, said in ((b"", "no safetensors"), (good[:-1], "bytes of values"),
                              (good + b"\0", "bytes of values"), (good[:40], "cut off"),
                              (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
                              (struct.pack("<Q", 2**63) + good[8:], "cut off"),
                              (struct.pack("<Q", 1 << 23) + bytes(1 << 23), "more than the"),
                              (struct.pack("<Q", 8) + b"[[[[[[[[", "no safetensors")):
            file.write_bytes(content)
            self.refuse_import("model/model.safetensors: ", said)
        text = json.dumps(header)
        write_header(file, header, values)
        for renamed, said in (("_orig_mod.", 'remove the prefix "_orig_mod.", which torch.compile adds, from'),
                              ("module.", 'remove the prefix "module.", which DistributedDataParallel adds, from'),
                              ("module._orig_mod.", 'remove the prefix "module._orig_mod.", which torch.compile adds,'),
                              ("model.", 'remove the prefix "model." from the names')):
            write_header(file, {renamed * (name != "__metadata__") + name: entry for name, entry in header.items()},
                         values)
            self.refuse_import(f"model.safetensors: lacks the tensor block.3.qkv, but holds {renamed}block.3.qkv: ", said)
        twice = text.replace('"head": ', f'"head": {json.dumps(header["skip.0"])}, "head": ').encode()
        file.write_bytes(struct.pack("<Q", len(twice)) + twice + values)
        self.refuse_import('its header names the key "head" twice')
        for name, change, said in (("head", {"dtype": "F16"}, "bytes of its shape"), ("head", {"dtype": "F9"}, "F9"),
                                   ("head", {"data_offsets": [0, 4]}, "head"),
                                   ("head", {"shape": [2**40, 2**40]}, "impossible shape"),
                                   ("head", {"shape": header["head"]["shape"][::-1]},
                                    "head: has the shape [32, 384]; by config.json it is [384, 32], the vocabulary padded"),
                                   ("skip.0", {"shape": []}, "skip.0: has the shape []; by config.json it is [1]"),
                                   ("skip.0", {"data_offsets": header["skip.1"]["data_offsets"]}, "skip."),
                                   ("foreign", {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "foreign")):
            write_header(file, header | {name: header.get(name, {}) | change}, values)
            self.refuse_import("model/model.safetensors: ", said)
        file.write_bytes(good)
        for name in ("model.safetensors.index.json", "pytorch_model.bin", "adapter_model.safetensors"):
            file.rename(model / name)
            self.refuse_import(f"model/{name}: ", "nanorun import reads one model.safetensors")
            (model / name).rename(file)
        self.command("import", "model", "back.h5")

    def test_import_refuses_settings(self):
        """A config.json that describes no model, or that contradicts itself."""
        model = self.exported()
        config = model / "config.json"
        settings = json.loads(config.read_text())
        for record in (3, {"name": "gpt2"}, {"name": "gpt2", "checksum": "8f"}, {"name": "a\n", "checksum": 16 * "0"}):
            config.write_text(json.dumps({**settings, "nanorun_tokenizer": record}))
            self.refuse_import("model/config.json: its nanorun_tokenizer has not a name")
        config.write_text(json.dumps(settings))

        for change, said in (({"model_type": "gpt2"}, "model_type"), ({"model": {}}, "lacks model.vocabulary"),
                             ({"model": settings["model"] | {"width": -1}, "hidden_size": -1},
                              "config.json: model.width"),
                             ({"model": settings["model"] | {"residual": "no"}}, "config.json: model.residual"),
                             ({"max_position_embeddings": 100}, "max_position_embeddings = 100: must be a multiple"),
                             ({"max_position_embeddings": "256"}, "max_position_embeddings"),
                             ({"max_position_embeddings": 2**64 - 1}, "max_position_embeddings"),
                             ({"model": settings["model"] | {"layers": 2}, "num_hidden_layers": 2},
                              "which is no tensor of the model")):
            config.write_text(json.dumps(settings | change))
            job = self.refuse_import(said)
            self.assertNotIn("override", job.text())
        for change in ({"model": settings["model"] | {"new": 1}}, {"window": settings["window"] | {"new": 1}}, {"new": 1}):
            config.write_text(json.dumps(settings | change))
            self.refuse_import("model/config.json: ", "new: unknown key")
        config.write_text(json.dumps(settings).replace('"width"', '"softcap": 3, "width"'))
        self.refuse_import('model/config.json: names the key "softcap" twice')
        config.write_text(json.dumps(settings))
        self.command("import", "model", "back.h5")

    def test_import_takes_settings_of_transformers(self):
        """A config.json as transformers writes it anew, unless its further keys contradict the model."""
        model = self.exported()
        config = model / "config.json"
        settings = json.loads(config.read_text())
        others = {"transformers_version": "5.17.0", "dtype": settings["torch_dtype"], "_name_or_path": "model"}
        config.write_text(json.dumps({**settings, **others, "eos_token_id": [settings["eos_token_id"]]}, sort_keys=True))
        self.command("import", "model", "back.h5")
        (self.folder / "back.h5").unlink()
        for field, key in (("vocab_size", "vocabulary"), ("hidden_size", "width"), ("num_hidden_layers", "layers"),
                           ("num_attention_heads", "heads")):
            config.write_text(json.dumps(settings | {field: 7}))
            self.refuse_import(f"config.json: {field} = 7, but model.{key} = {settings['model'][key]}")
        vocabulary, end = (settings[key] for key in ("vocab_size", "eos_token_id"))
        for change, said in (({"tie_word_embeddings": True}, "tie_word_embeddings = true, but model.tied_head = false"),
                             ({"bos_token_id": vocabulary}, f"bos_token_id = {vocabulary}, but model.vocabulary = {vocabulary}"),
                             ({"eos_token_id": -1}, f"eos_token_id = -1, but model.vocabulary = {vocabulary}"),
                             ({"eos_token_id": [end, 1]}, f"eos_token_id = [{end},1], but documents begin and end with one token"),
                             ({"eos_token_id": "256"}, 'eos_token_id = "256", but documents begin and end with one token'),
                             ({"window": 3}, "window = 3: not a JSON object"),
                             ({"stage": [3]}, "stage.0 = 3: not a JSON object"),
                             ({"bos_token_id": end - 1}, f"bos_token_id = {end - 1}, but eos_token_id = {end}"),
                             ({"architectures": ["GPT2LMHeadModel"]},
                              'architectures = ["GPT2LMHeadModel"], but the class for model.residual = "unet" is ')):
            config.write_text(json.dumps(settings | change))
            self.refuse_import(f"config.json: {said}")
        config.write_text(json.dumps(settings))
        self.command("import", "model", "back.h5")

    def test_pytorch_agrees(self):
        """The exported weights in the reference implementation give the run's validation loss, and the model that is
        exported along the logits of the reference."""
        torch = import_torch(self)
        sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))
        import reference

        for features in (["window.layers=LSSL"],
                         ["model.value_path=first", "model.rotary=full", "model.layers_without_attention=[2]",
                          "window.kind=token", "window.quantum=64", "window.last=100", "model.attention_scale=0.12"]):
            model = self.exported("checkpoint.restart=none", *features)
            weights = tensors(torch, model / "model.safetensors")
            deck = reference.read_deck(self.run_folder() / "deck.toml", [])
            tokens = [256] + [byte for i in range(20)
                              for byte in (*(self.folder / f"{i:02}.txt").read_bytes(), 256)]
            windows = reference.windows_at(deck, 12)
            judge = reference.Model(deck, weights, 256)
            with torch.no_grad():
                rows = [torch.tensor(tokens[at:at + 257]) for at in range(0, 1024, 256)]
                losses = [judge.loss(row[:-1], row[1:], windows).item() for row in rows]
                self.assertAlmostEqual(sum(losses) / 4, self.summary()["final_val_loss"], 4)

                judge.head_loss = lambda x, targets, _: 15 * torch.tanh(x @ weights["head"].T / 15)
                expected = torch.stack([judge.loss(row[:-1], None, windows) for row in rows])
                exported = exported_model(model, weights)
                given = exported(torch.stack(rows)[:, :-1]).logits
                torch.testing.assert_close(given, expected[..., :257], rtol=1e-5, atol=2e-5)
                row = rows[0][None]
                loss = exported(row, labels=row).loss
                self.assertAlmostEqual(loss.item(), losses[0], 4)
            shutil.rmtree(model)

    def test_pytorch_agrees_beyond_the_records(self):
        """The same loss with the keys that the reference does not have; each of them changes it."""
        torch = import_torch(self)
        model = self.exported("window.layers=LSSL", "window.kind=tokens_before", "window.quantum=20", "window.last=100",
                              "validation.last_long_window=130", "model.softcap_kind=sigmoid", "model.softcap_shift=5",
                              "model.softcap_width=7.5", "model.tied_head=true", "train.untie_step=5")
        tokens = [256] + [byte for i in range(20) for byte in (*(self.folder / f"{i:02}.txt").read_bytes(), 256)]
        rows = torch.tensor([tokens[at:at + 257] for at in range(0, 1024, 256)])
        settings = json.loads((model / "config.json").read_text())
        self.assertEqual(settings["stage"], [{"short_window": 40, "long_window": 130}])

        def loss():
            with torch.no_grad():
                return exported_model(model, tensors(torch, model / "model.safetensors"))(rows, labels=rows).loss.item()

        expected = self.summary()["final_val_loss"]
        self.assertAlmostEqual(loss(), expected, 5)
        for section, change in (("model", {"softcap_shift": 4}), ("window", {"kind": "token"}),
                                ("stage", [{"short_window": 60, "long_window": 130}])):
            other = change if section == "stage" else settings[section] | change
            (model / "config.json").write_text(json.dumps(settings | {section: other}))
            self.assertNotAlmostEqual(loss(), expected, 5, section)


if __name__ == "__main__":
    small_run.main()
