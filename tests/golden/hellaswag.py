#!/usr/bin/env python3
"""What the model of reference.py answers to multiple-choice questions, for golden files."""

import argparse
import json
from pathlib import Path

import numpy as np
import reference
import torch


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


@torch.no_grad()
def answer(deck, path, end_of_text):
    """The summed loss of each ending, each in a sequence of its own, with the initial weights and the last window."""
    parameters, _ = reference.make_parameters(deck, torch.float32)
    model, windows = reference.Model(deck, parameters, end_of_text), reference.windows_at(deck, deck.train.steps)
    losses, right_by_sum, right_by_mean = [], 0, 0
    for context, endings, label in read_questions(path):
        sums = []
        for ending in endings:
            text = torch.tensor([end_of_text, *context, *ending])
            sums.append(model.loss(text[:-1], text[1:], windows, "none")[-len(ending):].double().sum().item())
        means = [loss / len(ending) for loss, ending in zip(sums, endings)]
        losses.append(sums)
        right_by_sum += sums.index(min(sums)) == label
        right_by_mean += means.index(min(means)) == label
    return {"ending_losses": losses, "right_by_sum": right_by_sum, "right_by_mean": right_by_mean}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("deck")
    parser.add_argument("questions", help="file in the format of llm.c")
    parser.add_argument("out", help="JSON file to write")
    arguments = parser.parse_args()
    deck = reference.read_deck(arguments.deck, [])
    end_of_text = deck.model.vocabulary - 1
    result = {"deck": Path(arguments.deck).name, "end_of_text": end_of_text}
    result |= answer(deck, arguments.questions, end_of_text)
    Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
