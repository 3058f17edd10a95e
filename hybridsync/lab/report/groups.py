"""Runs by groups, with mean and deviation over each group's runs. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hybridsync.config.keywords import did_you_mean
from hybridsync.config.resume_rules import flattened
from hybridsync.core.counted import counted
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.commands import ENDS
from hybridsync.lab.report.averages import Spread, mean_line, spread_of
from hybridsync.lab.report.charts import NUM_COLORS, STYLES, Chart, Line, Over
from hybridsync.lab.report.history import RunHistory
from hybridsync.lab.report.model import differing
from hybridsync.lab.report.scales import Point, natural, number

Axis = Literal["secs", "units", "examples"]
OVER: Mapping[Axis, Over] = {"secs": "time", "units": "units", "examples": "examples"}
FALLING = ("loss", "perplexity", "error")
"""Figures that training brings down: `at` is reached from above."""


@dataclass(frozen=True)
class Group:
    """Runs that have the same values of what they are grouped by.

    Args:
        values: those values, in order.
        runs: the runs, in order.
    """

    values: tuple[Any, ...]
    runs: tuple[RunHistory, ...]

    @property
    def averaged(self) -> tuple[RunHistory, ...]:
        """Return the runs that a mean line is of: those that completed or were stopped, or all while none has.

        A mean ends where the first of its runs ends, so one that failed early would leave little of it.
        """
        return tuple(run for run in self.runs if run.exit in ENDS) or self.runs


@dataclass(frozen=True)
class Groups:
    """Groups of runs, with mean and deviation over each group's runs.

    Args:
        by: keys of the configuration that the runs are grouped by.
        groups: the groups, in natural order of their values, each with its runs in that of their names.
        at: value of `figure` that is to be reached; None for none.
        figure: figure of the evaluations that `at` and `svg` are about.
    """

    by: tuple[str, ...]
    groups: tuple[Group, ...]
    at: float | None
    figure: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row a group: its values, `runs`, `completed`, `reached`, and X_mean, X_sd and X_n of each figure X.

        Final figures, `seconds` and `examples_per_sec` are of the runs that completed, or were stopped by a callback:
        `completed` counts both. `secs_to_reach` and `units_to_reach` are of each run's first evaluation at `at`.
        """
        rows = []
        for group in self.groups:
            row: dict[str, Any] = {**dict(zip(self.by, group.values, strict=True)), "runs": len(group.runs)}
            row["completed"] = sum(run.exit in ENDS for run in group.runs)
            if self.at is not None:
                row["reached"] = sum(self._reached(run) is not None for run in group.runs)
            for name, spread in self._spreads(group).items():
                row |= {f"{name}_mean": spread.mean, f"{name}_sd": spread.sd, f"{name}_n": spread.n}
            rows.append(row)
        return rows

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Return a row a run: its name, its group's values, its seed, how it ended, and its figures."""
        return [
            {
                "run": run.name,
                **dict(zip(self.by, group.values, strict=True)),
                "seed": run.config.get("seed"),
                "exit": run.exit,
                **self._figures(run),
            }
            for group in self.groups
            for run in group.runs
        ]

    @property
    def mixed(self) -> list[str]:
        """Return the keys of the configuration, but the seed, in which runs of one group differ: a mean hides them."""
        found = {key for group in self.groups for key in differing([run.config for run in group.runs])}
        return sorted(found - {"seed", *self.by})

    @property
    def alike(self) -> int:
        """Return the number of runs that each group's line is of; 0 where groups differ in it, or not all count."""
        numbers = {number for group in self.groups for number in (len(group.runs), len(group.averaged))}
        return min(numbers) if len(numbers) == 1 else 0

    @property
    def labels(self) -> list[str]:
        """Return each group's name in a legend: the values that differ, and of how many runs it is, if that does."""
        differ = [len(set(values)) > 1 for values in zip(*(group.values for group in self.groups), strict=True)]
        names = []
        for group in self.groups:
            values = [str(value) for value, told in zip(group.values, differ, strict=True) if told or not any(differ)]
            some = f"{len(group.averaged)} of " if len(group.averaged) < len(group.runs) else ""
            names.append(", ".join(values) + ("" if self.alike else f" ({some}{counted(len(group.runs), 'run')})"))
        return names

    def chart(self, x: Axis = "secs") -> Chart:
        """Return what `svg` draws."""
        if x not in OVER:
            raise ConfigError(f"x must be one of {', '.join(get_args(Axis))}, got {x!r}; correct it")
        lines = []
        for at, (group, label) in enumerate(zip(self.groups, self.labels, strict=True)):
            mean = mean_line(_curve(run, x, self.figure) for run in group.averaged)
            style = STYLES[at % len(STYLES)]  # in print without colours, neighbours differ
            lines.append(Line(label, at, at % NUM_COLORS, style=style, points=mean.points, edges=mean.edges))
        falls = self.figure in FALLING
        title = self.figure.capitalize() + (f", mean of {self.alike} runs" if self.alike > 1 else "")
        title += ", band of one standard deviation" if any(line.edges for line in lines) else ""
        return Chart(title, OVER[x], lines, from_zero=False, settled=not falls, may_be_log=falls)

    def cells(self) -> list[list[str]]:
        """Return the table's head and rows as texts."""
        figures = list(dict.fromkeys(name for group in self.groups for name in self._spreads(group)))
        goal = "" if self.at is None else f"{self.at:g}"
        words = {
            "examples_per_sec": "examples/s",
            "secs_to_reach": f"seconds to {goal}",
            "units_to_reach": f"units to {goal}",
        }
        cells = [[*self.by, "completed", *(words.get(name, name) for name in figures)]]
        cells[0] += [f"reached {goal}"] if goal else []
        for group, row in zip(self.groups, self.rows, strict=True):
            spreads = self._spreads(group)
            told = [_told(spreads.get(name, Spread(None, None, 0))) for name in figures]
            reached = [f"{row['reached']} of {row['runs']}"] if goal else []
            cells.append([*map(str, group.values), f"{row['completed']} of {row['runs']}", *told, *reached])
        return cells

    def _spreads(self, group: Group) -> dict[str, Spread]:
        figures = [self._figures(run) for run in group.runs]
        names = dict.fromkeys(name for each in figures for name in each)
        return {name: spread_of(each.get(name) for each in figures) for name in names}

    def _figures(self, run: RunHistory) -> dict[str, float | None]:
        """Return a run's figures; None for one that it has not, or not yet."""
        summary = run.summary if run.exit in ENDS else {}
        final = {key: value for key, value in summary.get("final", {}).items() if isinstance(value, int | float)}
        secs = summary.get("seconds")
        figures = {**final, "seconds": secs, "examples_per_sec": summary["examples"] / secs if secs else None}
        if self.at is not None:
            reached = self._reached(run) or {}
            figures |= {"secs_to_reach": reached.get("secs"), "units_to_reach": reached.get("units")}
        return figures

    def _reached(self, run: RunHistory) -> Mapping[str, Any] | None:
        """Return the run's first evaluation at which it has reached `at`; None if there is none."""
        assert self.at is not None
        for evaluation in run.evaluations:
            value = evaluation.get(self.figure)
            if value is not None and (value <= self.at if self.figure in FALLING else value >= self.at):
                return evaluation
        return None


