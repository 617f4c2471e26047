"""Whether the machine can begin a run of the benchmark, and what helps where the memory of a GPU does not suffice."""

import dataclasses
import re

import tool
from study.program import dry_run

# What takes less of a GPU's memory and leaves the work and its loss as they are, the slower one last.
RECOMPUTATION = ("train.recompute=mlp", "train.recompute=block")


def require_possible(path, run):
    """Lets the program judge the deck before any run starts. Throws ToolError, which says what would serve where the
    memory of a GPU does not suffice: the program itself names keys that belong to the benchmark."""
    def refusal(*more):
        return dry_run(path, dataclasses.replace(run, arguments=(*run.arguments, *more)), "--ranks", str(run.ranks))[1]

    why = refusal()
    if shortage := re.match(r"nanorun: (a rank needs .* of memory and has [^;]*);", why):
        serves = next((key for key in RECOMPUTATION if not refusal(key)), None)
        why = f"{shortage[1]}; " + (f"with -- {serves} at the end of the command it fits" if serves else
                                    f"it does not fit with {' or '.join(RECOMPUTATION)} either: take a smaller --size")
    if why:
        raise tool.ToolError(why)
