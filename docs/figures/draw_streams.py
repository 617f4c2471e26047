#!/usr/bin/env python3
"""Draws the streams of a deck with residual = "scaled", such as record 89's. Usage: draw_streams.py DECK > FILE.svg

Time runs downwards. The stream x goes through the middle of the layers. On the left are x0 and the rows of bigrams,
which enter layers with attention; on the right what later layers read of earlier ones. docs/architecture.md shows the
figure of inputs/record89.toml.
"""

import sys
import tomllib
from pathlib import Path

ROW, HEIGHT, TOP, X0, BIGRAM, LEFT, RIGHT = 50, 32, 116, 148, 72, 200, 500
CENTER = (LEFT + RIGHT) // 2
VALUES, INPUT, SKIP, LATE, FIRST, WIDTH = RIGHT + 34, RIGHT + 112, RIGHT + 135, RIGHT + 190, RIGHT + 290, RIGHT + 350
MARKS = (("paired_layers", "paired heads"), ("key_offset_layers", "key offset"), ("xsa_layers", "XSA"),
         ("gated_layers", "gates"), ("composed_layers", "DC"))


class Drawing:
    """Lines of an SVG file."""

    def __init__(self, height):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
            "<defs>"]
        self.lines += [f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
                       f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
                       for name, colour in COLOURS.items()]
        self.lines += ["</defs>", f'<rect width="{WIDTH}" height="{height}" fill="white"/>']

    def path(self, stream, *points, arrow=True):
        colour, tip = COLOURS[stream], f' marker-end="url(#{stream})"' if arrow else ""
        d = " L".join(f"{x},{y}" for x, y in points)
        self.lines.append(f'<path d="M{d}" fill="none" stroke="{colour}" stroke-width="1.6"{tip}/>')

    def box(self, x, y, width, height, text, fill="#eef3fb"):
        self.lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="#555"/>')
        self.text(x + width // 2, y + height // 2 + 4, text, "middle")

    def text(self, x, y, text, anchor="start", stream="x"):
        self.lines.append(
            f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}" fill="{COLOURS[stream]}">{text}</text>')

    def svg(self):
        return "\n".join([*self.lines, "</svg>"]) + "\n"


COLOURS = {"x": "#222222", "x0": "#1f6fb4", "bigram": "#8a5a00", "values": "#777777", "skip": "#2b8a3e",
           "late": "#c0392b", "mudd": "#7d3c98"}


def middle(layer):
    return TOP + layer * ROW + HEIGHT // 2


def draw_layers(drawing, model):
    for layer in range(model["layers"]):
        marks = ", ".join(name for key, name in MARKS if layer in model[key])
        attention = "" if layer in model["layers_without_attention"] else f"attention{marks and f' ({marks})'}, "
        y = TOP + layer * ROW
        drawing.box(LEFT, y, RIGHT - LEFT, HEIGHT, f"{layer}: {attention}MLP")
        if layer in model["value_layers"]:
            drawing.path("values", (VALUES, y + 6), (RIGHT, y + 6))
            drawing.text(VALUES + 4, y + 10, "value emb.", stream="values")


def draw_injections(drawing, model):
    """x0 and the rows of bigrams, which enter behind attention."""
    last = model["layers"] - 1
    drawing.path("x0", (X0, TOP - 30), (X0, middle(last - model["mudd"])), arrow=False)
    drawing.path("bigram", (BIGRAM, TOP - 30), (BIGRAM, middle(last) + 6), arrow=False)
    for layer in range(model["layers"]):
        if layer in model["layers_without_attention"]:
            continue
        if not (model["mudd"] and layer == last):  # which takes the first x instead
            drawing.path("x0", (X0, middle(layer)), (LEFT, middle(layer)))
        drawing.path("bigram", (BIGRAM, middle(layer) + 6), (LEFT, middle(layer) + 6))


def draw_tap(drawing, stream, x, begin, ends, label):
    """A stream that layers read further down: from the height `begin` to the heights `ends`."""
    drawing.path(stream, (CENTER, begin), (x, begin), (x, max(ends)), arrow=False)
    for end in ends:
        drawing.path(stream, (x, end), (RIGHT, end))
    drawing.text(x + 4, begin + 14, label, stream=stream)


def draw(deck):
    model = tomllib.loads(Path(deck).read_text())["model"]
    layers = model["layers"]
    behind = [TOP + (layer + 1) * ROW - 9 for layer in range(layers)]  # heights between layers
    end = behind[-1] + 34
    drawing = Drawing(end + 96)
    drawing.box(LEFT, 12, RIGHT - LEFT, 26, "embedding, smear, norm: x0", "#f4f0e6")
    drawing.text(BIGRAM, 30, "rows of bigrams", "middle", "bigram")
    drawing.path("bigram", (BIGRAM, 38), (BIGRAM, TOP - 30), arrow=False)
    drawing.path("x0", (LEFT + 20, 38), (LEFT + 20, 52), (X0, 52), (X0, TOP - 30), arrow=False)
    drawing.text(X0 - 6, 66, "x0", "end", "x0")
    drawing.path("x", (CENTER, 38), (CENTER, TOP - 26))
    drawing.text(CENTER + 6, TOP - 36, "x = x0 + g bigrams")
    drawing.path("x", (CENTER, TOP - 26), (CENTER, end))
    draw_injections(drawing, model)
    if model["skip_from"] >= 0:
        draw_tap(drawing, "skip", SKIP, behind[model["skip_from"]], [middle(model["skip_to"]) - 6], "skip")
    source = model["attention_source"]
    attending = [layer for layer in range(source + 1, layers) if layer not in model["layers_without_attention"]]
    draw_tap(drawing, "late", LATE, behind[source], [middle(layer) + 2 for layer in attending], "late attention")
    if model["mudd"]:
        draw_tap(drawing, "mudd", FIRST, TOP - 18, [middle(layers - 1) + 10], "MUDD")
        ends = (("mudd", FIRST, middle(layers - 1) + 10), ("late", LATE, middle(layers - 1) + 2),
                ("skip", SKIP, middle(model["skip_to"]) - 6), ("x", INPUT, behind[-2]))
        for offset, (stream, x, begin) in enumerate(ends):
            height = end + 6 + 6 * offset
            drawing.path(stream, (x, begin), (x, height), (RIGHT, height))
        drawing.path("x", (CENTER, behind[-2]), (INPUT, behind[-2]), arrow=False)
        drawing.text(RIGHT + 8, end + 44, "and the first value embedding", stream="values")
    draw_layers(drawing, model)
    drawing.box(LEFT, end, RIGHT - LEFT, 26, "last mix", "#f4f0e6")
    drawing.path("x", (CENTER, end + 26), (CENTER, end + 46))
    drawing.box(LEFT, end + 46, RIGHT - LEFT, 26, "norm, LM head, softcap, loss", "#f4f0e6")
    return drawing.svg()


if __name__ == "__main__":
    sys.stdout.write(draw(sys.argv[1]))
