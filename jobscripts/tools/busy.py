"""Whether other work took processors from the runs that were measured."""

import math
import os
import statistics
import threading

import tool

LEAST_SHARE = 0.9  # of a processor, for the thread of a rank that computes
PERIOD = 0.5  # seconds between two looks


def running_threads():
    """Threads of this host that run or wait for a processor, without the one that asks; NaN where the system does not
    say."""
    try:
        return int(tool.read_text("/proc/loadavg").split()[3].split("/")[0]) - 1
    except (tool.ToolError, IndexError, ValueError):
        return math.nan


class Load:
    """Looks at this host, as a context manager, as long as a run takes. `threads` is then the mean of
    running_threads(), NaN where it is not known."""

    def __init__(self):
        self.threads = math.nan
        self.ended = threading.Event()
        self.looker = threading.Thread(target=self.look, daemon=True)

    def __enter__(self):
        self.looker.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.looker.join()

    def look(self):
        looks = []
        while not self.ended.wait(PERIOD):
            looks.append(running_threads())
        if looks:
            self.threads = statistics.fmean(looks)


def signs(shares, loads, processors=os.cpu_count()):
    """What shows that the machine was busy, in words; empty where nothing does. `shares` are processor_share of the
    runs, None where it is not known, and `loads` the threads of their Load."""
    share = min((share for share in shares if share is not None), default=math.nan)
    threads = max(filter(math.isfinite, loads), default=math.nan)
    found = []
    if share < LEAST_SHARE:
        found.append(f"a rank had a processor for {100 * share:.0f} % of its steps' time")
    if threads > 1.05 * processors + 0.5:
        found.append(f"{threads:.1f} threads wanted the {processors} processor{'s' if processors > 1 else ''} of this "
                     "host")
    return " and ".join(found)


def sentence(found):
    """What to say beside figures that were measured so."""
    return f"busy machine, so the figures are lower than on an idle one: {found}"
