"""The model of record 89 as a directory for PyTorch, and back."""

import json

from harness import small_run
from safetensors_file import read_header
from small_record89 import STEPS, Record89FaultTest


class ExportedRecord89(Record89FaultTest):
    def loss(self, checkpoint):
        """As printed, of some sequences."""
        job = self.command("eval", checkpoint, "--data", "data.h5", "--tokens", 1024, "--length", 512)
        return next(line for line in job.output if line.startswith("loss "))

    def test_there_and_back(self):
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
        job = self.train(2, "run.name=begun", f"checkpoint.weights=back_{STEPS}.h5", "stop.step=1", code=75)
        self.assertIn(f"begins with the weights of back_{STEPS}.h5, step 0\n", job.output)

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
