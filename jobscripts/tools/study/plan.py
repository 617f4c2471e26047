"""What the program plans for the rank counts of a study: work, messages, bytes and memory, as its dry runs say. A
launch leaves them in plans.json, so that a report needs no program."""

import json
import os
from dataclasses import dataclass, replace

import tool

from . import StudyError
from .placement import most_of_node, ranks_of_node
from .program import dry_run, find_program
from .study_file import SHORTEST

PLANS = "plans.json"  # in the directory of a study: the plans of the "measured" and of the "predicted" rank counts
RULES = ("muon", "adam")  # update rules whose cost study/model.py knows
LARGE = ("buckets", "deck", "warnings", "notes")  # what plans.json does without


@dataclass(frozen=True)
class Traffic:
    """What the rank that sends most sends in a step."""

    messages: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Consecutive steps of equal work."""

    steps: int
    flops: float  # of a step on all ranks


@dataclass(frozen=True)
class Plan:
    """A step on a number of ranks."""

    ranks: int
    nodes: int
    ranks_per_node: int  # of the fullest node
    emulated: bool  # whether comm.ranks_per_node makes the nodes, of whatever machines
    muon: float  # floating-point operations of Muon on the busiest rank
    adam: float  # elements that Adam updates on the busiest rank
    inside: Traffic  # to ranks of its node
    between: Traffic  # to other nodes
    memory: int  # bytes of a rank
    idle: int  # ranks that own no matrix of some shape
    refusal: str = ""  # why the program refuses the run; empty where it does not
    model: str = ""  # fingerprint; empty in plans of earlier programs
    stages: tuple = ()  # one where the deck has none; empty in plans of earlier programs


def traffic_of(sent, level, path):
    table = tool.field(sent, level, dict, path)
    return Traffic(tool.field(table, "messages", float, path, least=0), tool.field(table, "bytes", float, path, least=0))


def stages_of(table, path):
    stages = [tool.require(stage, dict, path, "a stage")
              for stage in tool.field({"stages": []} | table, "stages", list, path)]
    return tuple(Stage(tool.field(stage, "steps", int, path, least=0),
                       tool.field(stage, "flops_per_step", float, path, least=0, most=1e30)) for stage in stages)


def plan_of(table, path):
    """The Plan of an entry of plans.json. Throws ToolError."""
    work = tool.field(table, "work", dict, path)
    for rule in work:
        if rule not in RULES:
            raise tool.ToolError(f"{path}: the study knows the cost of the update rules {', '.join(RULES)}, not that of "
                                 f"{rule}")
    muon, adam = (tool.field({rule: 0.0} | work, rule, float, path, least=0) for rule in RULES)
    shapes = [tool.require(shape, dict, path, "a shape") for shape in tool.field(table, "matrices", list, path)]
    sent = tool.field(table, "sent", dict, path)
    return Plan(*(tool.field(table, name, int, path, least=1) for name in ("ranks", "nodes", "ranks_per_node")),
                tool.field(table, "nodes_from", str, path) == "comm.ranks_per_node", muon, adam,
                traffic_of(sent, "inside", path), traffic_of(sent, "between", path),
                tool.field(tool.field(table, "memory_bytes", dict, path), "total", int, path, least=1),
                max((tool.field(shape, "ranks_without", int, path, least=0) for shape in shapes), default=0),
                tool.field({"refusal": ""} | table, "refusal", str, path),
                tool.field({"model": ""} | table, "model", str, path), stages_of(table, path))


def read_plans(folder):
    """The plans of a study's directory: those of the measured rank counts by rank count, and a list of the predicted
    ones. Throws ToolError."""
    path = folder / PLANS
    tables = tool.read_json(path)
    measured, predicted = ([plan_of(tool.require(table, dict, path, "a plan"), path)
                            for table in tool.field(tables, name, list, path)] for name in ("measured", "predicted"))
    return {plan.ranks: plan for plan in measured}, predicted


def counted_steps(study, planned):
    """The first of the steps of a run that count, and the one behind the last. Throws StudyError."""
    if study.stage < 0:
        return study.warmup, study.steps
    steps = [stage.steps for stage in planned.stages]
    if not steps:
        raise StudyError(f"study.stage: {study.folder / PLANS} is of an earlier version and has no stages; remove it")
    if study.stage >= len(steps):
        raise StudyError(f"study.stage: the deck has no stage {study.stage}; its stages are 0 to {len(steps) - 1}")
    begin = sum(steps[:study.stage])
    if steps[study.stage] <= study.warmup:
        raise StudyError(f"study.stage: stage {study.stage} has {steps[study.stage]} of the {study.steps} steps, of which "
                         f"study.warmup = {study.warmup} do not count; take more steps")
    return begin + study.warmup, begin + steps[study.stage]


def predicted_ranks(study):
    """Rank counts of the prediction: powers of two and the largest one. More ranks than sequences of a step have shorter
    ones, as in the measured runs, where the study has a length to shorten."""
    most = study.prediction.max_ranks
    if study.kind == "strong":
        most = min(most, study.sequences * max(1, study.length // SHORTEST))
    counts = sorted({*(1 << i for i in range(most.bit_length())), most})
    return [n for n in counts if study.shares_evenly(n) and study.cuts_evenly(n)]


class Planner:
    """Asks the program, each question once."""

    def __init__(self, program):
        self.program, self.known = program, {}

    def plan(self, study, ranks, *options, elsewhere=False):
        """The plan of a run as a dictionary. Its "refusal" says why the program refuses the run; empty where not."""
        run = study.run(ranks, 1)
        words = ("--json", "--ranks", str(ranks), *options)
        question = (run.sequences, words, elsewhere)
        if question not in self.known:
            shown, refusal = dry_run(self.program, run, *words, elsewhere=elsewhere)
            try:
                self.known[question] = json.loads(shown) | {"refusal": refusal}
            except ValueError:
                raise StudyError(refusal or f"{self.program} prints no plan of the deck") from None
        return self.known[question]

    def accepted(self, *question):
        """A plan() that is not refused. Throws StudyError."""
        table = self.plan(*question)
        if table["refusal"]:
            raise StudyError(table["refusal"])
        return table


def nodes_of_deck(table):
    """comm.ranks_per_node of a plan's deck."""
    return tool.need("tomllib").loads(table.get("deck", "")).get("comm", {}).get("ranks_per_node", 0)


