"""What a report says of the GPUs of many ranks, which summary.json holds by group."""

import html
import json
import re
import types

from support import ScalingTest, small_run

import tool
from study import gather, report


def group(number):
    """Eight ranks, of which six were throttled."""
    first = 8 * number
    return {"first_rank": first, "ranks": 8, "min_clock_mhz": 1200 + number, "avg_clock_mhz": 1900,
            "avg_power_watts": 600, "max_power_watts": 690 + number,
            "slowest": {"rank": first + 3, "avg_clock_mhz": 1300 - number},
            "fastest": {"rank": first, "avg_clock_mhz": 1950 + number}, "throttled": {"sw_power_cap": 9},
            "throttled_ranks": {"sw_power_cap": {"ranks": 6, "most": [
                {"rank": first + rank, "looks": 5 - rank - number} for rank in range(4)]}}}


UNKNOWN = {"first_rank": 16, "ranks": 8, "min_clock_mhz": 0, "avg_clock_mhz": 0, "avg_power_watts": 0,
           "max_power_watts": 0, "throttled": {}}


class Gpus(ScalingTest):
    def read(self, *groups):
        path = self.folder / "summary.json"
        path.write_text(json.dumps({"gpus": list(groups), "gpu_looks": 10}))
        return gather.read_gpus(path)

    def test_slow_ranks_of_groups_are_named(self):
        gpus, looks = self.read(group(0), group(1), UNKNOWN)
        run = types.SimpleNamespace(ranks=24, gpus=gpus, gpu_looks=looks)
        row = report.gpus_table(types.SimpleNamespace(points=[run])).split("<tr")[-1]
        self.assertEqual([html.unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)], [
            "24", "1,299 MHz", "11", "1,951 MHz", "1,200 MHz", "691 W",
            "sw_power_cap on ranks 0 (50% of the looks), 1 (40% of the looks), 8 (40% of the looks), "
            "2 (30% of the looks) and 8 more"])

    def test_clocks_that_nobody_knows(self):
        run = types.SimpleNamespace(ranks=8, gpus=self.read(UNKNOWN)[0], gpu_looks=10)
        self.assertEqual(report.gpus_table(types.SimpleNamespace(points=[run])), "")

    def test_groups_that_are_none(self):
        """Of a file that something else has written."""
        changes = [{"slowest": {}}, {"slowest": 4}, {"fastest": {"rank": 0}}, {"throttled": 1},
                   {"throttled_ranks": {}}, {"throttled_ranks": {"sw_power_cap": {"ranks": 0, "most": []}}},
                   {"throttled_ranks": {"sw_power_cap": {"ranks": 1, "most": [4]}}},
                   {"throttled_ranks": {"sw_power_cap": {"ranks": 1, "most": [{"rank": -1, "looks": 1}]}}}]
        for change in changes:
            with self.subTest(change=change), self.assertRaisesRegex(tool.ToolError, "summary.json"):
                self.read(group(0) | change)


if __name__ == "__main__":
    small_run.main()
