"""The report of a study: one HTML page that needs no other file, one picture, one table."""

import collections
import datetime
import html
import json

import tool
from page import document, paragraph, picture, section, side_by_side, table, tiles
from runs import BUILD

from . import figures, gather, machine
from .analysis import counted, sharing


def seconds(value):
    if value == 0:
        return "0"
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}"


def with_prefix(value, unit):
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def size_text(kind, sequences):
    return f"{sequences:,} sequence{'s' if sequences > 1 else ''} a {'step' if kind == 'strong' else 'rank'}"


def date_of(analysis):
    newest = max((m.run.folder / "summary.json").stat().st_mtime for m in analysis.measurements)
    return datetime.datetime.fromtimestamp(newest, datetime.timezone.utc).date().isoformat()


def heading(analysis):
    study = analysis.study
    title = f"{study.name}: {study.kind} scaling, {size_text(study.kind, study.sequences)}"
    parts = [title, f"stage {study.stage}" if study.stage >= 0 else "", study.machine, date_of(analysis)]
    if any(analysis.kind(m) == "emulated" for m in analysis.points):
        parts.append("nodes emulated on fewer machines")
    if any(analysis.oversubscribed(m.ranks) for m in analysis.points):
        parts.append(f"* more ranks than the {study.launch.cores} cores")
    return "  ·  ".join(part for part in parts if part)


def figure(name, alternative, analysis):
    return picture(figures.svg(name, analysis), alternative)


def tiles_of(analysis):
    best = max(analysis.points, key=lambda m: m.rate)
    last = analysis.points[-1]
    gain = gather.speed_up(last, analysis.base)
    worst = analysis.largest_error
    content = [(f"{best.rate:,.0f}", f"tokens per second on {counted(best.ranks, 'rank')}"),
               (f"{gain:.2f}", f"speed-up on {counted(last.ranks, 'rank')}"),
               (f"{gain / last.ranks:.0%}", f"efficiency on {counted(last.ranks, 'rank')}"),
               ("—" if worst is None else f"{worst:.0%}", "largest error of the model, on steps that it does not know")]
    return tiles(content)


def missing_section(analysis):
    if not analysis.missing:
        return paragraph("All runs of the study have finished.")
    missing, total = len(analysis.missing), len(analysis.missing) + len(analysis.measurements)
    items = "".join(f"<li><code>{html.escape(run.name)}</code> {html.escape(why)}; "
                    f"log <code>{html.escape(str(run.log))}</code></li>" for run, why in analysis.missing)
    verb = "is" if missing == 1 else "are"
    return f'<div class="note">{missing} of {total} runs {verb} missing:<ul>{items}</ul></div>'


def share(value):
    """A percentage; a dash for None."""
    return "—" if value != value else f"{value:.0%}"


def points_table(analysis):
    rows = [["steps", "ranks", "nodes", "step", "tokens/s", "speed-up", "efficiency"]]
    for m in analysis.points:
        gain = gather.speed_up(m, analysis.base)
        rows.append([analysis.kind(m), f"{m.ranks:,}", f"{analysis.plans[m.ranks].nodes:,}", seconds(m.step),
                     f"{m.rate:,.0f}", f"{gain:.2f}", f"{gain / m.ranks:.1%}"])
    return table(rows, text=1)


def runs_table(analysis):
    rows = [["ranks", "repeat", "step", "tokens/s", "speed-up", "efficiency", "computing", "communication", "waiting",
             "overlap", "spread", "slowest rank"]]
    for m in analysis.measurements:
        gain = gather.speed_up(m, analysis.base)
        rows.append([f"{m.ranks:,}", m.run.repeat, seconds(m.step), f"{m.rate:,.0f}", f"{gain:.2f}",
                     f"{gain / m.ranks:.1%}", seconds(m.computing), seconds(m.transfer), seconds(m.waiting),
                     share(m.overlap), f"{m.spread:.1%}", m.slowest])
    return table(rows)


