#!/usr/bin/env python3
"""The plain GPT and its optimizers in PyTorch and double, for golden files: model.residual = "plain" with its switches,
AdamW and Muon with plain or cautious decay, warm-up, tied heads, rows of a fixed length, averages of weights, an outer
Nesterov step, gradients of matrices in bf16.

It shares with reference.py the reading of decks and shards and the formula of initial values, with reference89.py the
numbers of Polar Express and the six maps and the rounding to bf16. Gradients come from autograd. README.md states the
conventions.
"""

import argparse
import fnmatch
import math
import tomllib
from pathlib import Path

import golden_file
import reference
import torch
import torch.nn.functional as F
from record89.numbers import bf16
from record89.optimizer import POLAR_EXPRESS, SIX_MAPS

END_OF_TEXT = 499
# Of these keys alone a deck may have others than the program's defaults.
DEFAULTS = {
    "run": {"seed": 1, "name": ""},
    "model": {
        "vocabulary": 50257, "width": 768, "heads": 6, "head_dim": 128, "layers": 12, "mlp_ratio": 4,
        "norm_eps": 0.0078125, "rotary": "half_truncated", "rotary_base": 1024, "attention_scale": 0, "softcap": 15,
        "softcap_kind": "tanh", "softcap_shift": 0, "softcap_width": 1, "init_scale": 1, "init_std": 0,
        "init_std_outputs": 0, "zero_outputs": True, "zero_attention_outputs": True, "init_embedding": 1,
        "tied_head": False, "residual": "plain", "embedding_norm": True, "norm_gains": False, "biases": False,
        "head_bias": False, "qk_norm": True,
        "value_path": "none",
    },
    "head": {"precision": "fp32"},
    "window": {"kind": "token", "layers": "L", "first": 0, "last": 0, "quantum": 128},
    "train": {
        "steps": 20, "sequences": 2, "length": 512, "warmup": 0, "cooldown": 0.4, "cooldown_shape": "linear",
        "final_lr_factor": 0.1, "loss": "mean", "untie_step": 0,
    },
    "validation": {"every": 0, "tokens": 0, "length": 0},
    "data": {"packing": "stream", "row_length": 1024},
    "optimizer": {
        "matrix_rule": "muon", "decay_kind": "cautious", "muon_lr": 0.05, "muon_momentum_first": 0.85,
        "muon_momentum_last": 0.95, "muon_momentum_steps": 300, "orthogonalisation": "newton_schulz",
        "orthogonalisation_maps": [], "orthogonalisation_steps": 0, "muon_decay": 0, "adam_beta1": 0.8,
        "adam_beta2": 0.95, "adam_eps": 1e-10, "lr_matrix": 0.0006, "lr_embedding": 0.6, "lr_head": 0.008,
        "lr_scalar": 0.04, "clip_norm": 0, "outer_every": 0, "outer_lr": 0.7, "outer_momentum": 0.5,
        "matrix_gradients": "fp32",
    },
}
GROUP = {"tensors": [], "lr": 0, "beta1": 0.8, "beta2": 0.95, "decay": 0}
AVERAGE = {"tensors": [], "from_last": 0, "every": 1, "rate": 0, "blend": 1}


class Deck(dict):
    """A deck by section and key, with the program's defaults; its [[group]] and [[average]] as lists."""

    def __init__(self, path, overrides=()):
        given = tomllib.loads(Path(path).read_text())
        for override in overrides:
            name, text = override.split("=", 1)
            section, key = name.split(".")
            given.setdefault(section, {})[key] = reference.toml_value(text)
        groups, averages = given.pop("group", []), given.pop("average", [])
        for section, keys in given.items():
            unknown = set(keys) - set(DEFAULTS[section])
            if unknown:
                raise SystemExit(f"{path}: [{section}] has keys that this program does not know: {sorted(unknown)}")
        super().__init__({name: DEFAULTS[name] | given.get(name, {}) for name in DEFAULTS})
        self.groups = [GROUP | group for group in groups]
        self.averages = [AVERAGE | average for average in averages]

    def group(self, name):
        """The first group with a pattern that matches, or None."""
        return next((g for g in self.groups if any(fnmatch.fnmatchcase(name, p) for p in g["tensors"])), None)


