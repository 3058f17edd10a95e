"""Chooses the line charts of a page and the lines in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hybridsync.interfaces.commands import ENDS
from hybridsync.lab.report.averages import mean_line
from hybridsync.lab.report.charts import NUM_COLORS, STYLES, Band, Chart, Line, Over, Style
from hybridsync.lab.report.model import RunModel
from hybridsync.lab.report.scales import Point

OVER: Mapping[Over, str] = {"time": "t", "units": "units", "examples": "examples"}
"""The x axes of the charts of learning, each with the field of a line of metrics that it shows."""


@dataclass(frozen=True)
class Series:
    """What shares a colour: one run, or the runs of a group, of which a line is the mean.

    Args:
        label: text for the legend; "" for the only run of a page.
        run: index of the run, or of the group's first, so that the page can hide it.
        place: place among the page's series.
        runs: the runs.
    """

    label: str
    run: int
    place: int
    runs: tuple[RunModel, ...]

    @property
    def color(self) -> int:
        """Return the index into the page's colours."""
        return self.place % NUM_COLORS

    @property
    def style(self) -> Style:
        """Return how its lines are drawn: by it those of one colour are told apart."""
        return STYLES[self.place // NUM_COLORS % len(STYLES)]

    @property
    def averaged(self) -> tuple[RunModel, ...]:
        """Return the runs that a mean line is of; see `Group.averaged`."""
        return tuple(run for run in self.runs if run.exit in ENDS) or self.runs

    def line(
        self, points: Callable[[RunModel], Sequence[Point]], what: str = "", style: Style | None = None, color: int = -1
    ) -> Line:
        """Return a line of its runs: what it is of, if a chart has several of them."""
        first, *more = self.runs
        label = ", ".join(filter(None, (self.label, what))) or first.name
        mean = mean_line(points(run) for run in self.averaged)
        found = mean.points if more else points(first)  # one run's line may go back in x
        return Line(
            label,
            self.run,
            self.color if color < 0 else color,
            style=style or self.style,
            points=found,
            edges=mean.edges,
        )


def figures(series: Sequence[Series], colors: Mapping[str, int]) -> list[Chart]:
    """Return the page's charts; several runs, or groups of runs, share each of them.

    Args:
        series: runs or groups in the order of the page.
        colors: protocol to index into the page's colours.
    """
    secs = max(run.secs for each in series for run in each.runs)
    only = series[0].runs[0] if len(series) == 1 and len(series[0].runs) == 1 else None
    bands = [Band(bar.begin, bar.end, colors[bar.protocol]) for bar in only.phases] if only else []
    grouped = any(len(each.runs) > 1 for each in series)
    charts = [
        Chart("Examples per second", "time", _metric(series, "examples_per_sec"), bands, x_high=secs),
        *([] if grouped else [Chart(WORKERS, "time", _worker_rates(series, bool(only)), bands, x_high=secs)]),
        Chart("Staleness in updates", "time", _staleness(series, bool(only), grouped), bands, x_high=secs),
        Chart("Learning rate", "time", _metric(series, "learning_rate"), bands, x_high=secs, may_be_log=True),
    ]
    for x, over in OVER.items():
        behind, high = (bands, secs) if x == "time" else ([], 0.0)
        evaluated = [each.line(_evaluated(over, "loss"), "evaluated", "dots") for each in series]
        trained = [each.line(_of_metrics(over, "loss"), "training") for each in series]
        note = "Dots are evaluations of the whole state, the line is the training loss."
        if grouped:
            note = "Each group's mean, and one standard deviation around it."
            marked = [each.line(_evaluated(over, "loss")) for each in series]
            charts.append(
                Chart(
                    "Loss of evaluations",
                    x,
                    marked,
                    bands=behind,
                    note=note,
                    x_high=high,
                    may_be_log=True,
                    switched=True,
                )
            )
        loss = [each.line(_of_metrics(over, "loss")) for each in series] if grouped else _in_turn(trained, evaluated)
        title = "Training loss" if grouped else "Loss"
        charts.append(Chart(title, x, loss, bands=behind, note=note, x_high=high, may_be_log=True, switched=True))
        note = "What is lower in the first quarter stands at the lower edge."
        # A mean stands at places where no run was measured, so only single runs have marks.
        accuracy = [each.line(_evaluated(over, "accuracy"), style=None if grouped else "marked") for each in series]
        charts.append(
            Chart(
                "Accuracy",
                x,
                accuracy,
                bands=behind,
                note=note,
                x_high=high,
                from_zero=False,
                settled=True,
                switched=True,
            )
        )
    return charts


WORKERS = "Examples per second of each worker"


def _in_turn(trained: Sequence[Line], evaluated: Sequence[Line]) -> list[Line]:
    """Return each run's training loss and, where it has any, its evaluations."""
    return [line for both in zip(trained, evaluated, strict=True) for line in both if line is both[0] or line.points]


def _metric(series: Sequence[Series], figure: str) -> list[Line]:
    return [each.line(_of_metrics("t", figure)) for each in series]


def _of_metrics(over: str, figure: str) -> Callable[[RunModel], Sequence[Point]]:
    return lambda run: run.line(over, lambda line: line[figure])


def _evaluated(over: str, figure: str) -> Callable[[RunModel], Sequence[Point]]:
    return lambda run: [
        (getattr(evaluation, over), getattr(evaluation, figure))
        for evaluation in run.evaluations
        if getattr(evaluation, figure) is not None and getattr(evaluation, over) is not None
    ]


def _worker_rates(series: Sequence[Series], is_only: bool) -> list[Line]:
    """Return a line a worker: its colour tells workers of one run apart, its style those of several."""
    lines = []
    for each in series:
        for place, worker in enumerate(each.runs[0].workers):
            color, turn = (place % NUM_COLORS, place // NUM_COLORS) if is_only else (each.color, place)

            def rates(run: RunModel, key: str = str(worker)) -> Sequence[Point]:
                return run.line("t", lambda line: line["workers"].get(key))

            lines.append(each.line(rates, f"worker {worker}", STYLES[turn % len(STYLES)], color))
    return lines


def _staleness(series: Sequence[Series], is_only: bool, grouped: bool) -> list[Line]:
    """Return mean, p95 and max of each run; of groups the mean alone."""
    lines = []
    for each in series:
        for place, figure in enumerate(("mean",) if grouped else ("mean", "p95", "max")):

            def staleness(run: RunModel, figure: str = figure) -> Sequence[Point]:
                return run.line("t", lambda line: line["staleness"][figure])

            style, what = (None, "") if grouped else (STYLES[place], figure)
            lines.append(each.line(staleness, what, style, place if is_only else -1))
    return lines
