#!/usr/bin/env python3
"""What the models of reference.py and reference89.py answer to multiple-choice questions, for golden files."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import golden_file
import numpy as np
import reference
import torch

from record89 import parameters
from record89.config import CONFIGS, override
from record89.loss import head_product, token_losses
from record89.model import Model, Tokens
from record89.schedule import validation_settings


def read_questions(path):
    """(context, four endings, label) of each question of a file as llm.c writes it."""
    words = np.fromfile(path, dtype="<u2", offset=1024).tolist()
    place = 0
    while place < len(words):
        label, place = words[place + 3], place + 5
        parts = []
        for _ in range(5):
            count = words[place]
            parts.append(words[place + 1:place + 1 + count])
            place += 1 + count
        yield parts[0], parts[1:], label


def reader(deck, end_of_text):
    """A function that gives the loss of each target of a text, with the initial weights and the last window."""
    weights, _ = reference.make_parameters(deck, torch.float32)
    model, windows = reference.Model(deck, weights, end_of_text), reference.windows_at(deck, deck.train.steps)
    return lambda text: model.loss(text[:-1], text[1:], windows, "none")


def reader89(c):
    """The same of a config of record89/config.py."""
    model = Model(c, parameters.tensors(parameters.initial_values(c), torch.float64), [-1] * c.padded_vocabulary)
    settings = validation_settings(c, c.total_steps)

    def losses(text):
        tokens = Tokens(c, SimpleNamespace(inputs=text[:-1].numpy(), targets=text[1:].numpy()), model.prefixes)
        z = head_product(c, model.stream(tokens, settings, None, 0), model.p["head"], training=False)
        return token_losses(c, z, tokens.targets, settings.weights, tokens.prefixes, settings.prefix)

    return losses


@torch.no_grad()
def answer(losses_of, path, end_of_text):
    """The summed loss of each ending, each in a sequence of its own."""
    losses, right_by_sum, right_by_mean = [], 0, 0
    for context, endings, label in read_questions(path):
        sums = []
        for ending in endings:
            text = torch.tensor([end_of_text, *context, *ending])
            sums.append(losses_of(text)[-len(ending):].double().sum().item())
        means = [loss / len(ending) for loss, ending in zip(sums, endings)]
        losses.append(sums)
        right_by_sum += sums.index(min(sums)) == label
        right_by_mean += means.index(min(means)) == label
    return {"ending_losses": losses, "right_by_sum": right_by_sum, "right_by_mean": right_by_mean}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="deck, or a config of record89/config.py")
    parser.add_argument("questions", help="file in the format of llm.c")
    parser.add_argument("out", help="JSON file to write")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="fields of record89/config.py")
    given = parser.parse_args()
    if given.model in CONFIGS:
        c = override(CONFIGS[given.model], given.overrides)
        losses_of, end_of_text = reader89(c), c.end_of_text
    else:
        deck = reference.read_deck(given.model, [])
        end_of_text = deck.model.vocabulary - 1
        losses_of = reader(deck, end_of_text)
    result = {"deck": Path(given.model).name, "end_of_text": end_of_text}
    result |= answer(losses_of, given.questions, end_of_text)
    golden_file.write(given.out, result)


if __name__ == "__main__":
    main()
