"""Document-aligned sequences, tables looked up by token, and synthetic documents."""

import random
from dataclasses import dataclass

import numpy as np

SHARD_TOKENS = 4200  # in a synthetic shard; the first ends when one sequence of step 13 of the small configs is filled


@dataclass(frozen=True)
class Sequence:
    inputs: np.ndarray  # [T]
    targets: np.ndarray  # [T]


@dataclass
class Stream:
    """Sequences that start with end-of-text, from shards in turn. (shard, document) is the whole state."""
    shards: list
    end_of_text: int
    shard: int = 0
    document: int = 0

    def step(self, count, length, longest):
        """`count` sequences of `length` tokens. A shard that cannot fill them all is left, what it gave is dropped."""
        while self.shard < len(self.shards):
            tokens = np.asarray(self.shards[self.shard])
            pieces, document = self.fill(tokens, count, length, longest)
            if pieces is not None:
                self.document = document
                return [Sequence(piece[:-1].astype(np.int64), piece[1:].astype(np.int64)) for piece in pieces]
            self.shard, self.document = self.shard + 1, 0
        raise SystemExit("out of data: more shards or fewer steps are needed")

    def fill(self, tokens, count, length, longest):
        """Arrays of length + 1 tokens and the next document, or (None, _) where the documents do not suffice."""
        starts = np.flatnonzero(tokens == self.end_of_text)
        document, filled = self.document, []
        for _ in range(count):
            taken, room = [], length + 1
            while room > 0:
                if document == len(starts):
                    return None, document
                begin = int(starts[document])
                end = int(starts[document + 1]) if document + 1 < len(starts) else len(tokens)
                taken.append(tokens[begin:min(end, begin + longest, begin + room)])
                room -= len(taken[-1])
                document += 1
            filled.append(np.concatenate(taken))
        return filled, document


def rows(sequences):
    """Lists of length + 1 tokens."""
    return [[*map(int, s.inputs), int(s.targets[-1])] for s in sequences]


def plain_sequences(tokens, count, length):
    """Consecutive slices of the stream, not aligned to documents, as validation reads them."""
    tokens = np.asarray(tokens).astype(np.int64)
    if len(tokens) < count * length + 1:
        raise SystemExit("out of validation data")
    cut = [(j * length, (j + 1) * length) for j in range(count)]
    return [Sequence(tokens[a:b], tokens[a + 1:b + 1]) for a, b in cut]


# ---------------------------------------------------------------- tables looked up by token

def bigram_rows(inputs, rows):
    """Row of the bigram table per position [T]; products and XOR in 32 bits, remainders never negative."""
    with np.errstate(over="ignore"):
        x = np.asarray(inputs).astype(np.int32)
        before = np.concatenate([[rows - 1], x[:-1]]).astype(np.int32)
        before[1:2] = rows - 1  # position 0 counts as token rows - 1 for its successor
        mixed = np.bitwise_xor(np.int32(36313) * x, np.int32(27191) * before)
    hashed = mixed.astype(np.int64) % (rows - 1)
    hashed[0] = rows - 1
    return hashed


def sign_rows(inputs, rows):
    x = np.asarray(inputs).astype(np.int64)
    q = np.zeros_like(x)
    q[1:] = (x[:-1] ^ x[1:]) % rows
    return q


def prefix_table(byte_strings, size):
    """table[id]: the token that is the longest proper prefix of the token's bytes, or -1.

    byte_strings: id -> bytes, end-of-text left out; ids of no byte string have -1.
    """
    ids = {text: token for token, text in byte_strings.items()}
    table = np.full(size, -1, dtype=np.int64)
    for text, token in ids.items():
        for end in range(len(text) - 1, 0, -1):
            if text[:end] in ids:
                table[token] = ids[text[:end]]
                break
    return table


def synthetic_prefixes(vocabulary, size):
    """A table of the right kind for synthetic tokens: every third token has none, the others a smaller token."""
    table = np.full(size, -1, dtype=np.int64)
    for token in range(vocabulary - 1):
        if token % 3:
            table[token] = token // 2
    return table


# ---------------------------------------------------------------- synthetic documents

def synthetic_documents(count, vocabulary, end_of_text, seed):
    """`count` tokens, the first documents short: one of three likely successors follows a token nine times in ten."""
    rng = random.Random(seed)
    words = vocabulary - 1
    successors = [[int(rng.random() * words) for _ in range(3)] for _ in range(words)]
    tokens = []
    while len(tokens) < count:
        token = int(rng.random() * words)
        tokens.append(end_of_text)
        for _ in range(1 + int(rng.random() ** 2 * 70)):
            tokens.append(token)
            token = successors[token][int(rng.random() * 3)] if rng.random() < 0.9 else int(rng.random() * words)
    return np.array(tokens[:count], dtype=np.uint16)
