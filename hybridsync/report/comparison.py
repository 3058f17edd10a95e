"""Runs compared by groups, over their seeds: `hybridsync.compare(["runs/*"], by="plan", at=0.94)`."""

import csv
import glob
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

from hybridsync.config.keywords import did_you_mean
from hybridsync.core.counted import counted
from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.report.averages import Spread, mean_line, spread_of
from hybridsync.report.charts import NUM_COLORS, STYLES, Chart, Line, draw_svg
from hybridsync.report.history import RunHistory, read_run
from hybridsync.report.scales import Point, number
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.summary import CONFIG_FILE

Source = str | os.PathLike[str] | RunHistory
Axis = Literal["secs", "units", "examples"]
OVER: Mapping[Axis, Literal["time", "units", "examples"]] = {"secs": "time", "units": "units", "examples": "examples"}
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
        """Return the runs that a mean line is of: those that completed, or all while none has.

        A mean ends where the first of its runs ends, so one that failed early would leave little of it.
        """
        return tuple(run for run in self.runs if run.exit == "completed") or self.runs

    @property
    def label(self) -> str:
        """Return the group's name in a legend, with how many runs its line is of."""
        some = f"{len(self.averaged)} of " if len(self.averaged) < len(self.runs) else ""
        return f"{', '.join(map(str, self.values))} ({some}{counted(len(self.runs), 'run')})"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Groups of runs, with mean and deviation over each group's runs.

    Args:
        by: keys of the configuration that the runs are grouped by.
        groups: the groups, in the order of their first runs.
        at: value of `figure` that is to be reached; None for none.
        figure: figure of the evaluations that `at` and `svg` are about.
        left_out: reasons, one for each folder of a pattern that was left out.
    """

    by: tuple[str, ...]
    groups: tuple[Group, ...]
    at: float | None
    figure: str
    left_out: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row a group: its values, `runs`, `completed`, `reached`, and X_mean, X_sd and X_n of each figure X.

        Final figures, `seconds` and `examples_per_sec` are of the runs that completed. `secs_to_reach` and
        `units_to_reach` are of the runs that reached `at`, by their first evaluation there.
        """
        rows = []
        for group in self.groups:
            row: dict[str, Any] = {**dict(zip(self.by, group.values, strict=True)), "runs": len(group.runs)}
            row["completed"] = sum(run.exit == "completed" for run in group.runs)
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

    def csv(self, path: str | os.PathLike[str], *, of: Literal["groups", "runs"] = "groups") -> None:
        """Write `rows`, or `runs`, as a table of comma-separated values.

        Raises:
            WorkdirError: the file cannot be written.
        """
        rows = self.rows if of == "groups" else self.runs
        target = local_path(path)
        try:
            with open(target, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, [*dict.fromkeys(key for row in rows for key in row)])
                writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise _unwritten(target, error) from None

    def svg(self, path: str | os.PathLike[str], x: Axis = "secs") -> None:
        """Draw `figure` over "secs", "units" or "examples": each group's mean, and a band of one deviation around it.

        Raises:
            ConfigError: there is no such axis.
            WorkdirError: the file cannot be written.
        """
        text, target = draw_svg(self.chart(x)), local_path(path)
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritten(target, error) from None

    def chart(self, x: Axis = "secs") -> Chart:
        """Return what `svg` draws."""
        if x not in OVER:
            raise ConfigError(f"x must be one of {', '.join(get_args(Axis))}, got {x!r}; correct it")
        lines = []
        for at, group in enumerate(self.groups):
            mean = mean_line(_curve(run, x, self.figure) for run in group.averaged)
            style = STYLES[at // NUM_COLORS % len(STYLES)]
            lines.append(Line(group.label, at, at % NUM_COLORS, style, mean.points, mean.edges))
        falls = self.figure in FALLING
        title = self.figure.capitalize()
        return Chart(title, OVER[x], lines, from_zero=False, settled=not falls, may_be_log=falls)

    def __repr__(self) -> str:
        head, *rows = self._cells()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
        return "\n".join(line.rstrip() for line in (*lines, *self._notes()))

    def _repr_html_(self) -> str:
        head, *rows = ([f"<td>{escape(cell)}</td>" for cell in row] for row in self._cells())
        table = f"<thead><tr>{''.join(head).replace('td>', 'th>')}</tr></thead>"
        table += "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<table>{table}</table>{notes}{draw_svg(self.chart())}"

    def _cells(self) -> list[list[str]]:
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

    def _notes(self) -> list[str]:
        notes = [f"left out: {reason}" for reason in self.left_out]
        if self.mixed:
            notes.append(f"runs of one group differ in {', '.join(self.mixed)}: add what matters to by")
        return notes

    def _spreads(self, group: Group) -> dict[str, Spread]:
        figures = [self._figures(run) for run in group.runs]
        names = dict.fromkeys(name for each in figures for name in each)
        return {name: spread_of(each.get(name) for each in figures) for name in names}

    def _figures(self, run: RunHistory) -> dict[str, float | None]:
        """Return a run's figures; None for one that it has not, or not yet."""
        summary = run.summary if run.exit == "completed" else {}
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


def compare(
    runs: Source | Iterable[Source],
    by: str | Sequence[str] = "plan",
    at: float | None = None,
    *,
    figure: str | None = None,
) -> Comparison:
    """Compare runs by groups, with mean and standard deviation over each group's runs (its seeds).

    Args:
        runs: folders, patterns such as "runs/*", or histories. Of a pattern, what cannot be read is left out and named.
        by: key, or keys, of the configuration: "plan", "workers", "optimizer.learning_rate".
        at: value of `figure` whose time and units are looked for: from below, of a loss from above.
        figure: figure of the evaluations; None for the accuracy, or the loss where there is none.

    Raises:
        WorkdirError: a folder holds no run, or a damaged one; or there is no run at all.
        ConfigError: no run's configuration has a key of `by`, no run has such a figure, or `at` is not finite.
    """
    sources = [runs] if isinstance(runs, str | os.PathLike | RunHistory) else list(runs)
    histories, left_out = _read(sources)
    keys = (by,) if isinstance(by, str) else tuple(by)
    return group_by(histories, keys, at=at, figure=figure, left_out=left_out)


def group_by(
    histories: Sequence[RunHistory],
    by: tuple[str, ...],
    *,
    at: float | None = None,
    figure: str | None = None,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Return a comparison of runs; see `compare`."""
    if at is not None and not math.isfinite(at):
        raise ConfigError(f"at must be a number that can be reached, got {at}; correct it")
    flat = [flattened(run.config) for run in histories]
    known = sorted({key for values in flat for key in values})
    for key in by:
        if key not in known:
            raise ConfigError(f"no run's configuration has a value {key!r}; {did_you_mean(key, known)}")
    measured = {key for run in histories for each in run.evaluations for key, value in each.items() if is_figure(value)}
    measured -= {"secs", "units", "examples", "phase"}
    if figure is None:
        figure = next((name for name in ("accuracy", "loss") if name in measured), min(measured, default="accuracy"))
    elif figure not in measured and measured:
        raise ConfigError(f"no run has a figure {figure!r}; they have {', '.join(sorted(measured))}: name one of those")
    groups: dict[tuple[Any, ...], list[RunHistory]] = {}
    for run, values in zip(histories, flat, strict=True):
        groups.setdefault(tuple(values.get(key, "-") for key in by), []).append(run)
    found = tuple(Group(values, tuple(runs)) for values, runs in groups.items())
    return Comparison(by, found, at, figure, tuple(left_out))


def is_figure(value: Any) -> bool:
    """Return whether a value of an evaluation is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted keys.

    >>> flattened({"plan": "asp", "optimizer": {"name": "sgd"}})
    {'plan': 'asp', 'optimizer.name': 'sgd'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str | int | float | None) else str(value)
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys that do not have one value in all of these configurations, in order."""
    flat = [flattened(config) for config in configs]
    keys = dict.fromkeys(key for values in flat for key in values)
    return [key for key in keys if len({values.get(key, "-") for values in flat}) > 1]


def _read(sources: Sequence[Source]) -> tuple[list[RunHistory], list[str]]:
    """Return the runs, each once, and why folders of a pattern were left out."""
    found: dict[str, RunHistory] = {}
    left_out: list[str] = []
    for number_of, source in enumerate(sources):
        if isinstance(source, RunHistory):
            found[f"history {number_of}"] = source
        elif glob.has_magic(os.fspath(source)) and not local_path(source).exists():
            for path in _matches(source):
                try:
                    found.setdefault(str(local_path(path)), read_run(path))
                except WorkdirError as error:
                    left_out.append(str(error))
        else:
            found.setdefault(str(local_path(source)), read_run(source))
    if not found:
        raise WorkdirError(
            f"there is no run in {', '.join(map(str, sources)) or 'an empty list'}; name folders of runs"
        )
    return [*found.values()], left_out


def _matches(pattern: str | os.PathLike[str]) -> list[str]:
    """Return the folders of runs that match a pattern, in order; other folders and files are passed over."""
    paths = sorted(glob.glob(os.path.expanduser(pattern)))
    return [path for path in paths if any((Path(path) / file).exists() for file in (CONFIG_FILE, EVENTS_FILE))]


def _curve(run: RunHistory, x: str, figure: str) -> list[Point]:
    return [(each[x], each[figure]) for each in run.evaluations if is_figure(each.get(figure)) and each[x] is not None]


def _told(spread: Spread) -> str:
    # A deviation of a few runs is itself known to about a third: two digits say it.
    return number(spread.mean) + (f" ± {number(float(f'{spread.sd:.2g}'))}" if spread.sd is not None else "")


def _unwritten(path: Path, error: OSError) -> WorkdirError:
    return WorkdirError(f"cannot write {path}: {error.strerror}; name another file")
