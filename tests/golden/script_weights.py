#!/usr/bin/env python3
"""Makes the public script's parameters a folder for `nanorun import`: model.safetensors and config.json.

SAVED is what torch.save wrote of the state_dict of the GPT class of record 89's script. Its tensors keep their type;
their banks become the tensors of nanorun's parameter table, and rotary pairs (2j, 2j+1) become (j, j + D/2).
record89.md has the layouts of both. Padding units, and what the script never uses, are left out, as are the outputs of
nets for layers that model.xsa_layers, gated_layers or composed_layers of the deck does not name."""

import argparse
import json
import struct
import tomllib
from pathlib import Path

import torch

LAYERS = 11  # these three are fixed in the script's code
WITHOUT_ATTENTION = 6
VALUE_LAYERS = (1, 2, 8, 9, 10)
ATTENTION = [i for i in range(LAYERS) if i != WITHOUT_ATTENTION]
# The outputs of each net in their order: how many, and for those that only some models have, the deck's list of layers
# and the layer.
GATE_NETS = (((6, "xsa_layers", 1), (6, "xsa_layers", 3), (6, "gated_layers", 3), (8,)),
             ((6, "xsa_layers", 4), (6, "xsa_layers", 7), (6, "gated_layers", 10), (11,), (12, "composed_layers", 10)))
MUDD_NETS = (((14,),), ((5,),))
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
DECK = Path(__file__).resolve().parents[2] / "inputs/record89.toml"


# ---------------------------------------------------------------- tensors

def halves(rows, heads):
    """Rows [heads D, d] of W_q or W_k with each head's even dims in front of its odd ones."""
    by_pair = rows.view(heads, -1, 2, rows.shape[-1])
    return by_pair.transpose(1, 2).reshape(rows.shape)


def matrices(saved):
    """Those of attention lie in the order of layers that have attention: blocks of two heads, of W_q and then of W_k;
    W_v and W_o. Those of the MLP are W1 and the transpose of W2."""
    width, heads = saved["mlp_bank"].shape[-1], saved["ve_gate_bank"].shape[1]
    qk = saved["qk_bank"].flatten(0, 1)[:2 * width * len(ATTENTION)].view(-1, 2, width, width)
    vo = saved["vo_bank"][:2 * len(ATTENTION)].view(-1, 2, width, width)
    tensors = {}
    for place, i in enumerate(ATTENTION):
        (q, k), (v, out) = qk[place], vo[place]
        tensors[f"block.{i}.qkv"] = torch.cat([halves(q, heads), halves(k, heads), v])
        tensors[f"block.{i}.attention_out"] = out
    for i in range(LAYERS):
        up, down = saved["mlp_bank"][i]
        tensors[f"block.{i}.mlp_in"], tensors[f"block.{i}.mlp_out"] = up, down.T
    return tensors


def tables(saved, vocabulary):
    """The head is stored transposed, and each value embedding has the head's padding."""
    head = saved["lm_head.weight"].T
    tensors = {"head": head, "embedding": saved["embed.weight"], "bigram": saved["bigram_embed.weight"],
               "bigram_sign": saved["bigram_sign_table"]}
    values = saved["value_embeds"].view(len(VALUE_LAYERS), *head.shape)
    for j in range(len(VALUE_LAYERS)):
        tensors[f"value_embedding.{j}"] = values[j, :vocabulary]
    return tensors


def present(outputs, model):
    """For each of a net's outputs whether the model has it."""
    return torch.tensor([not user or user[1] in model[user[0]] for count, *user in outputs for _ in range(count)])


def nets(saved, model):
    """Biases are those inside of the net's scale, as in nanorun. Both nets of a kind have the rows of the larger."""
    tensors = {"gate_net.scale": saved["_mudd_gate_scale"]}
    for name, prefix, kind in (("gate_net", "mudd_gate_", GATE_NETS), ("mudd_net", "mudd_", MUDD_NETS)):
        for net, outputs in enumerate(kind):
            rows = present(outputs, model)
            tensors[f"{name}.{net}.in"] = saved[prefix + "w1"][net]
            tensors[f"{name}.{net}.out"] = saved[prefix + "w2"][net, :len(rows)][rows]
            tensors[f"{name}.{net}.bias"] = saved[prefix + "b2"][net, :len(rows)][rows]
    return tensors


def scalars(saved):
    factors = saved["scalars"]
    tensors = {"smear_gate": saved["smear_gate.weight"][0], "smear_factor": factors[2 * LAYERS],
               "skip_factor": factors[2 * LAYERS + 1]}
    for i in ATTENTION:
        tensors[f"block.{i}.attention_factors"] = factors[2 * i:2 * i + 2]
    for i in range(LAYERS - 1):  # the last layer's come from a net
        for place, half in enumerate(("attention", "mlp")):
            if half == "attention" and i == WITHOUT_ATTENTION:
                continue
            tensors[f"block.{i}.{half}_residual"] = saved["resid_lambdas"][i, place]
            tensors[f"block.{i}.{half}_post"] = saved["post_lambdas"][i, place]
        if i in VALUE_LAYERS:
            tensors[f"block.{i}.value_gate"] = saved["ve_gate_bank"][VALUE_LAYERS.index(i)]
    return tensors


def convert(saved, model):
    """name -> tensor, as nanorun's parameter table has them; `model` is the deck's section."""
    tensors = matrices(saved) | tables(saved, model["vocabulary"]) | nets(saved, model) | scalars(saved)
    return {name: tensor if tensor.dim() else tensor[None] for name, tensor in tensors.items()}


# ---------------------------------------------------------------- files

def write_safetensors(path, tensors):
    header, place = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the values
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            bits = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
            file.write(tensor.contiguous().view(bits).numpy().data)


def read_deck(path, overrides):
    deck = tomllib.loads(Path(path).read_text())
    for override in overrides:
        name, text = override.split("=", 1)
        section, key = name.split(".")
        deck[section][key] = tomllib.loads(f"value = {text}")["value"]
    return deck


def config_of(deck):
    """As `nanorun export` describes a model at its first step: YaRN has changed nothing yet."""
    longest, windows = max(stage["length"] for stage in deck["stage"]), ("short_window", "long_window")
    return {"model_type": "nanorun", "max_position_embeddings": longest, "model": deck["model"] | {"yarn": False},
            "window": deck["window"], "stage": [{name: deck["stage"][0][name] for name in windows}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("saved", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("override", nargs="*", help="section.key=value, where the script's sizes are not the deck's")
    parser.add_argument("--deck", type=Path, default=DECK)
    arguments = parser.parse_args()

    deck = read_deck(arguments.deck, arguments.override)
    saved = torch.load(arguments.saved, map_location="cpu")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(arguments.folder / "model.safetensors", convert(saved, deck["model"]))
    (arguments.folder / "config.json").write_text(json.dumps(config_of(deck), indent=2) + "\n")


if __name__ == "__main__":
    main()
