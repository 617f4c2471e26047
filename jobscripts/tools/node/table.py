"""table.md of the measurement of a node."""

from .findings import findings
from .steps import PHASES

# Heading of the table -> key, factor, format.
COLUMNS = {
    "steps": ("steps", 1, "d"), "ms/step": ("step_ms", 1, ".1f"), "tokens/s": ("tokens_per_second", 1, ",.0f"),
    "GB per rank": ("memory_bytes", 1e-9, ".1f"), "end of step 1": ("first_step_seconds", 1, ".1f"),
    "training": ("training_seconds", 1, ".1f"),
    "training loss": ("training_loss", 1, ".5f"), "validation loss": ("validation_loss", 1, ".5f"),
    "wall": ("wall_seconds", 1, "d"),
}
STEP_COLUMNS = {"stage": ("stage", 1, "d"), "window": ("window", 1, "d"), "tokens": ("tokens", 1, "d"),
                "steps": ("steps", 1, "d"), "ms/step": ("step_ms", 1, ".2f")}
PHASE_COLUMNS = {name.replace("_", " "): (name, 1, ".2f") for name in (*PHASES, "rest")}
LEGENDS = ("Times in seconds but for ms/step, the median of the steps after the first fifth, where there are no stages; "
           "tokens/s: the mean of all steps; GB per rank: the most in use on its GPU, on CPUs by the process; training: "
           "all steps together",
           "ms/step: the median of the steps after the first fifth of the stage; phases in ms, means over the ranks and "
           "the middle half of these steps; reduce gradients, gather weights and sync: what computation waits for; hidden: the share of "
           "communication that it does not wait for")


def cell(run, key, factor, how):
    value = run.get(key)
    return "" if value is None or (key == "wall_seconds" and run["exit_code"] is None) else format(value * factor, how)


def rows_of_table(heading, rows):
    lines = [f"| {' | '.join(cells)} |" for cells in (heading, *rows)]
    return [lines[0], "|---" * len(heading) + "|", *lines[1:]]


def run_rows(runs):
    return [[run["deck"], run["part"], run["run"], str(run["ranks"] or ""), run["result"],
             *(cell(run, *column) for column in COLUMNS.values())] for run in runs]


def step_rows(runs):
    """A row for each stage of each run."""
    rows = []
    for run in runs:
        for stage in run.get("stages", []):
            rows.append([run["deck"], run["part"], run["run"], str(run["ranks"]),
                         *(cell(stage, *column) for column in STEP_COLUMNS.values()),
                         *(cell(stage.get("phases_ms", {}), *column) for column in PHASE_COLUMNS.values()),
                         cell(stage, "hidden_share", 1, ".0%")])
    return rows


def is_whole(facts):
    """Whether the measurement has been completed."""
    names = [name for name, _ in facts]
    return "end" in names and "interrupted" not in names


def text_of(facts, runs, further):
    which = ["deck", "part", "run", "ranks"]
    title = "# Measurement of a node" + ("" if is_whole(facts) else ", partial: it has not come to its end")
    lines = [title, "", *(f"- {name}: {value}" for name, value in facts), "",
             *rows_of_table([*which, "result", *COLUMNS], run_rows(runs)), "",
             *(f"- {line}" for line in (*findings(runs), *further)), f"- {LEGENDS[0]}"]
    if steps := step_rows(runs):
        lines += ["", "## Where steps go", "",
                  *rows_of_table([*which, *STEP_COLUMNS, *PHASE_COLUMNS, "hidden"], steps), "", f"- {LEGENDS[1]}"]
    return "\n".join([*lines, ""])
