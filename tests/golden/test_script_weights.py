#!/usr/bin/env python3
"""Tests of script_weights.py: run them with `python3 reference89.py test`, or all with `python3 -m unittest`."""

import json
import struct
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

import script_weights
from record89 import parameters
from record89.config import CONFIGS
from record89.support import run_of

# The reference lays matrices and heads out as the script does, and with these as nanorun does.
SCRIPT = CONFIGS["tiny_alive"]
MODEL = {"vocabulary": SCRIPT.vocabulary, "xsa_layers": SCRIPT.xsa_layers,
         "gated_layers": SCRIPT.attention_gate_layers, "composed_layers": SCRIPT.dc_layers}
NANORUN = replace(SCRIPT, rotary_pairs="halves", mlp_out_transposed=False, mlp_out_factor=4)


def padded(units, count):
    """Stacked as a bank of `count` units, of which the last are never read."""
    return torch.cat([torch.stack(units), torch.full((count - len(units), *units[0].shape), 7.0)])


def saved_by_the_script(c, p, signs):
    """The script's state_dict with the parameters `p` of the reference and a config `c` in the script's layout."""
    pairs, squares, width = [], [], c.width
    for i in script_weights.ATTENTION:
        q, k, v = p[f"block.{i}.qkv"].split(width)
        pairs += [*q.split(2 * c.head_dim), *k.split(2 * c.head_dim)]
        squares += [v, p[f"block.{i}.attention_out"]]
    mlps = [torch.stack([p[f"block.{i}.mlp_in"], p[f"block.{i}.mlp_out"]]) for i in range(c.layers)]
    unread = torch.full((c.padded_vocabulary - c.vocabulary, width), 7.0)
    values = [torch.cat([p[f"value_embedding.{j}"], unread]) for j in range(5)]
    one = torch.ones(1)

    def half(name):
        return torch.stack([torch.cat([p.get(f"block.{i}.attention_{name}", one), p.get(f"block.{i}.mlp_{name}", one)])
                            for i in range(c.layers)])

    def nets(kind, part, rows):
        banks = [p[f"{kind}.{net}.{part}"] for net in range(2)]
        return torch.stack([torch.cat([b, torch.full((rows - len(b), *b.shape[1:]), 7.0)]) for b in banks])

    factors = [p.get(f"block.{i}.attention_factors", torch.ones(2)) for i in range(c.layers)]
    unused_gate = torch.full((c.heads, 12), 7.0)
    return {
        "lm_head.weight": p["head"].T, "embed.weight": p["embedding"], "bigram_embed.weight": p["bigram"],
        "bigram_sign_table": signs, "value_embeds": torch.cat(values), "qk_bank": padded(pairs, 64),
        "vo_bank": padded(squares, 24), "mlp_bank": padded(mlps, 12),
        "ve_gate_bank": torch.stack([*(p[f"block.{i}.value_gate"] for i in (1, 2, 8, 9)), unused_gate]),
        "smear_gate.weight": p["smear_gate"][None], "post_lambdas": half("post"), "resid_lambdas": half("residual"),
        "scalars": torch.cat([*factors, p["smear_factor"], p["skip_factor"]]),
        "mudd_w1": nets("mudd_net", "in", c.net_hidden), "mudd_w2": nets("mudd_net", "out", 14),
        "mudd_b2": nets("mudd_net", "bias", 14), "mudd_gate_w1": nets("gate_net", "in", c.net_hidden),
        "mudd_gate_w2": nets("gate_net", "out", 41), "mudd_gate_b2": nets("gate_net", "bias", 41),
        "_mudd_gate_scale": p["gate_net.scale"][0], "_mlp_down_act_scales": torch.ones(12),
    }


def random_values(c):
    """All tensors away from their starts, so that none can stand in another's place unseen."""
    draw = torch.Generator().manual_seed(1)
    return {name: torch.tensor(value) + 0.1 * torch.randn(value.shape, generator=draw)
            for name, value in parameters.initial_values(c).items()}


