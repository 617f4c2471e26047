"""All that the report of a study says: measurements, the fitted model and its forecast."""

from dataclasses import dataclass

from . import gather, model, plan

# What a prediction needs: so many rank counts, and a model that misses none of them by more when it is left out.
LEAST_POINTS, LARGEST_ERROR = 3, 0.25


@dataclass
class Analysis:
    study: object
    measurements: list  # one for each finished run
    missing: list  # (run, why)
    points: list  # one measurement a rank count
    plans: dict  # plan.Plan by measured rank count
    model: model.Model  # fitted, with the measured network
    errors: list  # model.errors_of(), one a point or none
    forecast: model.Forecast  # None where `no_forecast` says why there is none
    no_forecast: str = ""
    refused: tuple = ()  # plans that the program refuses

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

    def kind(self, m):
        """What the step of a run is: "emulated" where the ranks of one machine counted as several nodes, else
        "measured"."""
        planned = self.plans[m.ranks]
        return "emulated" if planned.emulated and m.hosts < planned.nodes else "measured"

    def fitted_step(self, m):
        """Step time that the model gives to a measured run."""
        return self.model.step(self.plans[m.ranks], m.run.sequences / m.ranks, sharing(self.study, m.ranks))


def sharing(study, ranks):
    """Ranks that share a core: 1.0 where each has its own."""
    return max(1.0, ranks / study.launch.cores) if study.launch.cores else 1.0


def model_point(study, m, planned):
    """The measurement `m` as a point to which the model is fitted."""
    return model.Point(planned, m.run.sequences / m.ranks, m.step, m.path, m.mean_computing, sharing(study, m.ranks),
                       m.overlap, m.between)


def counted(number, what):
    """"1 rank", "2 ranks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def other_nodes(measurements, plans):
    """What is wrong with the nodes of the plans where the runs lay on other ones; empty where they agree."""
    for m in measurements:
        planned = plans[m.ranks]
        if m.hosts and not planned.emulated and m.hosts != planned.nodes:
            return (f"The ranks of {m.run.name} lay on {counted(m.hosts, 'machine')}, their plan has "
                    f"{counted(planned.nodes, 'node')}: launch.ranks_per_node should say how many ranks a node has.")
    return ""


def why_not(study, fitted, points, errors, predicted):
    """Why a model fitted to these points is not good enough to predict other machines; empty where it is. `errors`: of
    errors_of(); `predicted`: plans that fit into memory."""
    fitted_points = [p for p in points if study.fits(p.ranks)]
    if len(fitted_points) < LEAST_POINTS:
        return (f"The study has {counted(len(fitted_points), 'rank count')} to fit the model to; a prediction needs "
                f"{LEAST_POINTS}.")
    worst = max(range(len(points)), key=lambda i: abs(errors[i]))
    if abs(errors[worst]) > LARGEST_ERROR:
        return (f"The model misses the step on {counted(points[worst].ranks, 'rank')} by {abs(errors[worst]):.0%}, "
                f"when it knows other rank counts alone; a prediction needs {LARGEST_ERROR:.0%} or less.")
    network = study.prediction.latency and study.prediction.bandwidth
    if any(p.nodes > 1 for p in predicted) and not (fitted.between or network):
        return ("The study has measured single nodes; prediction.latency and prediction.bandwidth have to say what the "
                "network between nodes does.")
    return "" if predicted else "No rank count of the prediction fits into memory."


def analyse(study, measurements, missing):
    """The Analysis of a study. `measurements` (at least one) and `missing` are what gather.gather() returns."""
    medians = gather.representatives(measurements)
    plans, predicted = plan.read_plans(study.folder)
    points, repeats = ([model_point(study, m, plans[m.ranks]) for m in some] for some in (medians, measurements))
    fitted = model.fit([p for p in repeats if study.fits(p.ranks)] or repeats)
    errors = model.errors_of(points, repeats, study.prediction.fitted_ranks)
    possible = [p for p in predicted if not p.refusal]
    reason = other_nodes(medians, plans) or why_not(study, fitted, points, errors, possible)
    forecast, prediction = None, study.prediction
    if not reason:
        forecast = model.Forecast(fitted.on_network(prediction.latency, prediction.bandwidth), study.kind,
                                  prediction.sequences or study.sequences, possible)
    return Analysis(study, measurements, missing, medians, plans, fitted, errors, forecast, reason,
                    tuple(p for p in predicted if p.refusal))
