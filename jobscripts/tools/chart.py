"""Line charts as SVG, to stand in an HTML page. Standard library only."""

import html
import math
from dataclasses import dataclass, field

from plot_run import FAINT, INK

COLOURS = ("#2b6ca3", "#e6821e", "#3a8f5c", "#8a5aa8", "#d1495b", "#1fa3b5", "#a8742a", "#6b7a89")
GREY, GRID = "#8a949e", "#eceff2"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 370, 64, 16, 42, 50
LEAST_SPAN = 1e-9  # span of an axis, absolute and relative to its values: ticks could not tell closer values apart
CHARACTER, LONGEST_TICK = 7.2, 12  # width of a character of 12 pixels, at most; characters of a value beside an axis
MOST_POINTS = 400  # most points of a line; more are averaged


def colour(i):
    """Colour of the i-th run or group, and its dashes, which tell apart those of one colour."""
    return COLOURS[i % len(COLOURS)], ("", "7 3", "2 3")[i // len(COLOURS) % 3]


@dataclass
class Line:
    points: list  # (x, y); a y that is no number leaves a gap
    colour: str
    dashes: str = ""
    dots: bool = False
    faint: bool = False
    shown: list = field(init=False)

    def __post_init__(self):
        size = max(1, math.ceil(len(self.points) / MOST_POINTS))
        parts = [self.points[i:i + size] for i in range(0, len(self.points), size)]
        self.shown = [tuple(sum(values) / len(part) for values in zip(*part)) for part in parts]


def smooth(points):
    """Running means over a thirtieth of the points."""
    size = max(1, len(points) // 30)
    if size == 1:
        return points
    means, sums = [], [0.0, 0.0]
    for i, (x, y) in enumerate(points):
        sums = [sums[0] + x, sums[1] + y]
        if i >= size:
            sums = [sums[0] - points[i - size][0], sums[1] - points[i - size][1]]
        if i >= size - 1:
            means.append((sums[0] / size, sums[1] / size))
        if not math.isfinite(sums[1]):
            return points
    return means


def top_of_losses(lines, share=0.2):
    """Upper end of a loss axis: the largest y behind the first `share` of any line, so that the steep start of the
    lines does not squash the rest. It is at most the largest first y, so that lines which diverge leave the picture."""
    tails, starts = [], []
    for line in lines:
        points = [(x, y) for x, y in line.shown if math.isfinite(x) and math.isfinite(y)]
        starts += [y for _, y in points[:1]]
        tails += [y for x, y in points if x >= share * points[-1][0]]
    return min(max(tails), max(starts)) if tails else None


def usual_top(lines):
    """Upper end of an axis above nearly all y: a slow first step must not squash the others."""
    values = sorted(y for line in lines for _, y in line.shown if math.isfinite(y))
    return 1.25 * values[int(0.95 * (len(values) - 1))] if values else None


def ticks(low, high, count):
    """Round values within the bounds, and how many decimals they need."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (round(step / power, 1) == 2.5))
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)], decimals


def bounds(values, least=None, most=None):
    """Lower and upper end of an axis: `least` and `most`, or where they are None the extremes of the values, with some
    room."""
    low = min(values, default=0.0) if least is None else least
    high = max(values, default=1.0) if most is None else most
    closest = LEAST_SPAN * max(1.0, abs(low), abs(high))
    if high - low < closest:
        high = low + (abs(low) if abs(low) > closest else 1.0)
    room = 0.05 * (high - low)
    return (low if least is not None else low - room), high + room


def text(x, y, words, **attributes):
    attributes = {"font_size": 12, "fill": INK} | attributes
    given = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{html.escape(words)}</text>'


def tick_text(value, decimals):
    text = f"{value:,.{decimals}f}"
    return text if len(text) <= LONGEST_TICK else f"{value:.5g}"


def marks(low, high, room):
    """Ticks of an axis as (value, text). `room(words)` says how many of the longest texts fit."""
    for count in range(6, 1, -1):
        values, decimals = ticks(low, high, count)
        words = [tick_text(value, decimals) for value in values]
        if room(max(words, key=len, default="")) >= count:
            break
    return list(zip(values, words))


class Axes:
    """Maps values to positions in the picture. Its left margin has room for the texts of the y axis."""

    def __init__(self, across, up):
        self.across, self.up = across, up
        self.beside = marks(*up, lambda words: 6)
        self.left = max(LEFT, 28 + CHARACTER * max((len(words) for _, words in self.beside), default=0))
        self.below = marks(*across, lambda words: (WIDTH - self.left - RIGHT) / (CHARACTER * len(words) + 10))

    def x(self, value):
        return self.left + (value - self.across[0]) / (self.across[1] - self.across[0]) * (WIDTH - self.left - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - (value - self.up[0]) / (self.up[1] - self.up[0]) * (HEIGHT - TOP - BOTTOM)

    def grid(self):
        parts = []
        for value, words in self.below:
            x = self.x(value)
            last = min(x, WIDTH - 2 - CHARACTER * len(words) / 2)  # within the picture
            parts += [f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{GRID}"/>',
                      text(last, HEIGHT - BOTTOM + 17, words, text_anchor="middle")]
        for value, words in self.beside:
            y = self.y(value)
            parts += [f'<path d="M{self.left:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>',
                      text(self.left - 7, y + 4, words, text_anchor="end")]
        return parts

    def line(self, line):
        """Draws a line within the axes. It begins anew behind a gap."""
        path, begin, dots = [], True, []
        for x, y in line.shown:
            if not (math.isfinite(x) and math.isfinite(y)):
                begin = True
                continue
            # What lies far outside would need more digits than a picture has.
            place = f"{self.x(x):.1f} {min(max(self.y(y), -9e3), 9e3):.1f}"
            path.append(("M" if begin else "L") + place)
            begin = False
            if line.dots:
                cx, cy = place.split()
                dots.append(f'<circle cx="{cx}" cy="{cy}" r="2.6" fill="{line.colour}"/>')
        style = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
        style += ' stroke-width="1" opacity="0.3"' if line.faint else ' stroke-width="1.8"'
        return [f'<path d="{"".join(path)}" fill="none" stroke="{line.colour}"{style}/>', *dots] if path else []


def draw(title, lines, across, up, least=None, most=None, target=None):
    """Draws lines as an SVG element. `across` and `up` name the axes; `least` and `most` bound the y axis; `target` is
    a y to mark."""
    points = [p for line in lines for p in line.shown if math.isfinite(p[0]) and math.isfinite(p[1])]
    values = [y for _, y in points if most is None or y <= most] + ([target] if target is not None and points else [])
    most = max([most, *values]) if most is not None and values else None
    axes = Axes(bounds([x for x, _ in points], least=0), bounds(values, least, most))
    left = round(axes.left, 1)
    parts = [text(left, 22, title, font_size=14, font_weight="bold"), *axes.grid()]
    # An inner picture shows nothing beyond its edges.
    parts += [f'<svg x="{left}" y="{TOP}" width="{WIDTH - left - RIGHT:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
              f'viewBox="{left} {TOP} {WIDTH - left - RIGHT:.1f} {HEIGHT - TOP - BOTTOM}">']
    if target is not None and points:
        y = axes.y(target)
        above = y - 17 > TOP  # else its words would lie beyond the edge
        parts += [f'<path d="M{left} {y:.1f}H{WIDTH}" stroke="{GREY}" stroke-width="1.2" stroke-dasharray="5 4"/>',
                  text(left + 6, y - 5 if above else y + 14, f"target {target:g}", fill=GREY)]
    for line in lines:
        parts += axes.line(line)
    parts += ["</svg>", f'<path d="M{left} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{FAINT}"/>']
    if not points:
        parts.append(text(WIDTH / 2, HEIGHT / 2, "no figures yet", text_anchor="middle", fill=GREY))
    middle = (HEIGHT + TOP - BOTTOM) / 2
    parts += [text((WIDTH + left - RIGHT) / 2, HEIGHT - 12, across, text_anchor="middle"),
              text(16, middle, up, text_anchor="middle", transform=f"rotate(-90 16 {middle:.0f})")]
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}" '
            f'font-family="inherit">{"".join(parts)}</svg>')


def legend(entries):
    """A legend of entries (name, colour, dashes)."""
    parts = []
    for name, stroke, dashes in entries:
        style = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append('<span><svg viewBox="0 0 22 10" width="22" height="10" aria-hidden="true"><path d="M0 5H22" '
                     f'stroke="{stroke}" stroke-width="3"{style}/></svg> {html.escape(name)}</span>')
    return f'<p class="legend">{"".join(parts)}</p>'
