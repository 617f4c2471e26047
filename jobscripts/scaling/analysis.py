"""All that the report of a study says: measurements, the fitted model and its forecast."""

import json
import tomllib
from dataclasses import dataclass

from . import gather, model


@dataclass
class Analysis:
    study: object
    measurements: list  # of all finished runs
    missing: list  # (run, why)
    points: list  # one measurement a rank count
    workload: model.Workload
    model: model.Model  # fitted, with the measured network
    errors: list  # leave-one-out, one a point; empty with a single point
    forecast: model.Forecast

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
    """Ranks to a core."""
    return max(1.0, ranks / study.launch.cores) if study.launch.cores else 1.0


def model_point(study, m):
    return model.Point(m.ranks, m.run.sequences / m.ranks, m.step, m.path, sharing(study, m.ranks), m.overlap)


def workload_of(run):
    """Of a finished run; only runs on GPUs state the memory of a device."""
    deck = tomllib.loads((run.folder / "deck.toml").read_text())
    summary = json.loads((run.folder / "summary.json").read_text())
    return model.Workload(deck["model"], deck["comm"]["gradients"], "peak_device_memory_bytes" in summary)


def analyse(study, measurements, missing):
    """`measurements` of at least one run and `missing` as gather.gather returns them."""
    workload = workload_of(measurements[0].run)
    medians = gather.representatives(measurements)
    points = [model_point(study, m) for m in medians]
    fitted = model.fit(points, workload)
    prediction = study.prediction
    forecast = model.Forecast(model.on_network(fitted, prediction.latency, prediction.bandwidth), study.kind,
                              prediction.sequences or study.sequences, prediction.max_ranks)
    return Analysis(study, measurements, missing, medians, workload, fitted, model.leave_one_out(points, workload),
                    forecast)
