#!/usr/bin/env python3
"""Makes documents.json, the sequences that record89/data.py packs from small shards, and tokenizer/prefixes.json, the
prefix tokens of tokenizer/merges.txt, found with a stack of ancestors among the sorted byte strings."""

import json
import random
from pathlib import Path

import numpy as np

from record89.data import Stream

HERE = Path(__file__).resolve().parent
END_OF_TEXT = 60
# Name, and of each stage: steps, sequences, tokens of a sequence, tokens of a document.
CASES = [
    ("stages", [(4, 4, 16, 12), (3, 4, 32, 24), (30, 4, 48, 24)]),
    ("one stage", [(200, 4, 20, 15)]),
    ("full documents", [(200, 2, 30, 0)]),
    ("documents as long as sequences", [(200, 4, 10, 10)]),
    ("pairs", [(400, 4, 1, 0)]),
    ("long steps first", [(2, 8, 64, 40), (30, 8, 20, 40)]),
]


def documents(rng, lengths):
    tokens = []
    for length in lengths:
        tokens += [END_OF_TEXT] + [int(rng.random() * END_OF_TEXT) for _ in range(length - 1)]
    return tokens


def make_shards():
    """Ends of documents of all kinds; the second shard begins within a document, the third has none."""
    rng = random.Random(89)
    lengths = lambda count, longest: [1 + int(rng.random() ** 2 * longest) for _ in range(count)]
    return [
        documents(rng, lengths(60, 60) + [10, 11, 30, 31, 1, 1, 1, 20, 21, 70]),
        documents(rng, [30])[7:] + documents(rng, lengths(40, 30) + [10] * 12 + [1] * 5),
        [int(rng.random() * END_OF_TEXT) for _ in range(300)],
        documents(rng, lengths(50, 50)),
    ]


def pack(shards, stages):
    stream = Stream([np.array(shard) for shard in shards], END_OF_TEXT)
    steps = []
    for count, sequences, length, longest in stages:
        for _ in range(count):
            try:
                rows = stream.step(sequences, length, longest or 10**9)
            except SystemExit:
                return steps
            tokens = [[*map(int, row.inputs), int(row.targets[-1])] for row in rows]
            steps.append({"rows": tokens, "cursor": [stream.shard, stream.document]})
    return steps


def byte_strings(merges):
    """Bytes of each token of a list of merges, in the order of ids; end-of-text is not among them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte if i < len(printable) else 256 + i - len(printable)): byte for i, byte in enumerate(order)}
    tokens = [bytes([byte]) for byte in order]
    for line in merges.splitlines():
        if not line.startswith("#version"):
            tokens.append(bytes(alphabet[c] for c in line.replace(" ", "")))
    return tokens


def prefixes(tokens):
    """The stack holds the prefixes of the last byte string, the longest on top."""
    table, stack = [-1] * len(tokens), []
    for text, token in sorted((text, token) for token, text in enumerate(tokens)):
        while stack and not text.startswith(stack[-1][0]):
            stack.pop()
        if stack:
            table[token] = stack[-1][1]
        stack.append((text, token))
    return table


def main():
    shards = make_shards()
    cases = [{"name": name, "stages": stages, "steps": pack(shards, stages)} for name, stages in CASES]
    golden = {"end_of_text": END_OF_TEXT, "shards": shards, "cases": cases}
    (HERE / "documents.json").write_text(json.dumps(golden, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    tokens = byte_strings((HERE / "tokenizer" / "merges.txt").read_text())
    (HERE / "tokenizer" / "prefixes.json").write_text(json.dumps([*prefixes(tokens), -1]) + "\n")


if __name__ == "__main__":
    main()
