#!/usr/bin/env python3
"""Makes the golden files: tokens.bin from a seeded generator, then one .json for each record*.toml beside this file."""

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
TOKENS = 20 * 2 * 512 + 1 + 512  # all steps of a deck, the last target, and some more


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="golden files to make, for example record13 (default: all)")
    names = parser.parse_args().names or sorted(deck.stem for deck in HERE.glob("record*.toml"))
    shard = HERE / "tokens.bin"
    write_shard(shard, synthetic_tokens(TOKENS))
    for name in names:
        deck, out = HERE / f"{name}.toml", HERE / f"{name}.json"
        print(f"making {out.name}", flush=True)
        subprocess.run([sys.executable, HERE / "reference.py", deck, "--bin", shard, "--out", out], check=True)


if __name__ == "__main__":
    main()
