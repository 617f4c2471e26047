#!/usr/bin/env python3
"""Independent PyTorch implementation of the training recipe, for golden files and comparisons.

It shares nothing with the C++ program but the deck and the formula of the initial values. Attention uses dense masks
and gradients come from autograd. Work is in fp32, or in double with --double. README.md states the conventions.
"""

import argparse
import math
import resource
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import golden_file
import numpy as np
import torch
import torch.nn.functional as F
from later_keys import LATER

# The keys that decide the computation, with the defaults of the program; other sections of a deck are ignored.
DEFAULTS = {
    "run": {"seed": 1, "name": "run", "outputs": "outputs", "log_every": 10, "gpu_every": 10, "reproducible": False},
    "model": {
        "vocabulary": 50257, "width": 768, "heads": 6, "head_dim": 128, "layers": 12, "mlp_ratio": 4, "init_scale": 1,
        "norm_eps": 0.0078125, "value_path": "embeddings", "value_embeddings": 3, "layers_without_attention": [],
        "rotary": "half_truncated", "rotary_base": 1024, "attention_scale": 0, "softcap": 15, "zero_outputs": True,
    },
    "head": {"precision": "auto", "scale_x": 2, "scale_w": 512, "scale_g": 524288, "scale_g_length": 49152},
    "window": {"kind": "block", "layers": "L", "first": 0, "last": 1728, "quantum": 128, "rounding": "ceil"},
    "train": {
        "steps": 1770, "sequences": 8, "length": 49152, "cooldown": 0.4, "final_lr_factor": 0.1,
        "recompute": "none",  # changes memory, not results
    },
    "optimizer": {
        "muon_lr": 0.05, "muon_momentum_first": 0.85, "muon_momentum_last": 0.95, "muon_momentum_steps": 300,
        "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_eps": 1e-10, "lr_embedding": 0.6, "lr_head": 0.008,
        "lr_scalar": 0.04, "lr_skip": 0.04,
    },
}
BLOCK = 128  # tokens of an attention block; also the multiple to which the head's columns are padded


# ---------------------------------------------------------------- deck

def toml_value(text):
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_deck(path, overrides):
    """The deck as nested namespaces, deck.section.key; an unknown key of a known section is an error."""
    given = tomllib.loads(Path(path).read_text())
    for override in overrides:
        name, text = override.split("=", 1)
        section, key = name.split(".")
        given.setdefault(section, {})[key] = toml_value(text)
    sections = {}
    for section, defaults in DEFAULTS.items():
        later = LATER.get(section, {})
        unknown = {key for key, value in given.get(section, {}).items()
                   if key not in defaults and (key not in later or later[key] != value)}
        if unknown:
            raise SystemExit(f"{path}: unknown keys in [{section}]: {sorted(unknown)}")
        known = {key: value for key, value in given.get(section, {}).items() if key in defaults}
        sections[section] = SimpleNamespace(**(defaults | known))
    return SimpleNamespace(**sections)


