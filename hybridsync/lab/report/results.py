"""What users read back: `hybridsync.read_run(folder)` and `hybridsync.compare(["runs/*"], by="plan", at=0.94)`."""

import csv
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from hybridsync.core.errors import WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.lab.report.charts import draw_svg
from hybridsync.lab.report.groups import Axis, Groups, group_by
from hybridsync.lab.report.history import RunHistory, history_of
from hybridsync.lab.report.reading import read_record, refusing
from hybridsync.lab.report.scales import natural
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.summary import CONFIG_FILE

Source = str | os.PathLike[str] | RunHistory


@dataclass(frozen=True, repr=False)
class Comparison(Groups):
    """Groups of runs, with files of their table and their figure.

    Args:
        left_out: reasons, one for each folder of a pattern that was left out.
    """

    left_out: tuple[str, ...] = ()

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

    def __repr__(self) -> str:
        head, *rows = self.cells()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
        return "\n".join(line.rstrip() for line in (*lines, *self._notes()))

    def _repr_html_(self) -> str:
        head, *rows = ([f"<td>{escape(cell)}</td>" for cell in row] for row in self.cells())
        table = f"<thead><tr>{''.join(head).replace('td>', 'th>')}</tr></thead>"
        table += "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<table>{table}</table>{notes}{draw_svg(self.chart())}"

    def _notes(self) -> list[str]:
        notes = [f"left out: {reason}" for reason in self.left_out]
        if self.mixed:
            notes.append(f"runs of one group differ in {', '.join(self.mixed)}: add what matters to by")
        return notes


def read_run(folder: str | os.PathLike[str]) -> RunHistory:
    """Read back what the run in `folder` (its workdir) did, finished or not.

    A run that has entered no phase yet has empty lists.

    Raises:
        WorkdirError: there is no such folder, it holds no run, or a file in it is damaged.
    """
    path = local_path(folder)
    with refusing(path):
        return history_of(read_record(path, os.fspath(folder)))


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
    found = group_by(histories, keys, at=at, figure=figure)
    return Comparison(found.by, found.groups, found.at, found.figure, tuple(left_out))


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
    paths = sorted(glob.glob(os.path.expanduser(pattern)), key=natural)
    return [path for path in paths if any((Path(path) / file).exists() for file in (CONFIG_FILE, EVENTS_FILE))]


def _unwritten(path: Path, error: OSError) -> WorkdirError:
    return WorkdirError(f"cannot write {path}: {error.strerror}; name another file")
