#!/usr/bin/env python3
"""Draws the folders of src/ and kernels/ and which of them include which. Usage: draw_folders.py SOURCE_DIR > FILE.svg

An arrow is left out where others imply it: where a folder includes one through a third. docs/architecture.md shows the
figure, folders.svg.
"""

import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import check_includes  # noqa: E402

# Where a box stands from left to right, in boxes; folders of one row stand beside each other.
COLUMN = {"src/shard": 1, "src/tokenizer": 1, "src/storage": 1, "src/comm": 0, "src/config": 0, "kernels/linear": 0,
          "kernels/lm_head": 1, "kernels/stream": 2, "kernels/optimizer": 3}
BOX_WIDTH, BOX_HEIGHT, ROW, GAP, MARGIN = 250, 58, 78, 30, 12
TEXT_WIDTH, TEXT_LINE = 42, 14  # characters of a line, its height


def arrows_of(root):
    """For each folder those that it includes."""
    arrows = {folder: set() for folder in check_includes.LEVEL}
    for path in check_includes.sources(root):
        folder = str(path.parent.relative_to(root))
        others = {str(Path(header).parent) for _, header in check_includes.includes_of(path)}
        arrows[folder] |= others & arrows.keys() - {folder}
    return arrows


def reached(arrows, folder):
    """All folders below, through others too."""
    found = set()
    waiting = list(arrows[folder])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += arrows[other]
    return found


def without_implied(arrows):
    below = {folder: reached(arrows, folder) for folder in arrows}
    return {folder: {other for other in others if not any(other in below[third] for third in others)}
            for folder, others in arrows.items()}


def rows_of(arrows):
    """For each folder the number of floors below it."""
    rows = {}
    for folder in check_includes.LEVEL:  # the lowest first
        rows[folder] = 1 + max((rows[other] for other in arrows[folder]), default=-1)
    return rows


def draw(root):
    arrows = without_implied(arrows_of(root))
    rows = rows_of(arrows)
    top = max(rows.values())

    def corner(folder):
        left = MARGIN + COLUMN.get(folder, 0) * (BOX_WIDTH + GAP)
        return left, MARGIN + (top - rows[folder]) * ROW

    width = 2 * MARGIN + (1 + max(COLUMN.values())) * (BOX_WIDTH + GAP) - GAP
    height = 2 * MARGIN + top * ROW + BOX_HEIGHT
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
             '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for folder, others in arrows.items():
        for other in sorted(others):
            (x1, y1), (x2, y2) = corner(folder), corner(other)
            aside = (x2 > x1) - (x2 < x1)  # to the right, straight down, or to the left
            start, end = x1 + BOX_WIDTH * (6 + 5 * aside) // 12, x2 + BOX_WIDTH * (6 - 5 * aside) // 12
            lines.append(f'<line x1="{start}" y1="{y1 + BOX_HEIGHT}" x2="{end}" y2="{y2}" '
                         'stroke="#555" marker-end="url(#tip)"/>')
    for line in check_includes.FOLDERS.strip().splitlines():
        folder, text = line.split(maxsplit=1)
        x, y = corner(folder)
        fill = "#eef3fb" if folder.startswith("src") else "#f4f0e6"
        lines += [f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="{fill}" stroke="#555"/>',
                  f'<text x="{x + 8}" y="{y + 18}" font-size="14" font-weight="bold">{folder}</text>']
        lines += [f'<text x="{x + 8}" y="{y + 35 + TEXT_LINE * number}" font-size="11">{part}</text>'
                  for number, part in enumerate(textwrap.wrap(text, TEXT_WIDTH))]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(Path(sys.argv[1])))
