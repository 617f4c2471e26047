"""The layout of the golden files. Usage: test_golden_file.py"""

import json
import unittest
from pathlib import Path

import golden_file

HERE = Path(__file__).resolve().parent
OF_ONE_LINE_AN_ENTRY = ("documents.json", "record89_switches.json")  # these have a layout of their own
MOST_LINES = 1200  # most lines of a file: the norms of some 120 parameters at the start, at the end, and in a few steps


class GoldenFiles(unittest.TestCase):
    def test_every_golden_has_this_layout(self):
        files = [path for path in sorted(HERE.glob("*.json")) if path.name not in OF_ONE_LINE_AN_ENTRY]
        self.assertGreaterEqual(len(files), 25)
        for path in files:
            with self.subTest(file=path.name):
                text = path.read_text()
                self.assertTrue(golden_file.text_of(json.loads(text)) + "\n" == text, "write it with golden_file.write")

    def test_no_golden_has_a_line_for_each_number(self):
        for path in HERE.glob("*.json"):
            with self.subTest(file=path.name):
                lines = path.read_text().splitlines()
                self.assertLessEqual(len(lines), MOST_LINES)
                numbers = [line for line in lines if line.strip(" ,-+.0123456789eE") == ""]
                self.assertEqual(numbers, [])


class Layout(unittest.TestCase):
    def test_lists_of_values_take_one_line(self):
        value = {"losses": [1.5, -2e-07], "norms": {"head": 0.1, 6: {}}, "steps": [[1, 2], []], "name": None}
        self.assertEqual(golden_file.text_of(value), '{\n "losses": [1.5, -2e-07],\n "norms": {\n  "head": 0.1,\n'
                                                     '  "6": {}\n },\n "steps": [\n  [1, 2],\n  []\n ],\n "name": null\n}')

    def test_it_is_json(self):
        value = {"a": [{"b": [1, [2, 3]]}, {}], "c": "\"\n", "d": [True, None, 1e300, 0.1]}
        self.assertEqual(json.loads(golden_file.text_of(value)), value)


if __name__ == "__main__":
    unittest.main()