def padded_vocabulary(model):
    return -(-model.vocabulary // BLOCK) * BLOCK


# ---------------------------------------------------------------- initial values

def splitmix64(z):
    """Elementwise on a uint64 array."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def stream_key(seed, name):
    return splitmix64(np.array([(seed % 2**64) ^ fnv1a64(name)], dtype=np.uint64))


def uniforms(key, index):
    """u(i) in [0, 1) for a uint64 array of counters i."""
    bits = splitmix64(key + index * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(seed, name, shape, distribution, bound):
    """fp32 tensor from the counter-based stream of its name: "normal", or "uniform" on (-bound, bound)."""
    key = stream_key(seed, name)
    out = np.empty(math.prod(shape), dtype=np.float32)
    for start in range(0, out.size, 1 << 20):  # in pieces, to keep the double temporaries small
        i = np.arange(start, min(start + (1 << 20), out.size), dtype=np.uint64)
        if distribution == "uniform":
            values = bound * (2.0 * uniforms(key, i) - 1.0)
        else:
            radius = np.sqrt(-2.0 * np.log(1.0 - uniforms(key, 2 * i)))
            values = radius * np.cos(2.0 * math.pi * uniforms(key, 2 * i + np.uint64(1)))
        out[start:start + i.size] = values
    return torch.from_numpy(out).view(*shape)


def parameter_table(model):
    """Rows (name, shape, optimizer group, initial value); a number or a list is the value itself."""
    d, hidden, layers = model.width, model.mlp_ratio * model.width, model.layers
    output = 0.0 if model.zero_outputs else "uniform"
    embedded = model.value_embeddings if model.value_path == "embeddings" else 0
    rows = [("embedding", (model.vocabulary, d), "embedding", "normal")]
    rows += [(f"value_embedding.{j}", (model.vocabulary, d), "embedding", "normal") for j in range(embedded)]
    for i in range(layers):
        if i not in model.layers_without_attention:
            mix = [0.5] if model.value_path == "first" else [0.5, 0.5]
            rows.append((f"block.{i}.qkv", (3 * d, d), "muon", "uniform"))
            rows.append((f"block.{i}.attention_out", (d, d), "muon", output))
            rows.append((f"block.{i}.value_mix", (len(mix),), "scalar", mix))
        rows.append((f"block.{i}.mlp_in", (hidden, d), "muon", "uniform"))
        rows.append((f"block.{i}.mlp_out", (d, hidden), "muon", output))
        rows.append((f"block.{i}.residual_mix", (2,), "scalar", [1.0, 0.0]))
    rows += [(f"skip.{j}", (1,), "skip", 1.0) for j in range(layers // 2)]
    rows.append(("head", (padded_vocabulary(model), d), "head", output))
    return rows


def make_parameters(deck, dtype):
    """(parameters by name, optimizer group by name)."""
    parameters, groups = {}, {}
    for name, shape, group, initial in parameter_table(deck.model):
        if isinstance(initial, str):
            bound = deck.model.init_scale / math.sqrt(shape[-1])
            value = draw(deck.run.seed, name, shape, initial, bound)
        else:
            value = torch.tensor(initial).expand(*shape)
        parameters[name] = value.to(dtype, copy=True).contiguous().requires_grad_()
        groups[name] = group
    return parameters, groups


# ---------------------------------------------------------------- 8-bit formats

def round_to_fp8(x, mantissa_bits, smallest_exponent, largest):
    """Nearest value of an 8-bit format, ties to even, saturating; normal values start at 2^smallest_exponent."""
    x = x.float()
    drop = 23 - mantissa_bits
    bits = x.view(torch.int32)
    normal = (bits + ((bits >> drop) & 1) + ((1 << (drop - 1)) - 1)) & -(1 << drop)
    # Adding a number whose unit in the last place is the subnormal step rounds to that step.
    shift = 1.5 * 2.0 ** (23 + smallest_exponent - mantissa_bits)
    subnormal = (x + shift) - shift
    rounded = torch.where(x.abs() < 2.0**smallest_exponent, subnormal, normal.view(torch.float32))
    return rounded.clamp_(-largest, largest)


def e4m3(x):
    return round_to_fp8(x, mantissa_bits=3, smallest_exponent=-6, largest=448.0)


def e5m2(x):
    return round_to_fp8(x, mantissa_bits=2, smallest_exponent=-14, largest=57344.0)


class Fp8Linear(torch.autograd.Function):
    """z = bf16(e4m3(x sx) e4m3(w sw)^T / (sx sw)), with the gradient of z in e5m2."""

    @staticmethod
    def forward(ctx, x, w, sx, sw, sg):
        xq, wq = e4m3(x * sx).to(x.dtype), e4m3(w * sw).to(w.dtype)
        ctx.save_for_backward(xq, wq)
        ctx.scales = sx, sw, sg
        return (F.linear(xq, wq) / (sx * sw)).bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        xq, wq = ctx.saved_tensors
        sx, sw, sg = ctx.scales
        gq = e5m2(g * sg).to(g.dtype)
        return (gq @ wq) / (sg * sw), (gq.T @ xq) / (sg * sx), None, None, None


# ---------------------------------------------------------------- model

def rms_norm(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotary_tables(model, length, dtype):
    """cos and sin [T, D/2] of the position in the sequence."""
    pairs = model.head_dim // 2
    if model.rotary == "full":
        frequency = model.rotary_base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    else:
        turning = (1 / model.rotary_base) ** torch.linspace(0, 1, pairs // 2, dtype=torch.float64)
        frequency = torch.cat([turning, torch.zeros(pairs - pairs // 2, dtype=torch.float64)])
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cos, sin):
    """x [H, T, D]; the pairs are (x[j], x[j + D/2])."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], dim=-1)


def attention_mask(document, window, dtype):
    """[T, T], 0 where query (row) sees key (column) and -inf elsewhere; window = (kind, tokens or blocks)."""
    kind, reach = window
    position = torch.arange(document.numel())
    q, k = position[:, None], position[None, :]
    near = q - k < reach if kind == "token" else q // BLOCK - k // BLOCK < reach
    seen = (q >= k) & (document[:, None] == document[None, :]) & near
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)


