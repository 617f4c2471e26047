"""Sampled softmax: which columns of the head the softmax of a training sequence covers."""

import torch

STRIDE = 20011


def candidates(c, count, step, index, targets):
    """[columns] bool: the targets of sequence `index` of a step, and the first others of a permutation of the columns
    from a place that depends on step and sequence, `count` in all."""
    columns = c.padded_vocabulary
    start = columns * index // c.sequences + step * (count + 1)
    chosen = torch.zeros(columns, dtype=torch.bool)
    chosen[targets] = True
    missing = count - int(chosen.sum())
    if missing < 0:
        raise SystemExit(f"step {step}: more than {count} different targets")
    walk = (start + torch.arange(columns)) * STRIDE % columns
    others = walk[~chosen[walk]]
    chosen[others[:missing]] = True
    return chosen
