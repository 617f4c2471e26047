#!/usr/bin/env python3
"""GPT-2 Medium of the speedrun's second track and its relatives in PyTorch and double, for golden files: one mix of
streams before attention (model.residual = "before"), a second embedding or bigrams, gated skips, backout, shared value
tables, paired heads, XSA, gates by Muon or Adam, stages with further targets, YaRN up to a window, NorMuon, Adam in odd
steps.

It shares with reference.py the reading of shards and the formula of initial values, and with the other references norms,
softcaps, masks, rows of bigrams, XSA and the iterations that orthogonalise. Gradients come from autograd. README.md
states the conventions.
"""

import argparse
import fnmatch
import math
import tomllib
from itertools import accumulate
from pathlib import Path

import golden_file
import numpy as np
import reference
import torch
import torch.nn.functional as F
from medium_rules import Adam, Muon
from record89.attention import seen, softmax_attention, without_value
from record89.data import bigram_rows
from record89.parameters import draw
from reference_plain import capped, frequencies, norm, norms, turned

END_OF_TEXT = 499
# Of these keys alone a deck may have others than the program's defaults.
DEFAULTS = {
    "run": {"seed": 1, "name": ""},
    "model": {
        "vocabulary": 50257, "width": 768, "heads": 6, "head_dim": 128, "layers": 12, "mlp_ratio": 4,
        "norm_eps": 0.0078125, "rotary": "half_truncated", "rotary_base": 1024, "attention_scale": 0, "yarn": False,
        "yarn_last_window": 0, "softcap": 15, "softcap_kind": "tanh", "softcap_shift": 0, "softcap_width": 1,
        "init_scale": 1, "init_scale_mlp": 0, "init_residual": 1.05, "zero_outputs": True,
        "zero_attention_outputs": True, "init_embedding": 1, "init_embedding2": 1, "init_value_embedding": 1,
        "tied_head": False, "residual": "before",
        "value_path": "none", "value_layers": [], "value_layers_gated_by_input": [], "value_tables": [],
        "layers_without_attention": [], "smear": False, "second_embedding": False, "skip_from": [], "skip_to": [],
        "skip_gate": False, "backout_from": -1, "gated_layers": [], "gate_columns": 12, "key_offset_layers": [],
        "bigram_rows": 0, "bigram_columns": 0, "paired_layers": [], "xsa_layers": [],
    },
    "head": {"precision": "fp32"},
    "window": {"kind": "tokens_before", "layers": "L"},
    "train": {
        "steps": 20, "sequences": 2, "cooldown": 0.4, "final_lr_factor": 0.1, "extension_steps": 0, "loss": "mean",
        "untie_step": 0, "surplus_weights": True,
    },
    "validation": {"every": 0, "tokens": 0, "length": 0, "last_long_window": 0},
    "optimizer": {
        "muon_lr": 0.05, "muon_momentum_first": 0.85, "muon_momentum_last": 0.95, "muon_momentum_steps": 300,
        "muon_momentum_cooldown": 0, "orthogonalisation": "newton_schulz", "orthogonalisation_maps": [],
        "orthogonalisation_steps": 0, "muon_block_heads": 0, "normuon_beta": 0, "muon_decay": 0, "adam_beta1": 0.8,
        "adam_beta2": 0.95, "adam_eps": 1e-10, "adam_epsilon_hat": False, "adam_period": 1, "lr_embedding": 0.6,
        "lr_head": 0.008, "lr_scalar": 0.04,
    },
}
GROUP = {"tensors": [], "rule": "auto", "lr": 0, "beta1": 0.8, "beta2": 0.95, "decay": 0}
STAGE = {"share": 0, "length": 0, "longest_document": 0, "short_window": 0, "long_window": 0, "lr_factor": 1,
         "targets": [1], "targets_end": []}
# Bounds of the uniform values that --alive adds to starts, so that every gradient is alive; a tensor has the first.
ALIVE = {"*injection": 0.1, "*smear_factor": 0.5, "*_gate": 0.5, "bigram": 0.5, "*xsa": 0.5}