def ranks_table(analysis):
    rows = [["ranks", "slowest rank", "share of steps", "spread", "most", "mean", "least"]]
    for m in analysis.points:
        rows.append([f"{m.ranks:,}", m.slowest, share(m.slowest_share), f"{m.spread:.1%}",
                     seconds(m.work.max()), seconds(m.work_mean), seconds(m.work.min())])
    return table(rows)


def throttled(m):
    """What held down the clocks of a run's GPUs, and on which ranks. For each reason it names the ranks that it held
    down most often."""
    found = {}
    for gpu in m.gpus:
        for name, (ranks, most) in gpu["throttled"].items():
            count, known = found.get(name, (0, []))
            found[name] = count + ranks, known + most
    texts = []
    for name, (count, ranks) in sorted(found.items()):
        ranks.sort(key=lambda pair: (-pair[0], pair[1]))
        named = ", ".join(f"{rank} ({looks / m.gpu_looks:.0%} of the looks)" for looks, rank in ranks[:4])
        more = f" and {count - len(ranks[:4])} more" if count > len(ranks[:4]) else ""
        texts.append(f"{name} on rank{'s' if count > 1 else ''} {named}{more}")
    return "; ".join(texts) or "none"


def gpus_table(analysis):
    """The table of GPUs; empty if no run has recorded any."""
    rows = [["ranks", "lowest mean SM clock", "on rank", "highest", "lowest seen", "most power", "throttled"]]
    for m in analysis.points:
        known = [gpu["slowest"] for gpu in m.gpus if gpu["slowest"]]
        if known:
            slow, rank = min(known)
            fast = max(gpu["fastest"] for gpu in m.gpus)
            least = min(gpu["min_clock_mhz"] for gpu in m.gpus if gpu["min_clock_mhz"] > 0)
            rows.append([f"{m.ranks:,}", f"{slow:,.0f} MHz", rank, f"{fast:,.0f} MHz", f"{least:,.0f} MHz",
                         f"{max(gpu['max_power_watts'] for gpu in m.gpus):,.0f} W", throttled(m)])
    if len(rows) == 1:
        return ""
    return paragraph("SM clocks and power of the ranks' GPUs by NVML, in the steps that looked at them "
                     "(run.gpu_every), and what held the clocks down.") + table(rows, "text")


def link_text(link):
    bandwidth = with_prefix(1 / link.seconds_per_byte, "B/s") if link.seconds_per_byte else "not resolved"
    return f"latency {seconds(link.latency) if link.latency else 'not resolved'}, bandwidth {bandwidth}"


def coefficients(analysis):
    fitted = analysis.model
    rows = [["part", "fitted to the measured time"],
            ["computing", f"{seconds(fitted.per_sequence)} per sequence + {seconds(fitted.constant)} per step"],
            ["Muon", with_prefix(1 / fitted.muon, "FLOP/s") if fitted.muon else "no time"],
            ["Adam", with_prefix(1 / fitted.adam, "elements/s") if fitted.adam else "no time"],
            ["slower ranks", f"standard deviation {fitted.spread:.1%}" if fitted.spread else "none seen"]]
    rows += [["inside nodes", link_text(fitted.inside)],
             ["between nodes", link_text(fitted.between) if fitted.between else "no run on several nodes"],
             ["all-reduce", f"{seconds(fitted.all_reduce)} a round" if fitted.all_reduce else "not resolved"]]
    rows.append(["overlap", f"{fitted.overlap:.0%}" if fitted.overlap else "none in the traces"])
    return table(rows, "text")


def error_table(analysis):
    rows = [["steps", "ranks", "step", "model", "error of the fit", "predicted from others", "error"]]
    errors = analysis.errors or [None]
    for m, error in zip(analysis.points, errors):
        fitted = analysis.fitted_step(m)
        left_out = ["—", "—"] if error is None else [seconds(m.step * (1 + error)), f"{error:+.1%}"]
        rows.append([analysis.kind(m), f"{m.ranks:,}", seconds(m.step), seconds(fitted), f"{fitted / m.step - 1:+.1%}",
                     *left_out])
    return table(rows, text=1)


