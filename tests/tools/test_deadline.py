"""Deadlines, by clocks that are set by hand, and processes that hang."""

import subprocess
import sys
import unittest

from support import small_run

import deadline


class Machine:
    """Its clock, how busy it is, and what a process has done."""

    def __init__(self):
        self.now, self.load, self.done = 100.0, 1.0, 0

    def deadline(self, seconds):
        return deadline.Deadline(seconds, lambda: self.done, lambda: self.now, lambda: self.load)

    def seconds_until(self, limit, each=0.5, most=10000.0):
        """By the clock, until the deadline is over; None if it is not for long."""
        begin = self.now
        while not limit.over():
            if self.now - begin > most:
                return None
            self.now += each
        return self.now - begin


class Deadlines(unittest.TestCase):
    def test_of_an_idle_machine(self):
        machine = Machine()
        self.assertAlmostEqual(machine.seconds_until(machine.deadline(180)), 180, delta=1)

    def test_of_a_busy_machine(self):
        machine = Machine()
        machine.load = 10.0
        self.assertAlmostEqual(machine.seconds_until(machine.deadline(180)), 1800, delta=10)

    def test_load_that_comes_and_goes(self):
        """A minute of load counts as six seconds, and what the load was is forgotten soon."""
        machine = Machine()
        limit = machine.deadline(180)
        machine.load = 10.0
        self.assertIsNone(machine.seconds_until(limit, most=60))
        machine.load = 1.0
        self.assertAlmostEqual(machine.seconds_until(limit), 180 - 6, delta=25)

    def test_progress_begins_anew(self):
        machine = Machine()
        limit = machine.deadline(10)
        for _ in range(15):
            self.assertFalse(limit.over())
            machine.now += 1.5
            machine.done += 1
        self.assertAlmostEqual(machine.seconds_until(limit), 10, delta=1)

    def test_progress_without_end(self):
        """Such as the lines of a run that does not stop."""
        machine = Machine()
        limit, begin = machine.deadline(10), machine.now
        while not limit.over():
            machine.now += 1.5
            machine.done += 1
        self.assertAlmostEqual(machine.now - begin, 40, delta=2)

    def test_a_tester_that_was_stopped_itself(self):
        machine = Machine()
        limit = machine.deadline(10)
        machine.now += 1000
        self.assertFalse(limit.over())

    def test_the_measure_is_at_least_one(self):
        self.assertGreaterEqual(deadline.stretch(), 1.0)

    def test_processes(self):
        done = deadline.run([sys.executable, "-c", "print(input() * 2)"], 60, input="ab\n", capture_output=True,
                            text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "abab\n", ""))
        with self.assertRaises(subprocess.CalledProcessError):
            deadline.run([sys.executable, "-c", "raise SystemExit(3)"], 60, check=True)

    def test_processes_that_hang(self):
        with self.assertRaises(subprocess.TimeoutExpired):
            deadline.run([sys.executable, "-c", "import time; print('x' * 100000, flush=True); time.sleep(1000)"], 0.05,
                         stdout=subprocess.PIPE)


if __name__ == "__main__":
    small_run.main()
