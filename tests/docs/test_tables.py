"""The tables of docs/accuracy.md and docs/agreement.md are those that docs/data/make_tables.py makes of docs/data/*.csv,
and these files are whole. Standard library only."""

import csv
import re
import sys
import unittest
from decimal import Decimal

from pages import ROOT

DATA = ROOT / "docs" / "data"
sys.path.insert(0, str(DATA))
import make_tables  # noqa: E402


class Tables(unittest.TestCase):
    def test_pages_are_current(self):
        data = make_tables.read_all()
        for page in make_tables.PAGES:
            text = page.read_text()
            self.assertEqual(text, make_tables.with_tables(text, data), "renew it with docs/data/make_tables.py")

    def test_every_table_is_on_a_page(self):
        names = [name for page in make_tables.PAGES for _, name, _ in make_tables.TABLE.findall(page.read_text())]
        self.assertEqual(sorted(names), sorted(make_tables.MAKERS))

    def test_a_changed_loss_is_noticed(self):
        text = make_tables.PAGES[0].read_text()
        data = make_tables.read_all()
        for run in data["runs"]:
            if run["in_means"] == "yes" and 500 in run["losses"]:
                run["losses"][500] += Decimal("0.02")
                self.assertNotEqual(text, make_tables.with_tables(text, data), run["run"])
                run["losses"][500] -= Decimal("0.02")

    def test_every_measured_value_is_on_a_page(self):
        """A changed value of the files that hold no runs changes a page; first_steps.csv is beside the pages."""
        texts = [page.read_text() for page in make_tables.PAGES]
        data = make_tables.read_all()
        for name in set(data) - {"runs", "losses", "first_steps"}:
            for row in data[name]:
                for key in set(row) - {"date", "commit", "machine", "record", "start", "variant"}:
                    if not re.fullmatch(r"[\d.]+(e-\d+)?", row[key]):
                        continue
                    with self.subTest(file=name, row=row, key=key):
                        right, row[key] = row[key], "9.5"
                        self.assertNotEqual(texts, [make_tables.with_tables(text, data) for text in texts])
                        row[key] = right

    def test_text_between_tables_stays(self):
        page = "a\n<!-- table: ranks -->\n\n<!-- end of table -->\nb\n<!-- table: ranks -->\nold\n\n<!-- end of table -->\nc\n"
        made = make_tables.with_tables(page, {"runs": []})
        self.assertEqual(re.findall(r"^[abc]$", made, re.MULTILINE), ["a", "b", "c"])
        self.assertNotIn("old", made)
        self.assertEqual(made, make_tables.with_tables(made, {"runs": []}))

    def test_statistics(self):
        values = [Decimal(text) for text in ("1.0", "2.0", "6.0")]
        self.assertEqual(make_tables.mean(values), 3)
        self.assertEqual(make_tables.standard_error(values), (Decimal(14) / 6).sqrt())
        self.assertEqual(make_tables.spread(values), "1.0 to 6.0")
        self.assertEqual(make_tables.spread(values[:1]), "")


class Runs(unittest.TestCase):
    def test_every_row_has_all_columns(self):
        for path in sorted(DATA.glob("*.csv")):
            with open(path, newline="") as file:
                header, *rows = list(csv.reader(file))
            self.assertTrue(rows, path.name)
            self.assertEqual({len(row) for row in rows}, {len(header)}, path.name)

    def test_runs_and_losses_belong_together(self):
        runs = [run["run"] for run in make_tables.read("runs.csv")]
        losses = make_tables.read("losses.csv")
        self.assertEqual(len(runs), len(set(runs)))
        self.assertEqual(set(runs), {row["run"] for row in losses})
        places = [(row["run"], row["step"]) for row in losses]
        self.assertEqual(len(places), len(set(places)))

    def test_values_are_what_they_should_be(self):
        for run in make_tables.read_all()["runs"]:
            with self.subTest(run=run["run"]):
                self.assertRegex(run["date"], r"^2026-\d\d-\d\d$")
                self.assertRegex(run["commit"], r"^([0-9a-f]{7})?$")
                self.assertIn(run["program"], ("nanorun", "PyTorch"))
                self.assertIn(run["in_means"], ("yes", "no"))
                self.assertTrue(run["commit"] or run["program"] == "PyTorch", "nanorun's runs name their commit")
                self.assertLessEqual(max(run["losses"]), int(run["steps"]))
                self.assertGreaterEqual(int(run["runs"]), 1)


if __name__ == "__main__":
    unittest.main()