def findings(analysis):
    """Sentences on where scaling stops, according to the forecast."""
    forecast = analysis.forecast
    last = forecast.ranks[-1]
    i = forecast.first_below(0.5)
    if i is None:
        found = [f"Efficiency stays above 50% up to {counted(last, 'rank')}, where it is {forecast.efficiency[-1]:.0%}."]
    else:
        (name, lost), n = forecast.losses(i)[0], forecast.ranks[i]
        found = [f"Efficiency falls below 50% from {counted(n, 'rank')} on ({forecast.efficiency[i]:.0%} there). "
                 f"The largest loss is {name}: {seconds(lost)} of a step of {seconds(forecast.steps[i])}."]
    idle = forecast.first_idle()
    if idle:
        found.append(f"On {counted(idle.ranks, 'rank')} {idle.idle:,} own no matrix of some shape: Muon's work of the "
                     "busiest rank hardly shrinks any more.")
    n = forecast.traffic_exceeds_computing()
    found.append(f"Gradients and weights travel for longer than a rank computes from {counted(n, 'rank')} on." if n else
                 f"Gradients and weights travel for less time than a rank computes up to {counted(last, 'rank')}.")
    return found


def network(analysis):
    prediction = analysis.study.prediction
    largest = analysis.forecast.plans[-1]
    text = f"Predicted: {size_text(analysis.study.kind, analysis.forecast_sequences)}, ranks as fast as those of the runs,"
    if largest.nodes == 1:
        return f"{text} all on one node."
    latency = seconds(prediction.latency) if prediction.latency else "the fitted latency"
    bandwidth = with_prefix(prediction.bandwidth, "B/s") if prediction.bandwidth else "the fitted bandwidth"
    return (f"{text} {largest.ranks_per_node:,} to a node; between nodes {latency} per message and {bandwidth} per rank.")


def forecast_table(analysis):
    forecast, efficiency = analysis.forecast, analysis.forecast.efficiency
    names = list(forecast.parts[0])
    rows = [["ranks", "nodes", "predicted step", "efficiency", *names]]
    for plan, step, share_of_ideal, parts in zip(forecast.plans, forecast.steps, efficiency, forecast.parts):
        rows.append([f"{plan.ranks:,}", f"{plan.nodes:,}", seconds(step), f"{share_of_ideal:.0%}",
                     *(seconds(parts[name]) for name in names)])
    return table(rows)


def traffic_table(analysis):
    """What the program plans for the rank counts of the runs and of the prediction."""
    rows = [["steps", "ranks", "nodes", "messages inside", "bytes inside", "messages between", "bytes between",
             "memory of a rank", "own no matrix"]]
    plans = [(analysis.kind(m), analysis.plans[m.ranks]) for m in analysis.points]
    plans += [("predicted", plan) for plan in (analysis.forecast.plans if analysis.forecast else [])]
    for kind, plan in plans:
        rows.append([kind, f"{plan.ranks:,}", f"{plan.nodes:,}", *traffic_text(plan.inside), *traffic_text(plan.between),
                     with_prefix(plan.memory, "B"), f"{plan.idle:,}"])
    return table(rows, text=1)


def traffic_text(traffic):
    return f"{traffic.messages:,.0f}", with_prefix(traffic.bytes, "B")


def prediction(analysis):
    """The parts of the section on the prediction."""
    refused = "".join(f"<li>{counted(plan.ranks, 'rank')}: {html.escape(plan.refusal.removeprefix('nanorun: '))}</li>"
                      for plan in analysis.refused)
    note = f'<div class="note">Not predicted:<ul>{refused}</ul></div>' if refused else ""
    if analysis.no_forecast:
        return [f'<div class="note">No prediction: {html.escape(analysis.no_forecast)}</div>', note]
    return [note, paragraph(network(analysis)), side_by_side(
        figure("forecast", "Predicted efficiency", analysis),
        figure("forecast_parts", "Predicted parts of a step", analysis)),
        "<ul>" + "".join(f"<li>{html.escape(s)}</li>" for s in findings(analysis)) + "</ul>",
        forecast_table(analysis)]