# ---------------------------------------------------------------- parameters

def parameter_table(m):
    """name: (shape, kind, how it starts), where kind chooses the default rate."""
    d, hidden = m["width"], m["mlp_ratio"] * m["width"]
    padded = -(-m["vocabulary"] // 128) * 128

    def start(fan_in, std):
        return ("normal", std) if m["init_std"] > 0 else ("uniform", m["init_scale"] / math.sqrt(fan_in))

    zero = ("constant", 0.0)
    out_std = m["init_std_outputs"] or m["init_std"]
    attention_out = zero if m["zero_outputs"] and m["zero_attention_outputs"] else start(d, out_std)
    mlp_out = zero if m["zero_outputs"] else start(hidden, out_std)
    gain, bias = ("constant", 1.0), zero
    rows = {}
    if m["tied_head"]:
        rows["head"] = ((padded, d), "head", ("normal", m["init_embedding"]))
        rows["embedding"] = ((padded, d), "embedding", ("normal", m["init_embedding"]))
    else:
        head = zero if m["zero_outputs"] else ("uniform", m["init_scale"] / math.sqrt(d))
        rows["head"] = ((padded, d), "head", head)
        rows["embedding"] = ((m["vocabulary"], d), "embedding", ("normal", m["init_embedding"]))
    if m["norm_gains"] and m["embedding_norm"]:
        rows["embedding_gain"] = ((d,), "scalar", gain)
    for i in range(m["layers"]):
        block = f"block.{i}."
        rows[block + "qkv"] = ((3 * d, d), "matrix", start(d, m["init_std"]))
        rows[block + "attention_out"] = ((d, d), "matrix", attention_out)
        rows[block + "mlp_in"] = ((hidden, d), "matrix", start(d, m["init_std"]))
        rows[block + "mlp_out"] = ((d, hidden), "matrix", mlp_out)
        if m["norm_gains"]:
            rows[block + "attention_gain"] = ((d,), "scalar", gain)
            rows[block + "mlp_gain"] = ((d,), "scalar", gain)
        if m["biases"]:
            for name, features in (("qkv", 3 * d), ("attention_out", d), ("mlp_in", hidden), ("mlp_out", d)):
                rows[f"{block}{name}_bias"] = ((features,), "scalar", bias)
    if m["norm_gains"]:
        rows["final_gain"] = ((d,), "scalar", gain)
    if m["head_bias"]:
        rows["head_bias"] = ((padded,), "scalar", bias)
    return rows


def first_values(deck):
    values = {}
    for name, (shape, _, (how, number)) in parameter_table(deck["model"]).items():
        stream = "head" if name == "embedding" and deck["model"]["tied_head"] else name
        if how == "constant":
            value = torch.full(shape, number)
        elif how == "uniform":
            value = reference.draw(deck["run"]["seed"], stream, shape, "uniform", number)
        else:
            value = reference.draw(deck["run"]["seed"], stream, shape, "normal", 1) * number
        values[name] = value.double().requires_grad_()
    return values


# ---------------------------------------------------------------- model

def norm(x, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turned(x, frequency, position):
    """Rotary embedding of x [T, H, D], whose pairs are (j, j + D/2), by the position [T, 1 or H]."""
    angle = position[..., None] * frequency
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()), -1)


def frequencies(m):
    pairs = m["head_dim"] // 2
    if m["rotary"] == "full":
        return torch.tensor([m["rotary_base"] ** (-j / pairs) for j in range(pairs)], dtype=torch.float64)
    half = pairs // 2
    return torch.tensor([m["rotary_base"] ** (-j / (half - 1)) if j < half else 0.0 for j in range(pairs)],
                        dtype=torch.float64)


def visible(deck, tokens, window):
    """[T, T]: whether a query (row) sees a key (column)."""
    t = torch.arange(len(tokens))
    rows = deck["data"]["packing"] == "rows"
    document = t // deck["data"]["row_length"] if rows else (tokens == END_OF_TEXT).cumsum(0)
    distance = t[:, None] - t[None, :]
    return (distance >= 0) & (distance < window) & (document[:, None] == document[None, :])