class ScriptWeights(unittest.TestCase):
    def test_every_tensor_finds_its_place(self):
        values, signs = random_values(SCRIPT), torch.tensor(parameters.signs(SCRIPT))
        found = script_weights.convert(saved_by_the_script(SCRIPT, values, signs), MODEL)
        self.assertTrue(torch.equal(found.pop("bigram_sign"), signs))
        self.assertEqual(found.keys(), values.keys())
        for name, value in values.items():
            if name.endswith(".mlp_out"):
                value = value.T
            elif name.endswith(".qkv"):  # the pairs of W_q and W_k are those of the next test
                value, found[name] = value[2 * SCRIPT.width:], found[name][2 * SCRIPT.width:]
            self.assertEqual(found[name].flatten().tolist(), value.flatten().tolist(), name)

    def test_the_model_is_the_same(self):
        """In both layouts the reference has the same losses, before updates of all tensors and after."""
        values = random_values(SCRIPT)
        values["embedding"] = values["head"]
        saved = saved_by_the_script(SCRIPT, values, torch.tensor(parameters.signs(SCRIPT)))
        shapes = {row.name: row.shape for row in parameters.parameter_table(NANORUN)}
        arrays = {name: tensor.reshape(shapes[name]).numpy()
                  for name, tensor in script_weights.convert(saved, MODEL).items() if name in shapes}
        runs = run_of(SCRIPT, values={n: v.numpy() for n, v in values.items()}), run_of(NANORUN, values=arrays)
        for step in range(3):
            expected, loss = (run.step()[0] for run in runs)
            self.assertAlmostEqual(loss, expected, delta=1e-9, msg=step)

    def test_outputs_of_mechanisms_that_the_model_lacks_are_left_out(self):
        values = random_values(SCRIPT)
        saved = saved_by_the_script(SCRIPT, values, torch.tensor(parameters.signs(SCRIPT)))
        found = script_weights.convert(saved, MODEL | {"xsa_layers": (1, 4), "composed_layers": ()})
        for part in ("out", "bias"):
            first, second = (values[f"gate_net.{net}.{part}"] for net in range(2))
            self.assertEqual(found[f"gate_net.0.{part}"].tolist(), [*first[:6].tolist(), *first[12:].tolist()])
            self.assertEqual(found[f"gate_net.1.{part}"].tolist(), [*second[:6].tolist(), *second[12:29].tolist()])

    def test_rotary_pairs_are_reordered(self):
        rows = torch.arange(16.0)[:, None]
        order = script_weights.halves(rows, 2).flatten().tolist()
        self.assertEqual(order, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15])

    def test_files(self):
        """Types stay, values too; the folder says what model this is."""
        values = random_values(SCRIPT)
        values["head"] = values["head"].bfloat16()
        saved = saved_by_the_script(SCRIPT, values, torch.tensor(parameters.signs(SCRIPT)).bfloat16())
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            torch.save(saved, folder / "saved.pt")
            overrides = ["model.vocabulary=61", "model.width=48", "window.layers='LL'"]
            arguments = ["script_weights.py", str(folder / "saved.pt"), str(folder / "model"), *overrides]
            with mock.patch("sys.argv", arguments):
                script_weights.main()
            config = json.loads((folder / "model/config.json").read_text())
            content = (folder / "model/model.safetensors").read_bytes()
        self.assertEqual(config["max_position_embeddings"], 49152)
        self.assertEqual((config["model_type"], config["model"]["width"], config["model"]["tied_head"]),
                         ("nanorun", 48, True))
        self.assertEqual((config["model"]["yarn"], config["model"]["attention_scale"]), (False, 0.1))
        self.assertEqual(config["window"], {"kind": "tokens_before", "layers": "LL"})
        self.assertEqual(config["stage"], [{"short_window": 128, "long_window": 384}])
        size, = struct.unpack("<Q", content[:8])
        header, bytes_of_values = json.loads(content[8:8 + size]), content[8 + size:]
        self.assertEqual(header.pop("__metadata__"), {"format": "pt"})
        self.assertEqual(sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values()),
                         len(bytes_of_values))
        found = script_weights.convert(saved, MODEL)
        self.assertEqual(header.keys(), found.keys())
        for name, entry in header.items():
            part = bytearray(bytes_of_values[slice(*entry["data_offsets"])])
            dtype = torch.bfloat16 if name in ("head", "bigram_sign") else torch.float32
            self.assertEqual(entry["dtype"], "BF16" if dtype == torch.bfloat16 else "F32")
            self.assertTrue(torch.equal(torch.frombuffer(part, dtype=dtype).view(entry["shape"]), found[name]), name)


if __name__ == "__main__":
    unittest.main()
