"""Where Slurm places the ranks of a study's jobs: what the study, options of sbatch and the environment say."""

import os

from . import StudyError


def option(words, *names):
    """The value of an option among the words of a command line, by its long or short names. The last occurrence counts.
    Empty where the option has no value, None where it does not occur."""
    found = None
    for i, word in enumerate(words):
        for name in names:
            if word == name:
                found = words[i + 1] if i + 1 < len(words) else ""
            elif word.startswith(f"{name}=" if name.startswith("--") else name):
                found = word[len(name):].removeprefix("=")
    return found if found is None else found.strip()


def count(text):
    """The number behind the last colon, as in "8" or "h100:8"; 1 where there is none, as in "h100"."""
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() else 1


def gpus_in_gres(text):
    """Number of GPUs in a list of resources such as "gpu:h100:8,nvme"."""
    words = [word.removeprefix("gres/").replace("=", ":") for word in text.split(",")]
    return sum(count(word.partition(":")[2]) for word in words if word.partition(":")[0] == "gpu")


def gpus_in(of_node, gres):
    """Number of GPUs of a node, from a value of --gpus-per-node, else from a value of --gres. Either may be None."""
    return (sum(map(count, of_node.split(","))) if of_node else 0) or gpus_in_gres(gres or "")


def own_gpus_of_node(settings):
    """Number of GPUs that the study itself asks for on each node; 0 where it does not say."""
    return settings.gpus_per_node or gpus_in(option(settings.sbatch, "--gpus-per-node"),
                                             option(settings.sbatch, "--gres", "--tres-per-node"))


def gpus_of_node(settings):
    """own_gpus_of_node(), or else the number that the environment asks for."""
    return own_gpus_of_node(settings) or gpus_in(os.environ.get("SBATCH_GPUS_PER_NODE"), os.environ.get("SBATCH_GRES"))


def own_placement(settings):
    """The values of --nodes and --ntasks-per-node in the study's own options, each None where it is not there."""
    return option(settings.sbatch, "--nodes", "-N"), option(settings.sbatch, "--ntasks-per-node")


def check_gpus(settings):
    """Throws StudyError if ranks have a GPU each and nothing says how many GPUs a node has, so that ranks cannot be
    placed."""
    if settings.ranks_per_node or gpus_of_node(settings) or any(own_placement(settings)):
        return
    for variable, read, *names in (
            ("SBATCH_GPUS", count, "--gpus", "-G"), ("SBATCH_GPUS_PER_TASK", count, "--gpus-per-task"),
            ("SBATCH_GPUS_PER_SOCKET", count, "--gpus-per-socket"),
            ("SBATCH_TRES_PER_TASK", gpus_in_gres, "--tres-per-task")):
        own = option(settings.sbatch, *names)
        number = own or os.environ.get(variable)
        if number and read(number):
            name = names[0] if own else variable
            raise StudyError(f"{name} asks for GPUs, but does not say how many a node has: set launch.ranks_per_node, "
                             "or launch.gpus_per_node in its place")


def most_of_node(settings):
    """Most ranks of a node; 0 where nothing says it."""
    return settings.ranks_per_node or gpus_of_node(settings)


def ranks_of_node(settings, ranks):
    """Ranks of each node of a job; 0 where nothing says it."""
    most = most_of_node(settings)
    return -(-ranks // -(-ranks // most)) if most else 0


def placement(settings, ranks):
    """Options of sbatch that place the ranks of a job evenly on as few nodes as hold them. Leaves out options that the
    study sets itself, and follows them."""
    own_nodes, own_ranks = own_placement(settings)
    chosen = {}
    most = int(own_ranks) if own_ranks and own_ranks.isdecimal() else most_of_node(settings)
    if most and own_nodes is None:
        chosen["--nodes"] = -(-ranks // most)
    nodes = int(own_nodes) if own_nodes and own_nodes.isdecimal() else chosen.get("--nodes", 0)
    if most and nodes and own_ranks is None:
        chosen["--ntasks-per-node"] = -(-ranks // nodes)
    if (settings.gpus_per_node and option(settings.sbatch, "--gpus-per-node") is None
            and not gpus_in_gres(option(settings.sbatch, "--gres", "--tres-per-node") or "")):
        chosen["--gpus-per-node"] = settings.gpus_per_node
    words = [f"{name}={value}" for name, value in chosen.items()]
    return words + ["--exclusive"] * (settings.exclusive and not shares(settings))


def shares(settings):
    """Whether the study's options or the environment say how a job shares its nodes."""
    said = option(settings.sbatch, "--exclusive", "--oversubscribe", "--share", "-s")
    return said is not None or "SBATCH_EXCLUSIVE" in os.environ