def capped(m, z):
    c = m["softcap"]
    return {"tanh": lambda: c * torch.tanh(z / c), "none": lambda: z, "isru": lambda: c * z / (z * z + c * c).sqrt(),
            "sigmoid": lambda: c * torch.sigmoid((z + m["softcap_shift"]) / m["softcap_width"])}[m["softcap_kind"]]()


def loss_of(deck, p, tokens, targets, window):
    """Mean cross-entropy of a sequence."""
    m = deck["model"]
    gain = (lambda name: p[name]) if m["norm_gains"] else (lambda name: 1.0)
    bias = (lambda name: p[name + "_bias"]) if m["biases"] else (lambda name: None)
    length, heads, width = len(tokens), m["heads"], m["head_dim"]
    hidden = torch.full((length, length), -math.inf, dtype=torch.float64)
    hidden[visible(deck, tokens, window)] = 0
    scale = m["attention_scale"] or width**-0.5
    frequency, position = frequencies(m), torch.arange(length)[:, None]
    x = p["embedding"][tokens]
    if m["embedding_norm"]:
        x = gain("embedding_gain") * norm(x, m["norm_eps"])
    for i in range(m["layers"]):
        b = f"block.{i}."
        n = gain(b + "attention_gain") * norm(x, m["norm_eps"])
        q, k, v = F.linear(n, p[b + "qkv"], bias(b + "qkv")).view(length, 3, heads, width).unbind(1)
        q, k = (norm(y, m["norm_eps"]) if m["qk_norm"] else y for y in (q, k))
        q, k = (turned(y, frequency, position) for y in (q, k))
        scores = scale * torch.einsum("qhd,khd->hqk", q, k) + hidden
        y = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)
        x = x + F.linear(y, p[b + "attention_out"], bias(b + "attention_out"))
        n = gain(b + "mlp_gain") * norm(x, m["norm_eps"])
        h = F.linear(n, p[b + "mlp_in"], bias(b + "mlp_in")).clamp(min=0) ** 2
        x = x + F.linear(h, p[b + "mlp_out"], bias(b + "mlp_out"))
    x = gain("final_gain") * norm(x, m["norm_eps"])
    return F.cross_entropy(capped(m, F.linear(x, p["head"], p["head_bias"] if m["head_bias"] else None)), targets)


# ---------------------------------------------------------------- optimizer

# By name: factor of the norm and what is added to it, then a, b and c of each step.
ITERATIONS = {
    "newton_schulz": (1, 1e-7, [(3.4445, -4.7750, 2.0315)] * 5),
    "polar_express": (1.02, 1e-6, POLAR_EXPRESS),
    "six_maps": (1.02, 1e-6, SIX_MAPS),
}


def polar(o, x):
    factor, more, steps = ITERATIONS[o["orthogonalisation"]]
    numbers = o["orthogonalisation_maps"]
    if numbers:
        steps = [tuple(numbers[i : i + 3]) for i in range(0, len(numbers), 3)]
    count = o["orthogonalisation_steps"] or len(steps)
    x = x / (factor * x.norm() + more)
    for s in range(count):
        a, b, c = steps[min(s, len(steps) - 1)]
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


