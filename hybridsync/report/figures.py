"""Chooses the line charts of a page and the lines in them."""

from collections.abc import Mapping, Sequence

from hybridsync.report.charts import NUM_COLORS, STYLES, Band, Chart, Line
from hybridsync.report.model import RunModel
from hybridsync.report.scales import Point


def figures(runs: Sequence[RunModel], colors: Mapping[str, int]) -> list[Chart]:
    """Return the page's charts; several runs share each of them.

    Args:
        runs: runs in the order of the page.
        colors: protocol to index into the page's colours.
    """
    secs = max(run.secs for run in runs)
    bands = [Band(bar.begin, bar.end, colors[bar.protocol]) for bar in runs[0].phases] if len(runs) == 1 else []
    charts = [
        Chart("Examples per second", "time", _rates(runs), bands, x_high=secs),
        Chart("Examples per second of each worker", "time", _worker_rates(runs), bands, x_high=secs),
        Chart("Staleness in updates", "time", _staleness(runs), bands, x_high=secs),
        Chart("Learning rate", "time", _learning_rates(runs), bands, x_high=secs, may_be_log=True),
    ]
    for x in ("time", "examples"):
        over = "t" if x == "time" else "examples"
        behind, high = (bands, secs) if x == "time" else ([], 0.0)
        note = "Dots are evaluations of the whole state, the line is the training loss."
        charts.append(Chart("Loss", x, _losses(runs, over), behind, note, high, may_be_log=True))
        note = "What is lower in the first quarter stands at the lower edge."
        charts.append(Chart("Accuracy", x, _accuracies(runs, over), behind, note, high, from_zero=False, settled=True))
    return charts


def _label(runs: Sequence[RunModel], run: RunModel, what: str) -> str:
    return what if len(runs) == 1 else f"{run.name}, {what}" if what else run.name


def _rates(runs: Sequence[RunModel]) -> list[Line]:
    return [
        Line(run.name, at, at % NUM_COLORS, "solid", run.line("t", lambda line: line["examples_per_sec"]))
        for at, run in enumerate(runs)
    ]


def _learning_rates(runs: Sequence[RunModel]) -> list[Line]:
    return [
        Line(run.name, at, at % NUM_COLORS, "solid", run.line("t", lambda line: line["learning_rate"]))
        for at, run in enumerate(runs)
    ]


def _worker_rates(runs: Sequence[RunModel]) -> list[Line]:
    """Return a line a worker: its colour tells workers of one run apart, its style those of several."""
    lines = []
    for at, run in enumerate(runs):
        for place, worker in enumerate(run.workers):
            color, turn = (place % NUM_COLORS, place // NUM_COLORS) if len(runs) == 1 else (at % NUM_COLORS, place)
            points = run.line("t", lambda line, key=str(worker): line["workers"].get(key))
            label = _label(runs, run, f"worker {worker}")
            lines.append(Line(label, at, color, STYLES[turn % len(STYLES)], points))
    return lines


def _staleness(runs: Sequence[RunModel]) -> list[Line]:
    lines = []
    for at, run in enumerate(runs):
        for place, figure in enumerate(("mean", "p95", "max")):
            color = place if len(runs) == 1 else at % NUM_COLORS
            points = run.line("t", lambda line, figure=figure: line["staleness"][figure])
            lines.append(Line(_label(runs, run, figure), at, color, STYLES[place], points))
    return lines


def _losses(runs: Sequence[RunModel], over: str) -> list[Line]:
    lines = []
    for at, run in enumerate(runs):
        color = at % NUM_COLORS
        evaluated = _evaluations(run, over, "loss")
        lines.append(Line(_label(runs, run, "training"), at, color, "solid", run.line(over, lambda line: line["loss"])))
        if evaluated:
            lines.append(Line(_label(runs, run, "evaluated"), at, color, "dots", evaluated))
    return lines


def _accuracies(runs: Sequence[RunModel], over: str) -> list[Line]:
    return [
        Line(run.name, at, at % NUM_COLORS, "marked", _evaluations(run, over, "accuracy"))
        for at, run in enumerate(runs)
    ]


def _evaluations(run: RunModel, over: str, figure: str) -> list[Point]:
    return [
        (getattr(evaluation, over), getattr(evaluation, figure))
        for evaluation in run.evaluations
        if getattr(evaluation, figure) is not None
    ]