def filled(what, defaults, given):
    """The given keys over the defaults; a key without default is an error."""
    if unknown := set(given) - set(defaults):
        raise SystemExit(f"{what} has keys that this program does not know: {sorted(unknown)}")
    return defaults | given


def first_match(name, table):
    return next((value for pattern, value in table.items() if fnmatch.fnmatchcase(name, pattern)), None)


class Deck(dict):
    """A deck by section and key, with the program's defaults; its [[stage]] and [[group]] as lists."""

    def __init__(self, path, overrides=()):
        given = tomllib.loads(Path(path).read_text())
        for override in overrides:
            name, text = override.split("=", 1)
            section, key = name.rsplit(".", 1)
            place = given[section[:5]][int(section[6:])] if "." in section else given.setdefault(section, {})
            place[key] = reference.toml_value(text)
        self.groups = [filled("[[group]]", GROUP, group) for group in given.pop("group", [])]
        self.stages = [filled("[[stage]]", STAGE, stage) for stage in given.pop("stage", [])]
        super().__init__({name: filled(f"[{name}]", keys, given.get(name, {})) for name, keys in DEFAULTS.items()})

    def group(self, name):
        """The first group with a pattern that matches, or None."""
        return next((g for g in self.groups if any(fnmatch.fnmatchcase(name, p) for p in g["tensors"])), None)


# ---------------------------------------------------------------- schedule

def scheduled(deck):
    """Steps that the stages share: all but the extension."""
    return deck["train"]["steps"] - deck["train"]["extension_steps"]


def boundaries(deck):
    """First steps of the stages, and the number of steps."""
    ends = [math.floor(share * scheduled(deck) + 0.5) for share in accumulate(s["share"] for s in deck.stages)]
    return [0, *ends[:-1], deck["train"]["steps"]]


def stage_at(deck, step):
    """Index of a step's stage; steps behind the last one are of the last stage."""
    return sum(step >= first for first in boundaries(deck)[1:-1])


def rate_factor(deck, step):
    """The stage's, until the last `cooldown` of the scheduled steps leads to the final factor."""
    train, steps = deck["train"], scheduled(deck)
    factor, start = deck.stages[stage_at(deck, step)]["lr_factor"], math.floor(steps * (1 - train["cooldown"]))
    if step < start:
        return factor
    t = min(1.0, (step - start) / (steps - start))
    return (1 - t) * factor + t * train["final_lr_factor"]


def momentum(deck, step):
    o, last = deck["optimizer"], deck["train"]["steps"]
    first, top, cooldown = o["muon_momentum_first"], o["muon_momentum_last"], o["muon_momentum_cooldown"]
    if cooldown and step > last - cooldown:
        return top - (top - first) * (step - last + cooldown) / cooldown
    return first + (top - first) * min(1.0, step / o["muon_momentum_steps"])


def target_weights(deck, step):
    """Weights of t+1, t+2, ...: linear within the stage, whose end is that of the next stage's first step."""
    i, cuts = stage_at(deck, step), boundaries(deck)
    stage, t = deck.stages[i], (step - cuts[i]) / (cuts[i + 1] - cuts[i])
    return [a + (b - a) * t for a, b in zip(stage["targets"], stage["targets_end"] or stage["targets"], strict=True)]


def rotary(deck, stage):
    """Frequencies of a head's pairs and the factor on scores. YaRN acts on both where the long window changes, up to
    yarn_last_window."""
    m = deck["model"]
    frequency, scale = frequencies(m), m["attention_scale"] or m["head_dim"] ** -0.5
    windows = [s["long_window"] for s in deck.stages[: stage + 1]]
    for old, new in zip(windows, windows[1:]):
        if not m["yarn"] or old == new or 0 < m["yarn_last_window"] < new:
            continue
        turns = old * frequency / (2 * math.pi)
        kept = ((turns - 1) / (32 - 1)).clamp(0, 1)
        frequency = frequency * (old / new * (1 - kept) + kept)
        scale *= 1 + 0.2 * math.log(new / old)
    return frequency, scale


