"""What a study has found out about its machine, for `nanorun train --dry-run --machine`: the contents of machine.json."""

from dataclasses import asdict


def table(analysis):
    """The fitted model as machine.json has it; None where the study makes no forecast, or an earlier program has
    planned it."""
    planned = analysis.plans[analysis.base.ranks]
    if analysis.forecast is None or not planned.model:
        return None
    fitted = analysis.forecast.model
    return {"format": "nanorun machine", "format_version": 1, "study": analysis.study.name, "model": planned.model,
            "flops_per_sequence": planned.flops / analysis.base.run.sequences,
            "seconds": {"sequence": fitted.per_sequence, "step": fitted.constant, "muon": fitted.muon,
                        "adam": fitted.adam, "inside": asdict(fitted.inside),
                        "between": asdict(fitted.between or fitted.inside), "all_reduce": fitted.all_reduce},
            "spread": fitted.spread, "overlap": fitted.overlap, "largest_error": analysis.largest_error}