def group_by(
    histories: Sequence[RunHistory],
    by: tuple[str, ...],
    *,
    at: float | None = None,
    figure: str | None = None,
) -> Groups:
    """Return runs by groups; see `hybridsync.compare`.

    Raises:
        ConfigError: as there.
    """
    if at is not None and not math.isfinite(at):
        raise ConfigError(f"at must be a number that can be reached, got {at}; correct it")
    flat = [flattened(run.config) for run in histories]
    known = sorted({key for values in flat for key in values})
    for key in by:
        if key not in known:
            raise ConfigError(f"no run's configuration has a value {key!r}; {did_you_mean(key, known)}")
    measured = {key for run in histories for each in run.evaluations for key, value in each.items() if is_figure(value)}
    measured -= {"secs", "lasted_secs", "units", "examples", "phase"}
    if figure is None:
        figure = next((name for name in ("accuracy", "loss") if name in measured), min(measured, default="accuracy"))
    elif figure not in measured and measured:
        raise ConfigError(f"no run has a figure {figure!r}; they have {', '.join(sorted(measured))}: name one of those")
    groups: dict[tuple[Any, ...], list[RunHistory]] = {}
    for run, values in zip(histories, flat, strict=True):
        groups.setdefault(tuple(values.get(key, "-") for key in by), []).append(run)
    found = tuple(
        Group(values, tuple(sorted(groups[values], key=lambda run: natural(run.name))))
        for values in sorted(groups, key=lambda values: [natural(value) for value in values])
    )
    return Groups(by, found, at, figure)


def is_figure(value: Any) -> bool:
    """Return whether a value of an evaluation is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(run: RunHistory, x: str, figure: str) -> list[Point]:
    return [(each[x], each[figure]) for each in run.evaluations if is_figure(each.get(figure)) and each[x] is not None]


def _told(spread: Spread) -> str:
    # A deviation of a few runs is itself known to about a third: two digits say it.
    return number(spread.mean) + (f" ± {number(float(f'{spread.sd:.2g}'))}" if spread.sd is not None else "")
