"""The style and the parts of the HTML pages that the tools write. Each page is one file that needs no other."""

import base64
import html

STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: #22303c; background: #f6f7f9;
  margin: 0; overflow-wrap: anywhere; }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
.sub { color: #64717d; margin: 0 0 1.4rem; }
.tiles, .pairs { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .8rem; }
.tile, figure, .table, .note { background: #fff; border: 1px solid #e3e7eb; border-radius: 8px; }
.tile { padding: .8rem 1rem; } .tile b { display: block; font-size: 1.45rem; } .tile span { color: #64717d; }
figure { margin: 0; padding: .8rem; } figure img, figure svg { width: 100%; display: block; }
.table { overflow-x: auto; padding: .4rem .6rem; } .pairs + .table { margin-top: .8rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; overflow-wrap: normal; }
th, td { padding: .35rem .3rem; } th { color: #64717d; font-weight: 600; vertical-align: bottom; }
tr + tr td { border-top: 1px solid #eef1f4; }
.figure { text-align: right; font-variant-numeric: tabular-nums; } td.figure { white-space: nowrap; }
.text { text-align: left; vertical-align: top; overflow-wrap: anywhere; min-width: 5rem; }
.text:first-child { width: 12rem; min-width: 6.5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0 0 .6rem; }
pre { background: #fff; border: 1px solid #e3e7eb; border-radius: 8px; padding: .6rem .8rem; margin: 0 0 .8rem;
  font-size: 12.5px; white-space: pre-wrap; }
.note { padding: .6rem 1rem; border-left: 4px solid #d1495b; }
code { font-size: .9em; background: #eef1f4; padding: .1em .3em; border-radius: 4px; }
@media (min-width: 760px) { .tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
@media screen and (max-width: 980px) { .pairs { grid-template-columns: minmax(0, 1fr); } }
@media print {
  @page { margin: 12mm; }
  body { font-size: 12px; background: none; } main { max-width: none; padding: 0; }
  .tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); }
  .table { overflow: visible; } table { font-size: 9px; } th, td { padding: .15rem .2rem; }
  h2 { break-after: avoid; } figure, .tile, .note, tr { break-inside: avoid; }
}
"""


def table(rows, kind="figure", text=0):
    """A table. `kind` of the columns: "figure" or "text"; the first `text` columns are text."""
    def row(cells, tag):
        kinds = ["text"] * text + [kind] * (len(cells) - text)
        return "<tr>" + "".join(f'<{tag} class="{k}">{html.escape(str(c))}</{tag}>'
                                for k, c in zip(kinds, cells)) + "</tr>"

    return f'<div class="table"><table>{row(rows[0], "th")}{"".join(row(r, "td") for r in rows[1:])}</table></div>'


def picture(svg, alternative):
    """An SVG file, as bytes, in a figure."""
    data = base64.b64encode(svg).decode()
    return f'<figure><img alt="{html.escape(alternative)}" src="data:image/svg+xml;base64,{data}"></figure>'


def drawing(svg):
    """An SVG element in a figure."""
    return f"<figure>{svg}</figure>"


def section(title, *content):
    return f"<h2>{html.escape(title)}</h2>" + "".join(content)


def side_by_side(*content):
    """A row of figures and tables. Their number must be even, so that none stands beside empty space."""
    assert len(content) % 2 == 0
    return f'<div class="pairs">{"".join(content)}</div>'


def paragraph(text):
    return f"<p>{html.escape(text)}</p>"


def tiles(content):
    """Tiles from pairs (figure, what it is)."""
    return '<div class="tiles">' + "".join(
        f'<div class="tile"><b>{html.escape(b)}</b><span>{html.escape(s)}</span></div>' for b, s in content) + "</div>"


def document(title, subtitle, *body, head=""):
    """The page. `head`: further elements of its head."""
    title = html.escape(title)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width">'
            f'<style>{STYLE}</style>{head}</head><body><main><h1>{title}</h1>'
            f'<p class="sub">{html.escape(subtitle)}</p>{"".join(body)}</main></body></html>\n')
