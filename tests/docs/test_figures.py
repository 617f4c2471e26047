"""The figures of docs/figures are what their scripts draw. Usage: test_figures.py"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
sys.path.insert(0, str(FIGURES))
import draw_folders  # noqa: E402
import draw_streams  # noqa: E402


class Figures(unittest.TestCase):
    def assert_current(self, name, drawn, command):
        self.assertEqual((FIGURES / name).read_text(), drawn, f"run docs/figures/{command} > docs/figures/{name}")

    def test_folders(self):
        self.assert_current("folders.svg", draw_folders.draw(ROOT), "draw_folders.py .")

    def test_boxes_of_folders_hold_the_whole_text(self):
        figure = draw_folders.draw(ROOT)
        for line in draw_folders.check_includes.FOLDERS.strip().splitlines():
            folder, text = line.split(maxsplit=1)
            box = figure.split(f">{folder}</text>", 1)[1].split("<rect", 1)[0]
            parts = re.findall(r'font-size="11">([^<]*)</text>', box)
            self.assertEqual(" ".join(parts), text)
            self.assertLessEqual(len(parts), 2, f"{folder}: the text is higher than its box")

    def test_streams_of_record_89(self):
        self.assert_current("record89_streams.svg", draw_streams.draw(ROOT / "inputs" / "record89.toml"),
                            "draw_streams.py inputs/record89.toml")


if __name__ == "__main__":
    unittest.main()