class Optimizer:
    def __init__(self, deck, p):
        self.deck, self.p = deck, p
        self.kind = {name: row[1] for name, row in parameter_table(deck["model"]).items()}
        self.state = {name: [torch.zeros_like(w), torch.zeros_like(w)] for name, w in p.items()}
        self.norms = []  # of each step's gradients, where the deck clips

    def rate_factor(self, step):
        train = self.deck["train"]
        left = (train["steps"] - step) / max(train["cooldown"] * train["steps"], 1e-300)
        factor = 1.0
        if left < 1:
            fallen = 0.5 * (1 - math.cos(math.pi * left)) if train["cooldown_shape"] == "cosine" else left
            factor = fallen + (1 - fallen) * train["final_lr_factor"]
        return factor * (min(1.0, (step + 1) / train["warmup"]) if train["warmup"] else 1.0)

    def hyper(self, name):
        """Rate, betas and decay of a tensor."""
        o, group = self.deck["optimizer"], self.deck.group(name)
        if group:
            return group["lr"], group["beta1"], group["beta2"], group["decay"]
        matrix = o["muon_lr"] if o["matrix_rule"] == "muon" else o["lr_matrix"]
        rates = {"matrix": matrix, "embedding": o["lr_embedding"], "head": o["lr_head"], "scalar": o["lr_scalar"]}
        return rates[self.kind[name]], o["adam_beta1"], o["adam_beta2"], 0.0

    @torch.no_grad()
    def step(self, step):
        train = self.deck["train"]
        tied = self.deck["model"]["tied_head"] and (train["untie_step"] == 0 or step <= train["untie_step"])
        if tied:
            self.p["head"].grad += self.p["embedding"].grad
        self.clip([w for name, w in self.p.items() if not tied or name != "embedding"])
        for name, w in self.p.items():
            if tied and name == "embedding":
                continue
            if self.kind[name] == "matrix" and self.deck["optimizer"]["matrix_rule"] == "muon":
                self.muon(name, w, step)
            else:
                self.adam(name, w, step)
        if tied:
            self.p["embedding"].copy_(self.p["head"])
            if step == train["untie_step"]:
                self.state["embedding"] = [s.clone() for s in self.state["head"]]

    def clip(self, tensors):
        """By the norm of all gradients."""
        most = self.deck["optimizer"]["clip_norm"]
        if not most:
            return
        norm = math.sqrt(sum(w.grad.square().sum().item() for w in tensors))
        self.norms.append(norm)
        for w in tensors:
            w.grad *= min(1.0, most / norm)
        self.round_gradients()

    @torch.no_grad()
    def round_gradients(self):
        """Those of matrices, where the deck keeps them in bf16: behind each sequence and behind clipping."""
        if self.deck["optimizer"]["matrix_gradients"] != "bf16":
            return
        for name, w in self.p.items():
            if self.kind[name] == "matrix":
                w.grad = bf16(w.grad)

    def decayed(self, w, update, plain, cautious, agrees):
        """w less its update and its decay, by the coefficient of the deck's kind of decay. `agrees`: of update * w."""
        if self.deck["optimizer"]["decay_kind"] == "plain":
            return w - update - plain * w
        return w - update - cautious * w * agrees(update * w)

    def adam(self, name, w, step):
        rate, beta1, beta2, decay = self.hyper(name)
        rate, t = rate * self.rate_factor(step), step + 1
        m, v = self.state[name]
        m.mul_(beta1).add_(w.grad, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
        update = rate * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + self.deck["optimizer"]["adam_eps"])
        w.copy_(self.decayed(w, update, rate * decay, rate * rate * decay, lambda x: x > 0))

    def muon(self, name, w, step):
        o = self.deck["optimizer"]
        warm = min(1.0, step / o["muon_momentum_steps"])
        momentum = (1 - warm) * o["muon_momentum_first"] + warm * o["muon_momentum_last"]
        buffer, factor = self.state[name][0], self.rate_factor(step)
        buffer.mul_(momentum).add_(w.grad, alpha=1 - momentum)
        update = (1 - momentum) * w.grad + momentum * buffer
        rows, rate = (w.shape[1] if name.endswith("qkv") else w.shape[0]), self.hyper(name)[0] * factor
        for first in range(0, w.shape[0], rows):
            part = slice(first, first + rows)
            shaped = rate * math.sqrt(max(1.0, rows / w.shape[1]))
            moved = shaped * polar(o, update[part])
            w[part] = self.decayed(w[part], moved, rate * o["muon_decay"],
                                   shaped * o["muon_decay"] * o["muon_lr"] * factor, lambda x: x >= 0)