class Model:
    def __init__(self, deck, parameters, end_of_text):
        self.deck, self.model, self.p, self.end_of_text = deck, deck.model, parameters, end_of_text
        self.dtype = parameters["embedding"].dtype
        self.scale = self.model.attention_scale or 1 / math.sqrt(self.model.head_dim)
        self.table = rotary_tables(self.model, deck.train.length, self.dtype)
        layout = deck.window.layers
        self.layout = layout * self.model.layers if len(layout) == 1 else layout

    def loss(self, tokens, targets, windows, reduction="mean"):
        """Mean cross-entropy of one sequence, or that of each token; windows: {"L": window, "S": window}."""
        model, p = self.model, self.p
        document = (tokens == self.end_of_text).cumsum(0)
        masks = {c: attention_mask(document, windows[c], self.dtype) for c in set(self.layout)}
        x = x0 = rms_norm(F.embedding(tokens, p["embedding"]), model.norm_eps)
        half, skips, self.first_value = model.layers // 2, [], None
        for i in range(model.layers):
            if i >= half:
                x = x + p[f"skip.{i - half}"] * skips.pop()
            x = self.block(i, x, x0, tokens, masks[self.layout[i]])
            if i < half:
                skips.append(x)
        return self.head_loss(rms_norm(x, model.norm_eps), targets, reduction)

    def block(self, i, x, x0, tokens, mask):
        p, eps = self.p, self.model.norm_eps
        a = p[f"block.{i}.residual_mix"]
        x = a[0] * x + a[1] * x0
        if i not in self.model.layers_without_attention:
            x = x + self.attention(i, rms_norm(x, eps), tokens, mask)
        hidden = F.relu(F.linear(rms_norm(x, eps), p[f"block.{i}.mlp_in"])).square()
        return x + F.linear(hidden, p[f"block.{i}.mlp_out"])

    def attention(self, i, x, tokens, mask):
        model, p = self.model, self.p
        length = x.shape[0]
        qkv = F.linear(x, p[f"block.{i}.qkv"]).view(length, 3 * model.heads, model.head_dim).transpose(0, 1)
        q, k, v = qkv.chunk(3)  # each [H, T, D]
        cos, sin = (t[:length] for t in self.table)
        q = rotate(rms_norm(q, model.norm_eps), cos, sin)
        k = rotate(rms_norm(k, model.norm_eps), cos, sin)
        v = self.mixed_value(i, v, tokens)
        score = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=self.scale)
        y = torch.bmm(score.softmax(-1), v).transpose(0, 1).reshape(length, model.width)
        return F.linear(y, p[f"block.{i}.attention_out"])

    def mixed_value(self, i, v, tokens):
        model, l = self.model, self.p[f"block.{i}.value_mix"]
        if model.value_path == "first":
            if self.first_value is None:
                self.first_value = v
            return (1 - l[0]) * v + l[0] * self.first_value
        j = self.value_embedding_of(i)
        if j is None:
            return l[0] * v
        embedded = F.embedding(tokens, self.p[f"value_embedding.{j}"])
        return l[0] * v + l[1] * embedded.view(-1, model.heads, model.head_dim).transpose(0, 1)

    def value_embedding_of(self, i):
        """Table j serves layer j and layer L - count + j."""
        count = self.model.value_embeddings if self.model.value_path == "embeddings" else 0
        if i < count:
            return i
        j = i - (self.model.layers - count)
        return j if 0 <= j < count else None

    def head_loss(self, x, targets, reduction):
        head, w, cap = self.deck.head, self.p["head"], self.model.softcap
        if head.precision == "fp8":
            z = Fp8Linear.apply(x, w, head.scale_x, head.scale_w, head.scale_g)
        else:
            z = F.linear(x, w)
        return F.cross_entropy(cap * torch.tanh(z / cap), targets, reduction=reduction)


