"""Parameters that record 89's published script has saved become a checkpoint."""

import sys
from pathlib import Path
from unittest import mock

from exported_files import import_torch
from harness import small_run
from small_record89 import Record89FaultTest

SIZES = ["model.vocabulary=257", "model.width=48", "model.head_dim=8", "model.bigram_rows=97",
         "model.bigram_sign_rows=16", "model.coefficient_width=8", "model.composition_window=24"]


class PublishedWeights(Record89FaultTest):
    def test_loss_is_that_of_the_reference(self):
        """The reference computes it from the script's layout of heads and matrices, with every mechanism alive."""
        torch = import_torch(self)
        sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))
        import script_weights
        from record89 import config, data, parameters, schedule
        from record89.model import Model
        from test_script_weights import random_values, saved_by_the_script

        c = config.check(config.replace(
            config.Config(), width=48, head_dim=8, frequencies=2, hidden=192, vocabulary=257, end_of_text=256,
            net_hidden=8, bigram_rows=97, sign_rows=16, dc_window=24, zero_starts=False))
        values = random_values(c)
        model = Model(c, {name: value.double() for name, value in values.items()}, [-1] * c.padded_vocabulary)
        torch.save(saved_by_the_script(c, values, torch.tensor(parameters.signs(c)).float()), self.folder / "saved.pt")
        arguments = ["script_weights.py", str(self.folder / "saved.pt"), str(self.folder / "model"), *SIZES]
        with mock.patch("sys.argv", arguments):
            script_weights.main()
        self.command("import", "model", "published.h5")
        job = self.command("eval", "published.h5", "--data", "data.h5", "--tokens", 1024, "--length", 512)
        found = next(float(line.split()[1]) for line in job.output if line.startswith("loss "))

        texts = [(self.folder / f"{i:02}.txt").read_bytes() for i in range(20)]
        tokens = torch.tensor([256, *(token for text in texts for token in (*text, 256))]).numpy()
        with torch.no_grad():
            losses = [model.loss(sequence, schedule.validation_settings(c, 0), training=False).item() / 512
                      for sequence in data.plain_sequences(tokens, 2, 512)]
        self.assertAlmostEqual(found, sum(losses) / 2, delta=1e-6)


if __name__ == "__main__":
    small_run.main()