class OuterNesterov:
    """SGD with Nesterov momentum by PyTorch on the sums of some updates."""

    def __init__(self, deck, p):
        o = deck["optimizer"]
        self.every, self.p = o["outer_every"], list(p.values())
        self.slow = [w.detach().clone().requires_grad_() for w in self.p]
        if self.every:
            self.sgd = torch.optim.SGD(self.slow, lr=o["outer_lr"], momentum=o["outer_momentum"],
                                       nesterov=o["outer_momentum"] > 0)

    @torch.no_grad()
    def step(self, step):
        if not self.every or (step + 1) % self.every:
            return
        for w, slow in zip(self.p, self.slow):
            slow.grad = slow - w
        self.sgd.step()
        for w, slow in zip(self.p, self.slow):
            w.copy_(slow)


class Averages:
    """Averages of the weights over the last steps, and the finished weights that they give."""

    def __init__(self, deck, p):
        self.deck, self.p = deck, p
        self.kept = [{} for _ in deck.averages]  # by name: the rows of a tensor, their average

    def covered(self, average):
        """Tensors, or matrices of Q, K or V: their name, tensor and rows."""
        for name, w in self.p.items():
            parts = [(name, slice(None))]
            if name.endswith("qkv"):
                d = w.shape[1]
                parts += [(f"{name}.{letter}", slice(i * d, (i + 1) * d)) for i, letter in enumerate("qkv")]
            for part, rows in parts:
                if any(fnmatch.fnmatchcase(part, pattern) for pattern in average["tensors"]):
                    yield part, name, rows
                    if part == name:
                        break

    @torch.no_grad()
    def take(self, step):
        steps = self.deck["train"]["steps"]
        for average, kept in zip(self.deck.averages, self.kept):
            since = step - (steps - average["from_last"])
            if since < 0 or (since % average["every"] and step != steps - 1):
                continue
            for part, name, rows in self.covered(average):
                w = self.p[name][rows]
                kept[part] = w.clone() if since == 0 else torch.lerp(kept[part], w, average["rate"])

    @torch.no_grad()
    def finish(self):
        for average, kept in zip(self.deck.averages, self.kept):
            for part, name, rows in self.covered(average):
                self.p[name][rows] = torch.lerp(self.p[name][rows], kept[part], average["blend"])


# ---------------------------------------------------------------- training

def norms(tensors):
    return {name: t.detach().norm().item() for name, t in tensors.items()}


def train(deck, shards):
    p = first_values(deck)
    optimizer, outer, averages = Optimizer(deck, p), OuterNesterov(deck, p), Averages(deck, p)
    result = {"losses": [], "initial_norms": norms(p)}
    length, sequences = deck["train"]["length"], deck["train"]["sequences"]
    stream = reference.step_tokens(shards, sequences * length)
    assert deck["window"]["first"] == deck["window"]["last"] and deck["window"]["kind"] == "token"
    window = deck["window"]["last"]

    def losses_of(tokens):
        for at in range(0, sequences * length, length):
            yield loss_of(deck, p, tokens[at : at + length], tokens[at + 1 : at + length + 1], window)

    for step in range(deck["train"]["steps"]):
        tokens = next(stream)
        for w in p.values():
            w.grad = torch.zeros_like(w)
        losses = []
        for loss in losses_of(tokens):
            (loss * (length if deck["train"]["loss"] == "sum" else 1) / sequences).backward()
            optimizer.round_gradients()
            losses.append(loss.item())
        result["losses"].append(sum(losses) / sequences)
        if step == 0:
            result["gradient_norms_step1"] = norms({name: w.grad for name, w in p.items()})
        optimizer.step(step)
        outer.step(step)
        averages.take(step)
    result["final_norms"] = norms(p)
    if optimizer.norms:
        result["global_norms"] = optimizer.norms
    if deck.averages:
        averages.finish()
        result["finished_loss"] = sum(loss.item() for loss in losses_of(next(stream))) / sequences
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--bin", required=True, help="token shards, separated by commas")
    parser.add_argument("--out", required=True, help="JSON file to write")
    arguments = parser.parse_intermixed_args()
    deck = Deck(arguments.deck, arguments.overrides)
    result = {"deck": Path(arguments.deck).name, "overrides": arguments.overrides, "precision": "double",
              "end_of_text": END_OF_TEXT} | train(deck, arguments.bin.split(","))
    golden_file.write(arguments.out, result)


if __name__ == "__main__":
    main()
