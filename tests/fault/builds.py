"""Checkpoints go from the build for CPUs to that for GPUs and back, in every stage of a small record 89. The program is
that for GPUs, the variable NANORUN_CPU_PROGRAM names that for CPUs. Exit code 77 where there is no GPU or no such
program."""

import os
import shutil
import sys
from unittest import mock

from harness import losses, restarted_from, small_run
from small_record89 import SMALL, Record89FaultTest
from test_reproducible import COMMON, STEPS, WIDE89, gpu_count

# Before these steps the other program continues; stages begin at 0, 6, 12 and 18.
CHANGES = (2, 4, 6, 8, 10, 12, 14, 16, 18, 19)
FREE = ("run.reproducible=false", "validation.every=0")


class Builds(Record89FaultTest):
    def train_with(self, program, name, stop=0):
        """A run by this program to its end, or to the step `stop`; on CPUs on more ranks, since it takes longer."""
        ranks = 1 if program == small_run.PROGRAM else 4
        with mock.patch.object(small_run, "PROGRAM", program):
            return super(Record89FaultTest, self).train(ranks, *SMALL, *COMMON, *WIDE89, *FREE, f"run.name={name}",
                                                        f"stop.step={stop}", code=75 if stop else 0)

    def test_checkpoints_change_builds(self):
        programs = (cpu_program(), small_run.PROGRAM)
        on_cpu, on_gpu = (losses(self.train_with(program, f"alone{i}")) for i, program in enumerate(programs))
        changing = {}
        for i, stop in enumerate((*CHANGES, 0)):
            job = self.train_with(programs[i % 2], "changing", stop)
            self.assertEqual(restarted_from(job), CHANGES[i - 1] if i else None)
            changing |= losses(job)
        self.assertEqual(sorted(changing), list(range(1, STEPS + 1)))
        self.assertLess(on_cpu[STEPS], on_cpu[1] - 0.5)
        # Precisions differ between builds; their changes may add no more to the losses than one build alone does.
        bound = 2 * max(abs(on_gpu[step] - on_cpu[step]) for step in on_cpu) + 2e-3
        for step, loss in changing.items():
            self.assertAlmostEqual(loss, on_cpu[step], delta=bound, msg=f"step {step}")


def cpu_program():
    """None where there is none."""
    return shutil.which(os.environ.get("NANORUN_CPU_PROGRAM", ""))


if __name__ == "__main__":
    small_run.PROGRAM = sys.argv[1]
    if not gpu_count() or not cpu_program():
        print(f"skipped: {'no GPU' if not gpu_count() else 'NANORUN_CPU_PROGRAM names no program'}")
        sys.exit(77)
    small_run.main()