def subject(study):
    """What plans.json is about: the plans of other settings are others."""
    keys = ("max_ranks", "sequences", "ranks_per_node", "memory")
    length = {"length": study.length} if study.length else {}
    return {"ranks": list(study.ranks), "ranks_per_node": study.launch.ranks_per_node,
            "prediction": {key: getattr(study.prediction, key) for key in keys}} | length


def write_plans(study, program):
    """Writes plans.json for the rank counts of the study and of its prediction. The nodes of a run are those of
    comm.ranks_per_node where the deck sets it, else those on which the launch places its ranks. Throws ToolError."""
    planner, prediction = Planner(program), study.prediction
    emulated = nodes_of_deck(planner.accepted(study, study.ranks[0])) > 0

    def nodes(size):
        return ("--ranks-per-node", str(size)) if size else ()

    measured = [planner.accepted(study, n, *nodes(0 if emulated else ranks_of_node(study.launch, n)))
                for n in study.ranks]
    if study.stage >= 0:
        counted_steps(study, plan_of(measured[0], PLANS))
    future = replace(study, sequences=prediction.sequences or study.sequences)
    size = prediction.ranks_per_node or (0 if emulated else most_of_node(study.launch))
    memory = ("--memory", prediction.memory) if prediction.memory else ()
    predicted = [planner.plan(future, n, *nodes(size), *memory, elsewhere=True) for n in predicted_ranks(future)]
    plans = {name: [{key: value for key, value in table.items() if key not in LARGE} for table in tables]
             for name, tables in (("measured", measured), ("predicted", predicted))}
    tool.write(study.folder / PLANS, json.dumps({"of": subject(study)} | plans, indent=1) + "\n")


def require(study, program):
    """Makes sure that the study has a plans.json of its settings. Studies of earlier versions have none, and the
    settings of a prediction may change: then `program` writes it. Throws ToolError."""
    path = study.folder / PLANS
    known = os.path.lexists(path)
    if known and tool.read_json(path).get("of") == subject(study):
        return
    try:
        found = find_program(program)
    except StudyError:
        raise StudyError(f"{path}: {'of other settings' if known else 'missing'}, and {program} is no program that could "
                         "write it; name a nanorun that runs here with --program") from None
    write_plans(study, found)