# ---------------------------------------------------------------- schedules

def learning_rate_factor(deck, step):
    train = deck.train
    x = step / train.steps
    if x < 1 - train.cooldown:
        return 1.0
    f = (1 - x) / train.cooldown
    return f + (1 - f) * train.final_lr_factor


def muon_momentum(deck, step):
    o = deck.optimizer
    f = min(step / o.muon_momentum_steps, 1) if o.muon_momentum_steps > 0 else 1
    return (1 - f) * o.muon_momentum_first + f * o.muon_momentum_last


def windows_at(deck, step):
    """Windows of the long and short layers, each (kind, tokens or blocks)."""
    w = deck.window
    rounding = math.floor if w.rounding == "floor" else math.ceil
    tokens = w.first + (w.last - w.first) * step / deck.train.steps
    tokens = max(1, rounding(tokens / w.quantum)) * w.quantum
    if w.kind == "token":
        return {"L": ("token", tokens), "S": ("token", max(w.quantum, tokens // 2))}
    blocks = max(1, tokens // BLOCK)
    return {"L": ("block", blocks), "S": ("block", max(1, blocks // 2))}


# ---------------------------------------------------------------- optimizer

def newton_schulz(x):
    """Approximate orthogonal factor of each matrix of x [n, rows, cols]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    """The qkv weights are three square matrices stacked; every other weight is one matrix."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.buffers = {name: torch.zeros_like(w) for name, w in parameters.items()}

    @torch.no_grad()
    def step(self, lr, momentum):
        for name, w in self.parameters.items():
            buffer = self.buffers[name].lerp_(w.grad, 1 - momentum)
            update = w.grad.lerp(buffer, momentum)
            rows = w.shape[1] if name.endswith(".qkv") else w.shape[0]
            factor = math.sqrt(max(1, rows / w.shape[1]))
            w.sub_(newton_schulz(update.view(-1, rows, w.shape[1])).reshape(w.shape), alpha=lr * factor)


class Optimizer:
    def __init__(self, deck, parameters, groups):
        self.deck, o = deck, deck.optimizer
        self.muon = Muon({n: p for n, p in parameters.items() if groups[n] == "muon"})
        rates = {"embedding": o.lr_embedding, "head": o.lr_head, "scalar": o.lr_scalar, "skip": o.lr_skip}
        members = [
            {"params": [p for n, p in parameters.items() if groups[n] == group], "lr": lr, "base_lr": lr}
            for group, lr in rates.items()
        ]
        self.adam = torch.optim.Adam([m for m in members if m["params"]], betas=(o.adam_beta1, o.adam_beta2),
                                     eps=o.adam_eps)

    def step(self, step):
        factor = learning_rate_factor(self.deck, step)
        for group in self.adam.param_groups:
            group["lr"] = group["base_lr"] * factor
        self.adam.step()
        self.muon.step(self.deck.optimizer.muon_lr * factor, muon_momentum(self.deck, step))


# ---------------------------------------------------------------- data

def read_shard(path):
    header = np.fromfile(path, dtype="<i4", count=256)
    if header.size < 256 or header[0] != 20240520 or header[1] != 1:
        raise SystemExit(f"{path}: not a version 1 token shard")
    tokens = np.memmap(path, dtype="<u2", mode="r", offset=1024)
    if tokens.size < header[2]:
        raise SystemExit(f"{path}: shorter than the {header[2]} tokens that its header names")
    return tokens[:header[2]]


def step_tokens(paths, count):
    """Yields count + 1 tokens per step; the last one is the first of the next step. A rest of a shard is skipped."""
    for path in paths:
        shard = read_shard(path)
        for start in range(0, len(shard) - count, count):
            yield torch.from_numpy(shard[start:start + count + 1].astype(np.int64))
    raise SystemExit("out of data: more shards or fewer steps are needed")


# ---------------------------------------------------------------- training

def train_step(model, parameters, tokens, windows):
    """Leaves the gradients averaged over the sequences; returns the mean loss."""
    train = model.deck.train
    losses = []
    for p in parameters.values():
        p.grad = None
    for j in range(train.sequences):
        start, stop = j * train.length, (j + 1) * train.length
        loss = model.loss(tokens[start:stop], tokens[start + 1:stop + 1], windows)
        loss.backward()  # unscaled: the fp8 gradient scale belongs to the mean over one sequence
        losses.append(loss.item())
    for p in parameters.values():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad.div_(train.sequences)
    return sum(losses) / len(losses)


def norms(tensors):
    return {name: t.detach().double().norm().item() for name, t in tensors.items()}


def train(deck, shards, steps, dtype, end_of_text, timing=False):
    """The results as a dictionary; `steps` may end a run early without changing its schedules."""
    parameters, groups = make_parameters(deck, dtype)
    model = Model(deck, parameters, end_of_text)
    optimizer = Optimizer(deck, parameters, groups)
    result = {"losses": [], "initial_norms": norms(parameters)}
    stream = step_tokens(shards, deck.train.sequences * deck.train.length)
    seconds = []
    for step in range(steps):
        start = time.perf_counter()
        loss = train_step(model, parameters, next(stream), windows_at(deck, step))
        if step == 0:
            result["gradient_norms_step1"] = norms({n: p.grad for n, p in parameters.items()})
        optimizer.step(step)
        seconds.append(time.perf_counter() - start)
        result["losses"].append(loss)
        if timing:
            print(f"step {step + 1} loss {loss:.6f} seconds {seconds[-1]:.3f}", flush=True)
    result["final_norms"] = norms(parameters)
    if timing:  # the first step allocates memory and is left out where there are others
        counted = seconds[1:] or seconds
        result["tokens_per_second"] = len(counted) * deck.train.sequences * deck.train.length / sum(counted)
        result["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--bin", required=True, help="token shards, separated by commas")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--steps-limit", type=int, help="stop early; the schedules still end at train.steps")
    parser.add_argument("--end-of-text", type=int, help="id of the end-of-text token (default: vocabulary - 1)")
    parser.add_argument("--double", action="store_true", help="work in double precision")
    parser.add_argument("--threads", type=int, help="threads of PyTorch")
    parser.add_argument("--timing", action="store_true", help="print steps; add tokens per second and peak memory")
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    deck = read_deck(arguments.deck, arguments.overrides)
    end_of_text = deck.model.vocabulary - 1 if arguments.end_of_text is None else arguments.end_of_text
    steps = deck.train.steps if arguments.steps_limit is None else min(arguments.steps_limit, deck.train.steps)
    dtype = torch.float64 if arguments.double else torch.float32
    result = {"deck": Path(arguments.deck).name, "overrides": arguments.overrides,
              "precision": "double" if arguments.double else "fp32", "end_of_text": end_of_text}
    result |= train(deck, arguments.bin.split(","), steps, dtype, end_of_text, arguments.timing)
    golden_file.write(arguments.out, result)


if __name__ == "__main__":
    main()
