"""All that the report of a study says: measurements, the fitted model and its forecast."""

from dataclasses import dataclass

import tool

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
    """Of a finished run; only runs on GPUs state the memory of a device. Throws ToolError."""
    path = run.folder / "deck.toml"
    deck = tool.read_toml(path)
    keys = tool.field(deck, "model", dict, path)
    for key in ("width", "layers", "vocabulary", "mlp_ratio"):
        tool.field(keys, key, int, path, least=1, most=1e5 if key == "layers" else 2**31)
    tool.field(keys, "value_path", str, path)
    tool.field(keys, "value_embeddings", int, path, least=0, most=1e5)
    for layer in tool.field(keys, "layers_without_attention", list, path):
        tool.require(layer, int, path, "a layer of layers_without_attention", least=0, most=keys["layers"] - 1)
    gradients = tool.field(tool.field(deck, "comm", dict, path), "gradients", str, path)
    if gradients not in model.GRADIENT_BYTES:
        raise tool.ToolError(f"{path}: gradients should be one of {', '.join(model.GRADIENT_BYTES)}, not {gradients}")
    stages = tool.field(deck, "stage", list, path) if "stage" in deck else [tool.field(deck, "train", dict, path)]
    length = max(tool.field(stage, "length", int, path, least=1) for stage in stages)
    period = tool.field(tool.field(deck, "optimizer", dict, path), "adam_period", int, path, least=1)
    on_gpus = "peak_device_memory_bytes" in tool.read_json(run.folder / "summary.json")
    return model.Workload(keys, gradients, on_gpus, length, period)


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