class Settings:
    """What a forward pass needs to know of a step."""

    def __init__(self, deck, step, validation=False):
        index = stage_at(deck, step)
        stage = deck.stages[index]
        self.frequency, self.scale = rotary(deck, index)
        self.windows = {"S": stage["short_window"], "L": stage["long_window"]}
        self.weights = [1.0] if validation else target_weights(deck, step)
        if validation and step == deck["train"]["steps"] and deck["validation"]["last_long_window"]:
            self.windows["L"] = deck["validation"]["last_long_window"]


# ---------------------------------------------------------------- parameters

def has_attention(m, i):
    return i not in m["layers_without_attention"]


def injections(m):
    """Starts of the factors of x0 and of the stream beside it."""
    return [0.0] + [0.0] * m["second_embedding"] + [0.05] * (m["bigram_rows"] > 0)


def value_table(m, i):
    """Index of the value table of layer i, which has one."""
    place = m["value_layers"].index(i)
    return m["value_tables"][place] if m["value_tables"] else place


def parameter_table(m):
    """name: (shape, kind, how it starts), where kind chooses rule and rate."""
    d, hidden, heads, columns = m["width"], m["mlp_ratio"] * m["width"], m["heads"], m["gate_columns"]
    padded = -(-m["vocabulary"] // 128) * 128

    def normal(std):
        return ("normal", std)

    def uniform(scale, fan_in):
        return ("uniform", scale / math.sqrt(fan_in))

    def constant(*values):
        return ("constant", values)

    zero, zeros = constant(0.0), m["zero_outputs"]
    rows = {}
    if m["tied_head"]:
        rows["head"] = ((padded, d), "head", normal(m["init_embedding"]))
        rows["embedding"] = ((padded, d), "embedding", normal(m["init_embedding"]))
    else:
        rows["head"] = ((padded, d), "head", zero if zeros else uniform(m["init_scale"], d))
        rows["embedding"] = ((m["vocabulary"], d), "embedding", normal(m["init_embedding"]))
    if m["second_embedding"]:
        rows["embedding2"] = ((m["vocabulary"], d), "embedding", normal(m["init_embedding2"]))
    if m["bigram_rows"]:
        rows["bigram"] = ((m["bigram_rows"], m["bigram_columns"] or d), "embedding", zero)
    for j in sorted({value_table(m, i) for i in m["value_layers"]}):
        rows[f"value_embedding.{j}"] = ((m["vocabulary"], d), "embedding", normal(m["init_value_embedding"]))
    if m["smear"]:
        rows["smear_factor"], rows["smear_gate"] = ((1,), "scalar", zero), ((columns,), "scalar", zero)
    if skips := len(m["skip_to"]):
        rows["skip_factor"] = ((skips,), "scalar", constant(*[-1.5] * skips))
        if m["skip_gate"]:
            rows["skip_gate"] = ((skips, columns), "scalar", zero)
    if m["backout_from"] >= 0:
        rows["backout"] = ((1,), "scalar", constant(0.5))
    for i in range(m["layers"]):
        b = f"block.{i}."
        if has_attention(m, i):
            out = zero if zeros and m["zero_attention_outputs"] else uniform(m["init_scale"], d)
            rows[b + "qkv"] = ((3 * d, d), "matrix", uniform(m["init_scale"], d))
            rows[b + "attention_out"] = ((d, d), "matrix", out)
            rows[b + "attention_factors"] = ((2,), "scalar", constant(0.5, 1.0))
        rows[b + "mlp_in"] = ((hidden, d), "matrix", uniform(m["init_scale_mlp"] or m["init_scale"], d))
        rows[b + "mlp_out"] = ((d, hidden), "matrix", zero if zeros else uniform(m["init_scale"], hidden))
        rows[b + "residual_mix"] = ((1,), "scalar", constant(m["init_residual"]))
        rows[b + "injection"] = ((len(injections(m)),), "scalar", constant(*injections(m)))
        if i in m["xsa_layers"]:
            rows[b + "xsa"] = ((heads,), "scalar", zero)
        if i in m["gated_layers"]:
            rows[b + "attention_gate"] = ((heads, columns), "scalar", zero)
        if i in m["value_layers"]:
            rows[b + "value_gate"] = ((heads, columns), "scalar", zero)
    return rows


def first_values(deck, alive=False):
    m, seed = deck["model"], deck["run"]["seed"]
    values = {}
    for name, (shape, _, (how, number)) in parameter_table(m).items():
        stream = "head" if name == "embedding" and m["tied_head"] else name
        if how == "constant":
            value = np.broadcast_to(np.array(number), shape).astype(np.float32)
            if alive and (bound := first_match(name, ALIVE)):
                value = value + draw(seed, stream, shape, "uniform", bound).astype(np.float32)
        else:
            value = draw(seed, stream, shape, how, number)
        values[name] = torch.tensor(value.astype(np.float32)).double().requires_grad_()
    return values


# ---------------------------------------------------------------- model

def paired_attention(q, k, v, scale, document, window):
    """Of [T, H, D]: head h of token t is row 2t + h // (H/2) of head h mod (H/2), whose window counts rows."""
    length, heads, size = q.shape
    rows = (x.reshape(2 * length, heads // 2, size) for x in (q, k, v))
    mask = seen(document.repeat_interleave(2), window)
    return softmax_attention(*rows, scale, mask).reshape(length, heads, size)


def attention(deck, p, i, n, tokens, settings):
    """Output [T, d] of layer i for the normed input n."""
    m, b = deck["model"], f"block.{i}."
    length, columns, heads = len(n), m["gate_columns"], (m["heads"], m["head_dim"])
    factors, eps = p[b + "attention_factors"], m["norm_eps"]
    q, k, v = (n @ (factors[0] * p[b + "qkv"]).T).view(length, 3, *heads).unbind(1)
    position = torch.arange(length)[:, None]
    if i in m["paired_layers"]:
        position = 2 * position + torch.arange(m["heads"]) % 2
    q, k = (turned(norm(y, eps), settings.frequency, position) for y in (q, k))
    if i in m["key_offset_layers"]:
        still = (settings.frequency == 0).repeat(2)
        k = torch.cat((k[:1], torch.where(still, k[:-1], k[1:])))
    if i in m["value_layers"]:
        row = p[f"value_embedding.{value_table(m, i)}"][tokens]
        half = columns if i in m["value_layers_gated_by_input"] else columns // 2
        read = torch.cat((n[:, :half], row[:, : columns - half]), 1)
        v = v + 2 * torch.sigmoid(read @ p[b + "value_gate"].T)[..., None] * row.view(length, *heads)
    letters = deck["window"]["layers"]
    document, window = (tokens == END_OF_TEXT).cumsum(0), settings.windows[letters[i % len(letters)]]
    if i in m["paired_layers"]:
        y = paired_attention(q, k, v, settings.scale, document, window)
    else:
        y = softmax_attention(q, k, v, settings.scale, seen(document, window))
    if i in m["xsa_layers"]:
        y = without_value(y, v, p[b + "xsa"])
    if i in m["gated_layers"]:
        y = y * torch.sigmoid(n[:, :columns] @ p[b + "attention_gate"].T)[..., None]
    return y.reshape(length, -1) @ (factors[1] * p[b + "attention_out"]).T


def mlp(p, i, n):
    return (n @ p[f"block.{i}.mlp_in"].T).clamp(min=0).square() @ p[f"block.{i}.mlp_out"].T


def skipped(m, p, k, x0, source):
    """What skip k adds: its source with a learned factor and, with gates, one per token that reads x0."""
    factor = torch.sigmoid(p["skip_factor"][k])
    if m["skip_gate"]:
        factor = factor * 2 * torch.sigmoid(x0[:, : m["gate_columns"]] @ p["skip_gate"][k])[:, None]
    return factor * source


def beside_x0(m, p, tokens):
    """The stream that all layers inject beside x0, in a list, which is empty where there is none."""
    if m["second_embedding"]:
        return [norm(p["embedding2"][tokens], m["norm_eps"])]
    if not m["bigram_rows"]:
        return []
    rows = p["bigram"][torch.from_numpy(bigram_rows(tokens.numpy(), m["bigram_rows"]))]
    return [F.pad(rows, (0, m["width"] - rows.shape[1]))]


def final_stream(deck, p, tokens, settings):
    """What the head reads, [T, d]."""
    m = deck["model"]
    eps = m["norm_eps"]
    e = p["embedding"][tokens]
    if m["smear"]:
        gate = p["smear_factor"] * torch.sigmoid(e[1:, : m["gate_columns"]] @ p["smear_gate"])
        e = torch.cat((e[:1], e[1:] + gate[:, None] * e[:-1]))
    x = x0 = norm(e, eps)
    streams = [x0, *beside_x0(m, p, tokens)]
    kept = []
    for i in range(m["layers"]):
        if i in m["skip_to"]:
            k = m["skip_to"].index(i)
            x = x + skipped(m, p, k, x0, kept[m["skip_from"][k]])
        x = p[f"block.{i}.residual_mix"] * x
        for factor, stream in zip(p[f"block.{i}.injection"], streams, strict=True):
            x = x + factor * stream
        if has_attention(m, i):
            x = x + attention(deck, p, i, norm(x, eps), tokens, settings)
        x = x + mlp(p, i, norm(x, eps))
        kept.append(x)
    if m["backout_from"] >= 0:
        x = x - p["backout"] * kept[m["backout_from"]]
    return norm(x, eps)


def weighted_loss(logits, targets, weights, surplus):
    """Sum over the rows of sum_k weight_k (logsumexp - logit of the target k later). Targets behind the end are left
    out; with `surplus` their weights still pull at the gradient of logsumexp."""
    lse, loss = logits.logsumexp(-1), 0.0
    for k, weight in enumerate(weights):
        rows = len(targets) - k
        loss = loss + weight * (lse[:rows] - logits[torch.arange(rows), targets[k:]]).sum()
        if surplus:
            loss = loss + weight * (lse[rows:] - lse[rows:].detach()).sum()
    return loss


def loss_of(deck, p, tokens, targets, settings):
    """Summed loss of a sequence."""
    logits = capped(deck["model"], F.linear(final_stream(deck, p, tokens, settings), p["head"]))
    return weighted_loss(logits, targets, settings.weights, deck["train"]["surplus_weights"])


# ---------------------------------------------------------------- optimizer

class Optimizer:
    def __init__(self, deck, p):
        self.deck, self.p = deck, p
        self.kind = {name: row[1] for name, row in parameter_table(deck["model"]).items()}
        self.muon = {name: self.units(name, w) for name, w in p.items() if self.rule(name) == "muon"}
        self.adam = {name: Adam(w) for name, w in p.items() if name not in self.muon}
        self.sums = {name: torch.zeros_like(p[name]) for name in self.adam}

    def rule(self, name):
        group = self.deck.group(name)
        automatic = "muon" if self.kind[name] == "matrix" else "adam"
        return group["rule"] if group and group["rule"] != "auto" else automatic

    def hyper(self, name):
        """Rate, betas and decay: the group's, or those of [optimizer]."""
        o, group = self.deck["optimizer"], self.deck.group(name)
        if group:
            return group
        rates = {"matrix": o["muon_lr"], "embedding": o["lr_embedding"], "head": o["lr_head"], "scalar": o["lr_scalar"]}
        return {"lr": rates[self.kind[name]], "beta1": o["adam_beta1"], "beta2": o["adam_beta2"], "decay": 0}

    @torch.no_grad()
    def units(self, name, w):
        """W_q, W_k, W_v apart, the first two in blocks of heads if the deck says so; any other tensor whole. The second
        moment is of the longer side's lines, of gates always of rows, their heads."""
        rows, cols = w.shape
        if not name.endswith(".qkv"):
            return [Muon(slice(0, rows), w, rows >= cols or self.kind[name] == "scalar")]
        block = self.deck["optimizer"]["muon_block_heads"] * self.deck["model"]["head_dim"] or cols
        cuts = [*range(0, 2 * cols, block), 2 * cols, rows]
        return [Muon(slice(a, b), w[a:b], b - a >= cols) for a, b in zip(cuts, cuts[1:])]

    def tied(self, step):
        until = self.deck["train"]["untie_step"]
        return self.deck["model"]["tied_head"] and (until == 0 or step <= until)

    @torch.no_grad()
    def step(self, step):
        """Updates with the gradients in .grad; Adam's once in adam_period steps, with their sum."""
        o, factor = self.deck["optimizer"], rate_factor(self.deck, step)
        for name, units in self.muon.items():
            w = self.p[name]
            matrix = w.shape[1] if name.endswith(".qkv") else w.shape[0]
            rate = self.hyper(name)["lr"] * factor * math.sqrt(max(1.0, matrix / w.shape[1]))
            for unit in units:
                unit.update(o, w, w.grad, momentum(self.deck, step), rate, factor)
        for name, total in self.sums.items():
            total.add_(self.p[name].grad)
        if step % o["adam_period"] == o["adam_period"] - 1:
            self.adam_step(factor, self.tied(step))
        if self.tied(step) and step == self.deck["train"]["untie_step"]:
            self.adam["embedding"] = self.adam["head"].copy()

    def adam_step(self, factor, tied):
        if tied:
            self.sums["head"].add_(self.sums["embedding"])
        for name, adam in self.adam.items():
            if tied and name == "embedding":
                continue
            hyper = self.hyper(name)
            adam.update(self.deck["optimizer"], self.p[name], self.sums[name], hyper["lr"] * factor, hyper)
        if tied:
            self.p["embedding"].copy_(self.p["head"])
        for total in self.sums.values():
            total.zero_()


# ---------------------------------------------------------------- training

def gradients(deck, p, sequences, settings):
    """Loss per token of `sequences`, each of length + 1 tokens; .grad has the mean over them of what is differentiated."""
    total = 0.0
    for w in p.values():
        w.grad = torch.zeros_like(w)
    for tokens in sequences:
        loss, length = loss_of(deck, p, tokens[:-1], tokens[1:], settings), len(tokens) - 1
        (loss / len(sequences) / (length if deck["train"]["loss"] == "mean" else 1)).backward()
        total += loss.item() / length / len(sequences)
    return total


def train(deck, shard, alive):
    """Sequences are consecutive cuts of the shard, each with its own last target."""
    p = first_values(deck, alive)
    optimizer = Optimizer(deck, p)
    result, at = {"losses": [], "initial_norms": norms(p)}, 0
    for step in range(deck["train"]["steps"]):
        length = deck.stages[stage_at(deck, step)]["length"] + 1
        sequences = [torch.from_numpy(shard[at + j * length : at + (j + 1) * length].astype(np.int64))
                     for j in range(deck["train"]["sequences"])]
        at += len(sequences) * length
        if at > len(shard):
            raise SystemExit("out of data: more tokens or fewer steps are needed")
        result["losses"].append(gradients(deck, p, sequences, Settings(deck, step)))
        if step == 0:
            result["gradient_norms_step1"] = norms({name: w.grad for name, w in p.items()})
        optimizer.step(step)
    result["final_norms"] = norms(p)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--bin", required=True, help="token shard")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--alive", action="store_true", help="what starts at zero starts at random")
    arguments = parser.parse_intermixed_args()
    deck = Deck(arguments.deck, arguments.overrides)
    result = {"deck": Path(arguments.deck).name, "overrides": arguments.overrides, "precision": "double",
              "end_of_text": END_OF_TEXT, "alive": ALIVE if arguments.alive else {}}
    golden_file.write(arguments.out, result | train(deck, reference.read_shard(arguments.bin), arguments.alive))


if __name__ == "__main__":
    main()
