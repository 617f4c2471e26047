#!/usr/bin/env python3
"""Makes the golden files: tokens and questions from seeded generators, then one .json for each record*.toml,
plain*.toml and medium*.toml beside this file, for each of RECORD89, which are configs of record89/config.py, and
hellaswag_*.json for the decks of ANSWERING."""

import argparse
import random
import struct
import subprocess
import sys
from array import array
from pathlib import Path

HERE = Path(__file__).resolve().parent
VOCABULARY = 500
END_OF_TEXT = VOCABULARY - 1
ANSWERING = ["record21", "record21_wide", "record89"]
ANSWERING89 = ["blocks_alive", f"vocabulary={VOCABULARY}", f"end_of_text={END_OF_TEXT}", "head_start=0.5"]
TOKENS = 20 * 2 * 512 + 1 + 512  # all steps of a deck, the last target, and some more
RECORD89 = ["mini", "mini_alive", "tiny", "tiny_alive", "tiny_fp8", "blocks", "blocks_alive", "blocks_wide", "blocks_fp8",
            "blocks_fp8_fixed", "blocks_fp8_delayed", "blocks_fp8_zero", "blocks81", "blocks81_alive", "blocks_after_wide",
            "blocks_fp8_narrow_wide"]
SHORT = {"record89_blocks_fp8_narrow_wide": "8"}  # steps of those that stop early


def synthetic_tokens(count, seed=20):
    """Documents of 40 to 250 tokens in which one of three likely successors follows a token nine times in ten.

    A document draws its first and its unlikely tokens from one of four topics, so that the context helps, too.
    """
    rng = random.Random(seed)
    words = END_OF_TEXT
    successors = [[int(rng.random() * words) for _ in range(3)] for _ in range(words)]
    topic_size = words // 4
    tokens = []
    while len(tokens) < count:
        topic = int(rng.random() * 4) * topic_size
        token = topic + int(rng.random() * topic_size)
        tokens.append(END_OF_TEXT)
        for _ in range(40 + int(rng.random() * 211)):
            tokens.append(token)
            if rng.random() < 0.9:
                token = successors[token][int(rng.random() ** 2 * 3)]
            else:
                token = topic + int(rng.random() * topic_size)
    return tokens[:count]


def write_shard(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    body = array("H", tokens)
    if sys.byteorder == "big":
        body.byteswap()
    path.write_bytes(header + body.tobytes())


def write_questions(path, tokens, seed=21):
    """Endings of several lengths, one of them the text that goes on, behind contexts that reach over a window or not."""
    rng = random.Random(seed)
    text = [token for token in tokens if token != END_OF_TEXT]
    stream, longest = [], 0
    for index in range(12):
        parts = []
        context = 1 + int(rng.random() * (400 if index % 3 == 0 else 120))
        start = int(rng.random() * (len(text) - 600))
        parts.append(text[start:start + context])
        for _ in range(4):
            begin = int(rng.random() * (len(text) - 100))
            parts.append(text[begin:begin + 1 + int(rng.random() * 60)])
        label = int(rng.random() * 4)
        parts[1 + label] = text[start + context:start + context + len(parts[1 + label])]
        body = [label, 4] + [word for part in parts for word in (len(part), *part)]
        longest = max(longest, 2 * (len(body) + 3))
        stream += [65535, 2 * (len(body) + 3), index, *body]
    header = struct.pack("<256i", 20240522, 1, 12, longest, *[0] * 252)
    path.write_bytes(header + struct.pack(f"<{len(stream)}H", *stream))


def make(program, *arguments):
    subprocess.run([sys.executable, HERE / program, *arguments], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="golden files to make, for example record13 (default: all)")
    decks = [deck.stem for deck in sorted(HERE.glob("record*.toml")) if not deck.stem.startswith("record89")]
    decks += [deck.stem for kind in ("plain", "medium") for deck in sorted(HERE.glob(f"{kind}*.toml"))]
    configs = {f"record89_{config}": config for config in RECORD89}
    answers = {f"hellaswag_{name}": name for name in ANSWERING}
    names = parser.parse_args().names or [*decks, *configs, *answers, "record89_switches"]
    shard, questions = HERE / "tokens.bin", HERE / "hellaswag.bin"
    tokens = synthetic_tokens(TOKENS)
    write_shard(shard, tokens)
    write_questions(questions, tokens)
    for name in names:
        out = HERE / f"{name}.json"
        print(f"making {out.name}", flush=True)
        if name in configs:
            more = ["--sequences"] if "blocks" in name else ["--write-data", HERE]
            more += ["--steps", SHORT[name]] if name in SHORT else []
            # The six maps raise singular values near zero, which fp32 does not know, 950 times.
            steps = "0" if "after" in name else "0,6" if name in SHORT else "0,6,14"
            make("reference89.py", "--config", configs[name], "--gradients", steps, "--validations", "0,12", "--out",
                 out, *more)
        elif name == "record89_switches":
            make("reference89.py", "--switches", out)
        elif name == "hellaswag_record89":
            make("hellaswag.py", ANSWERING89[0], questions, out, *ANSWERING89[1:])
        elif name in answers:
            make("hellaswag.py", HERE / f"{answers[name]}.toml", questions, out)
        elif name.startswith("medium"):
            make("reference_medium.py", HERE / f"{name}.toml", "--bin", shard, "--out", out, "--alive")
        else:
            program = "reference_plain.py" if name.startswith("plain") else "reference.py"
            make(program, HERE / f"{name}.toml", "--bin", shard, "--out", out)


if __name__ == "__main__":
    main()
