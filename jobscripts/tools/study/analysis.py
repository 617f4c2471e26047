"""All that the report of a study says: measurements, the fitted model and its forecast."""

from dataclasses import dataclass

import tool

from . import gather, model, plan

# What a prediction needs: so many rank counts, and a model that misses none of them by more when it is left out.
LEAST_POINTS, LARGEST_ERROR = 3, 0.25


@dataclass
class Analysis:
    study: object
    measurements: list  # one for each finished run
    missing: list  # (run, why)
    points: list  # one measurement a rank count
    workload: model.Workload
    model: model.Model  # fitted, with the measured network
    errors: list  # leave-one-out, one a point; empty with a single point
    forecast: model.Forecast  # None where `no_forecast` says why there is none
    no_forecast: str = ""

    @property
    def largest_error(self):
        """The largest of `errors`, without its sign; None where there are none."""
        return max(map(abs, self.errors), default=None)

    @property
    def base(self):
        return self.points[0]

    @property
    def forecast_sequences(self):
        return self.study.prediction.sequences or self.study.sequences

    def repeats(self, ranks):
        return [m for m in self.measurements if m.ranks == ranks]

    def oversubscribed(self, ranks):
        return sharing(self.study, ranks) > 1

    def fitted_step(self, m):
        """Step time that the model gives to a measured run."""
        return self.model.step(m.ranks, m.run.sequences / m.ranks, sharing(self.study, m.ranks))


def sharing(study, ranks):
    """Ranks that share a core: 1.0 where each has its own."""
    return max(1.0, ranks / study.launch.cores) if study.launch.cores else 1.0


def model_point(study, m):
    """The measurement `m` as a point to which the model is fitted."""
    return model.Point(m.ranks, m.run.sequences / m.ranks, m.step, m.path, sharing(study, m.ranks), m.overlap)


def workload_of(run):
    """The Workload of a finished run, from its deck, its summary and the study's plan. Throws ToolError."""
    path = run.folder / "deck.toml"
    deck = tool.read_toml(path)
    gradients = tool.field(tool.field(deck, "comm", dict, path), "gradients", str, path)
    if gradients not in model.GRADIENT_BYTES:
        raise tool.ToolError(f"{path}: gradients should be one of {', '.join(model.GRADIENT_BYTES)}, not {gradients}")
    stages = tool.field(deck, "stage", list, path) if "stage" in deck else [tool.field(deck, "train", dict, path)]
    length = max(tool.field(stage, "length", int, path, least=1) for stage in stages)
    period = tool.field(tool.field(deck, "optimizer", dict, path), "adam_period", int, path, least=1)
    on_gpus = "peak_device_memory_bytes" in tool.read_json(run.folder / "summary.json")
    return model.Workload(plan.read_buckets(run.folder.parent), gradients, on_gpus, length, period)


def why_not(points, errors):
    """Why a model fitted to these points is not good enough to predict other machines; empty where it is. `errors`: of
    leave_one_out()."""
    if len(points) < LEAST_POINTS:
        counts = "one rank count" if len(points) == 1 else f"{len(points)} rank counts"
        return f"The study has {counts}; a prediction needs {LEAST_POINTS}."
    worst = max(range(len(points)), key=lambda i: abs(errors[i]))
    if abs(errors[worst]) <= LARGEST_ERROR:
        return ""
    ranks = points[worst].ranks
    return (f"The model misses the step on {ranks:,} rank{'s' if ranks > 1 else ''} by {abs(errors[worst]):.0%}, when "
            f"it knows the other rank counts alone; a prediction needs {LARGEST_ERROR:.0%} or less.")


def analyse(study, measurements, missing):
    """The Analysis of a study. `measurements` (at least one) and `missing` are what gather.gather() returns."""
    workload = workload_of(measurements[0].run)
    medians = gather.representatives(measurements)
    points = [model_point(study, m) for m in medians]
    fitted = model.fit(points, workload)
    errors = model.leave_one_out(points, workload)
    reason, forecast, prediction = why_not(points, errors), None, study.prediction
    if not reason:
        forecast = model.Forecast(model.on_network(fitted, prediction.latency, prediction.bandwidth), study.kind,
                                  prediction.sequences or study.sequences, prediction.max_ranks)
    return Analysis(study, measurements, missing, medians, workload, fitted, errors, forecast, reason)