PLACE = ("hosts", "devices")  # fields of a run's provenance


def provenance(analysis, name):
    """What the runs record under a name: text -> number of runs."""
    return collections.Counter(m.provenance.get(name, "not recorded") for m in analysis.measurements)


def provenance_rows(analysis):
    rows = []
    for name in BUILD + PLACE:
        if any(name in m.provenance for m in analysis.measurements):
            said = provenance(analysis, name)
            rows.append([name, next(iter(said)) if len(said) == 1 else
                         "; ".join(f"{value} ({n} run{'s' if n > 1 else ''})" for value, n in said.items())])
    return rows


def mixed_builds(analysis):
    """A note if the runs are not all of one build."""
    names = [name for name in BUILD if len(provenance(analysis, name)) > 1]
    if not names:
        return ""
    return f'<div class="note">Runs of different builds are mixed: they differ in {", ".join(names)}.</div>'


def setup(analysis):
    study = analysis.study
    shared = [m.ranks for m in analysis.points if sharing(study, m.ranks) > 1]
    rows = [["setting", "value"], ["deck", study.deck], ["overrides", " ".join(study.overrides) or "none"],
            ["steps", f"{study.steps}, of which the first {study.warmup} do not count"],
            ["repeats", study.repeats], ["machine", study.machine or "not named"],
            ["rank counts that share cores", ", ".join(map(str, shared)) or "none"],
            ["runs side by side", f"as many as fill {study.launch.cores} cores" if study.launch.fill else "none"]]
    return mixed_builds(analysis) + table(rows + provenance_rows(analysis), "text")


def page(analysis):
    return document(
        f"Scaling study {analysis.study.name}", heading(analysis), tiles_of(analysis),
        section("Runs", missing_section(analysis)),
        section("Throughput and efficiency", side_by_side(
            figure("throughput", "Tokens per second by rank count", analysis),
            figure("speed_up", "Speed-up by rank count", analysis),
            figure("efficiency", "Efficiency by rank count", analysis), points_table(analysis))),
        section("Where the time goes", paragraph(
            "Means over the middle half of the counted steps of the median repeat; whiskers span the repeats. Waiting "
            "is what a rank spends in a collective beyond the quickest rank of that step. Overlap is the share of the "
            "communication that ran beside computing."), side_by_side(
            figure("phases", "Step time by phase and rank count", analysis),
            figure("split", "Shares of computing, communication and waiting", analysis))),
        section("Ranks", paragraph(
            "Time that each rank spends outside of collectives: most, mean and least of the ranks, the spread (most - "
            "least) / mean, and the share of the steps in which the slowest rank took the most."), side_by_side(
            figure("ranks", "Work of each rank", analysis), ranks_table(analysis)), gpus_table(analysis)),
        section("Model", side_by_side(figure("model", "Measured, fitted and predicted steps", analysis),
                                      coefficients(analysis)), error_table(analysis)),
        section("Messages and memory", paragraph(
            "What nanorun plans for a step on the rank that sends most, inside its node and to other nodes."),
            traffic_table(analysis)),
        section("Prediction", *prediction(analysis)),
        section("All runs", paragraph("runs.csv beside this page has the time of every phase too."),
                runs_table(analysis)),
        section("Setup", setup(analysis)))


def write(analysis):
    """Writes runs.csv, report.html and report.png into the study's directory, and machine.json where there is a
    forecast; returns their paths."""
    folder = analysis.study.folder
    paths = [folder / "runs.csv", folder / "report.html", folder / "report.png"]
    gather.write_csv(paths[0], gather.table(analysis.measurements))
    tool.write(paths[1], page(analysis))
    figures.save_overview(paths[2], analysis, heading(analysis))
    known = machine.table(analysis)
    if known:
        paths.append(folder / machine.file_name(analysis.study))
        tool.write(paths[-1], json.dumps(known, indent=2) + "\n")
    return paths
