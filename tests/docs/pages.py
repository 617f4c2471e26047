"""The pages of the documentation: their blocks, links and headings. Standard library only."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
         *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose links are tested too, beside those with commands.
LINKING = [*PAGES, *sorted((ROOT / "tests" / "golden").glob("*.md"))]


def blocks(text):
    """(kind, text) of the blocks of a page in their order. The kind of a fenced block is the word behind its fence, and
    that of an indented one is None. Texts have no indentation."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$|(?:^|\n)\n((?: {4}[^\n]*\n|\n(?= {4}))+)", text, re.M | re.S)
    return [(None, re.sub("^ {4}", "", indented, flags=re.M)) if indented else (kind, fenced)
            for kind, fenced, indented in found]


def anchors(text):
    """The names by which links refer to the headings of a page, as forges form them."""
    names = []
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE):
        words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = sum(1 for known in names if re.fullmatch(rf"{re.escape(name)}(-\d+)?", known))
        names.append(f"{name}-{count}" if count else name)
    return names


def links(text):
    """Targets of the links and pictures of a page, but for those within code and comments."""
    text = re.sub(r"<!--.*?-->|^```.*?^```$|^ {4}[^\n]*$|`[^`]*`", "", text, flags=re.M | re.S)
    return re.findall(r"\]\(\s*([^()\s]+)\s*\)", text)


def check_link(page, target):
    """Raises AssertionError unless a relative link leads to a file of the repository, and to a heading of a page."""
    if re.match(r"https://[\w.-]+/", target):
        return
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    assert path.is_relative_to(ROOT) and path.exists(), f"{page.name}: {target}: no such file"
    if anchor:
        assert path.suffix == ".md" and anchor in anchors(path.read_text()), f"{page.name}: {target}: no such heading"


def recipe():
    """Spack's."""
    return next((ROOT / "spack").rglob("package.py")).read_text()
