"""What a study has found out about its machine, for `nanorun train --dry-run --machine`: the contents of machine.json."""

from dataclasses import asdict


def file_name(study):
    """Each stage of a deck has a file of its own."""
    return f"machine_stage{study.stage}.json" if study.stage >= 0 else "machine.json"


def table(analysis):
    """The fitted model as machine.json has it; None where the study makes no forecast, has counted steps of several
    stages together, or was planned by an earlier program."""
    planned, stage = analysis.plans[analysis.base.ranks], analysis.study.stage
    if analysis.forecast is None or not planned.model or (stage < 0 and len(planned.stages) != 1):
        return None
    fitted = analysis.forecast.model
    return {"format": "nanorun machine", "format_version": 1, "study": analysis.study.name, "model": planned.model,
            "flops_per_sequence": planned.stages[max(stage, 0)].flops / analysis.base.run.sequences,
            "seconds": {"sequence": fitted.per_sequence, "step": fitted.constant, "muon": fitted.muon,
                        "adam": fitted.adam, "inside": asdict(fitted.inside),
                        "between": asdict(fitted.between or fitted.inside), "all_reduce": fitted.all_reduce},
            "spread": fitted.spread, "overlap": fitted.overlap, "largest_error": analysis.largest_error}
