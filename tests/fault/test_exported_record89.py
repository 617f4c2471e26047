"""The model of record 89 as a directory for PyTorch, and back."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

from exported_files import exported_model, import_torch, make_alive, read_header
from harness import small_run
from small_record89 import STEPS, Record89FaultTest


class ExportedRecord89(Record89FaultTest):
    def loss(self, checkpoint, tokens=1024):
        """As printed, of some sequences."""
        job = self.command("eval", checkpoint, "--data", "data.h5", "--tokens", tokens, "--length", 512)
        return next(line for line in job.output if line.startswith("loss "))

    def test_exported_model_comes_back_bit_for_bit(self):
        """Bit for bit, at the end, and where the head is still tied and windows and frequencies are of a stage."""
        self.train(2, "stop.step=8", code=75)
        self.train(2, "checkpoint.keep=10")
        windows = {8: (32, 96), STEPS: (64, 240)}
        for step, (short, long) in windows.items():
            checkpoint = self.checkpoint(step)
            model, back, again = (f"{name}_{step}" for name in ("model", "back", "again"))
            self.command("export", checkpoint, model, ranks=2)
            self.command("import", model, f"{back}.h5")
            self.verify(f"{back}.h5")
            self.assertEqual(self.loss(f"{back}.h5"), self.loss(checkpoint))
            self.command("export", f"{back}.h5", again)
            for file in ("config.json", "model.safetensors"):
                self.assertEqual((self.folder / again / file).read_bytes(), (self.folder / model / file).read_bytes())
            config = json.loads((self.folder / model / "config.json").read_text())
            self.assertEqual(config["stage"], [{"short_window": short, "long_window": long}])
            self.assertEqual(len(config["model"]["rotary_frequencies"]), 2)
        self.assertIn(f"loss           {self.summary()['final_val_loss']} nats", self.loss(f"back_{STEPS}.h5"))
        job = self.train(2, "run.name=begun", f"checkpoint.weights=back_{STEPS}.h5", "train.untie_step=-1",
                         "stop.step=1", code=75)
        self.assertIn(f"begins with the weights of back_{STEPS}.h5, step 0\n", job.output)

    def reference(self, weights, changes):
        """Model and settings of the reference for the last validation; changes: of the reference's config."""
        from record89 import config, schedule
        from record89.model import Model
        from record89.parameters import tensors as parameters
        from small_record89 import STAGES

        stages = tuple(config.replace(stage, length=length, longest=longest, window_short=short, window_long=long)
                       for stage, (length, longest, short, long) in zip(config.RECORD_STAGES, STAGES))
        c = config.check(config.replace(
            config.Config(), width=48, head_dim=8, frequencies=2, hidden=192, vocabulary=257, end_of_text=256,
            net_hidden=8, bigram_rows=97, sign_rows=16, dc_window=24, rotary_pairs="halves", mlp_out_transposed=False,
            steps=STEPS - 2, extension=2, stages=stages, final_window_long=240, **changes))
        given = {name: values.double() for name, values in weights.items()}
        model = Model(c, given, [-1] * 384)
        model.signs = given["bigram_sign"]
        return model, schedule.validation_settings(c, STEPS)

    def test_pytorch_agrees(self):
        self.check_pytorch()

    def test_pytorch_agrees_with_narrow_heads(self):
        self.check_pytorch("model.qk_dims=[4,4,4,8,4,4,0,4,4,4,8]", "model.attention_scale_narrow=0.12",
                           qk_dims=(4, 4, 4, 8, 4, 4, 0, 4, 4, 4, 8), narrow_frequencies=2)

    def test_pytorch_agrees_with_narrow_heads_everywhere(self):
        self.check_pytorch("model.qk_dims=4", qk_dims=(4,) * 6 + (0,) + (4,) * 4, narrow_frequencies=1,
                           narrow_scale=0.1 * math.sqrt(2))

    def check_pytorch(self, *overrides, **changes):
        """With every mechanism alive, the exported model has the logits of the reference, and the loss is nanorun's."""
        torch = import_torch(self)
        sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))
        from record89.loss import head_product, softcap
        from record89.model import Tokens

        self.train(2, *overrides)
        self.command("export", self.checkpoint(STEPS), "model")
        weights = make_alive(torch, self.folder / "model" / "model.safetensors")
        self.command("import", "model", "alive.h5")
        loss = float(self.loss("alive.h5", tokens=4096).split()[1])

        tokens = [256] + [byte for i in range(20) for byte in (*(self.folder / f"{i:02}.txt").read_bytes(), 256)]
        rows = torch.tensor([tokens[at:at + 513] for at in range(0, 4096, 512)])
        model, settings = self.reference(weights, changes)
        with torch.no_grad():
            exported = exported_model(self.folder / "model", weights)
            given = exported.all_logits(rows[:, :-1])
            losses = torch.nn.functional.cross_entropy(given.flatten(0, 1), rows[:, 1:].flatten())
            self.assertAlmostEqual(losses.item(), loss, 4)
            self.assertEqual(exported(rows).logits.shape, (8, 513, 257))
            for row, logits in zip(rows, given):
                inputs, targets = row[:-1].numpy(), row[1:].numpy()
                looked_up = Tokens(model.c, SimpleNamespace(inputs=inputs, targets=targets), model.prefixes)
                x = model.stream(looked_up, settings, None, 0)
                expected = softcap(model.c, head_product(model.c, x, model.p["head"], training=False))[1].float()
                torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5)

    def test_types_and_shapes(self):
        self.train(1, "stop.step=2", code=75)
        self.command("export", self.checkpoint(2), "model", "--bf16")
        header, _ = read_header(self.folder / "model" / "model.safetensors")
        for name, dtype, shape in (
                ("head", "BF16", [384, 48]), ("embedding", "BF16", [384, 48]), ("value_embedding.4", "BF16", [257, 48]),
                ("bigram_sign", "BF16", [16, 48]), ("gate_net.0.in", "BF16", [8, 48]),
                ("gate_net.1.out", "F32", [41, 8]), ("gate_net.1.bias", "F32", [41]), ("gate_net.scale", "F32", [1]),
                ("smear_gate", "F32", [12]), ("block.1.value_gate", "F32", [6, 12]), ("mudd_net.1.bias", "F32", [5])):
            self.assertEqual((header[name]["dtype"], header[name]["shape"]), (dtype, shape), name)

    def test_import_refuses(self):
        self.train(1, "stop.step=2", code=75)
        self.command("export", self.checkpoint(2), "model")
        config = self.folder / "model" / "config.json"
        settings = json.loads(config.read_text())
        stage = settings["stage"][0]
        for change, said in (({"stage": [{"short_window": 16}]}, "config.json: lacks stage.0.long_window"),
                             ({"stage": [stage, stage]}, "its stage is not a list of one object"),
                             ({"stage": [stage | {"long_window": 0}]}, "stage.0.long_window: got 0"),
                             ({"model": settings["model"] | {"yarn": True}}, "give model.rotary_frequencies"),
                             ({"model": settings["model"] | {"rotary_frequencies": [1.0]}}, "has 1 numbers"),
                             ({"window": settings["window"] | {"kind": "block"}}, "must be a multiple of 128")):
            config.write_text(json.dumps(settings | change))
            job = self.command("import", "model", "back.h5", code=3)
            self.assert_refused(job, "model/config.json: ", said)


if __name__ == "__main__":
    small_run.main()
