"""Deadlines of the tests that wait for processes. They count the time that a process could have worked: on a busy
machine it is slow, and does not hang. Standard library only."""

import subprocess
import time

REFERENCE_SECONDS = 0.02  # time of the work by which the machine is measured
MEASURED_EVERY = 2.0  # seconds
POLL_SECONDS = 0.2
MOST = 4  # times the seconds of a deadline, with all progress: what goes on for ever has failed too


def stretch():
    """How many times longer than on an idle machine some work takes now: a loop, by the clock and by the processor."""
    begin, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < REFERENCE_SECONDS:
        pass
    return max(1.0, (time.monotonic() - begin) / REFERENCE_SECONDS)


class Deadline:
    """Over after so many seconds of an idle machine. They begin anew when `progress()` returns something else, such as
    the number of lines that a process has printed, but last no longer than MOST times as long in all."""

    def __init__(self, seconds, progress=lambda: None, clock=time.monotonic, measure=stretch):
        self.seconds, self.progress, self.clock, self.measure = seconds, progress, clock, measure
        self.seen, self.used, self.last = progress(), 0.0, clock()
        self.whole = 0.0  # used since the start
        self.stretch, self.measured = 0.0, self.last  # not measured yet, and most processes end before

    def over(self):
        """To be asked again and again."""
        now, seen = self.clock(), self.progress()
        if now - self.measured >= MEASURED_EVERY:
            # The most of late: the load of a machine comes in bursts.
            self.stretch, self.measured = max(self.measure(), 0.8 * self.stretch), now
        elif not self.stretch:
            return False
        # Who did not get to ask for long has waited for the machine too.
        passed = min(now - self.last, MEASURED_EVERY) / self.stretch
        self.used, self.whole, self.last = self.used + passed, self.whole + passed, now
        if seen != self.seen:
            self.seen, self.used = seen, 0.0
        return self.used > self.seconds or self.whole > MOST * self.seconds


def communicate(process, timeout, input=None):
    """As Popen.communicate(), by a deadline. A process that does not end in time is killed, but not its children."""
    deadline = Deadline(timeout)
    while True:
        try:
            return process.communicate(input, POLL_SECONDS)
        except subprocess.TimeoutExpired:
            input = None  # has been sent, or is being sent
            if deadline.over():
                process.kill()
                process.wait()
                raise subprocess.TimeoutExpired(process.args, timeout) from None


def run(command, timeout, input=None, capture_output=False, check=False, **options):
    """As subprocess.run(), by a deadline."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **options) as process:
        try:
            output, errors = communicate(process, timeout, input)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done
