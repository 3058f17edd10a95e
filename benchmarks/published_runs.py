"""Reads a table of published runs: for each share of lock-step the accuracies and the seconds of its runs.

The table is a CSV file with one run a row. Columns may stand in any order, beside others:

    bsp_share                    share of lock-step: 0.0625, 1/16 or 6.25%
    converged_accuracy           0.918 or 91.8%; empty or `nan` for a run that diverged
    seconds_without_switch_gap   of the whole run; empty or `nan` where a diverged run was broken off
    excluded_by_authors          1 leaves the row out; without the column nothing is left out

Nothing depends on which shares there are, or how many runs a share has; whoever needs one of them says so.

Source: runs of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeVar

from hybridsync.core.errors import ConfigError

LOCK_STEP = Fraction(1)
SHARE, ACCURACY, SECONDS, EXCLUDED = (
    "bsp_share",
    "converged_accuracy",
    "seconds_without_switch_gap",
    "excluded_by_authors",
)


class Made(NamedTuple):
    """A published run: its accuracy, None where it diverged, and its seconds."""

    accuracy: float | None
    seconds: float


Runs = Mapping[Fraction, Sequence[Made]]
Times = Mapping[Fraction, float]


def read_runs(path: Path) -> Runs:
    """Return the runs of each share, without the rows that the authors left out.

    A diverged run without seconds takes what the table says of its share: the mean of its other runs, else the point
    on the line through the nearest shares, or the nearest share's time where that line comes to nothing.

    Raises:
      ConfigError: there is no such file, it is not such a table, or it lacks pure BSP with an accuracy, or any share
        below it.
    """
    rows = _rows(path, (SHARE, ACCURACY, SECONDS))
    if not any(share == LOCK_STEP and accuracy is not None for share, accuracy, _ in rows):
        raise ConfigError(
            f"{path} has the BSP shares {_listed(rows)}; it needs runs of share 1 that have an accuracy, whose mean is "
            "the target"
        )
    if all(share == LOCK_STEP for share, _, _ in rows):
        raise ConfigError(f"{path} has runs of pure BSP alone; it needs runs of at least one share below 1")
    times = _means(rows)
    runs: dict[Fraction, list[Made]] = {}
    for share, accuracy, seconds in rows:
        if seconds is None:
            seconds = time_of(times, share) or times[min(times, key=lambda other: abs(other - share))]
        runs.setdefault(share, []).append(Made(accuracy, seconds))
    return runs


def read_means(path: Path) -> Times:
    """Return the mean seconds of each share that has any; the table needs no accuracies for that.

    Raises:
      ConfigError: there is no such file, or it is not such a table.
    """
    return _means(_rows(path, (SHARE, SECONDS)))


def time_of(times: Times, share: Fraction) -> float:
    """Return what a run of a share takes: as published, else on the line through two shares beside it, or near it.

    >>> times = {Fraction(1, 4): 40.0, Fraction(1, 2): 60.0, Fraction(1): 100.0}
    >>> [time_of(times, Fraction(at)) for at in ("0.25", "0.75", "0")]
    [40.0, 80.0, 20.0]
    """
    if share in times:
        return times[share]
    below = [other for other in sorted(times) if other < share]
    above = [other for other in sorted(times) if other > share]
    near = (below[-1:] + above)[:2] if above else below[-2:]  # beyond the last share: on the line through the last two
    if len(near) < 2:
        return times[near[0]]
    first, second = near
    on_line = times[first] + float((share - first) / (second - first)) * (times[second] - times[first])
    return max(on_line, 0.0)


Row = tuple[Fraction, float | None, float | None]


def _rows(path: Path, needed: Sequence[str]) -> list[Row]:
    """Return share, accuracy and seconds of each run.

    Args:
      path: of the table.
      needed: columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
            if twice := [name for name in (SHARE, ACCURACY, SECONDS, EXCLUDED) if names.count(name) > 1]:
                raise ConfigError(f"line 1 of {path} names the column {twice[0]!r} twice; rename one of them")
            if missing := [name for name in needed if name not in reader.fieldnames]:
                raise ConfigError(
                    f"line 1 of {path} names no column {missing[0]!r}, but {', '.join(reader.fieldnames) or 'nothing'}"
                    "; name the columns as benchmarks/published_runs.py does"
                )
            rows = [_row(line, f"line {number} of {path}") for number, line in enumerate(reader, 2)]
    except OSError as error:
        raise ConfigError(f"the table of runs {path} cannot be read: {error.strerror}; name another file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no table of runs: {error}; name another file") from error
    return [row for row in rows if row is not None]


def _row(line: Mapping[str, str | None], where: str) -> Row | None:
    """Return one run; None where its authors left it out."""
    if missing := [name for name, text in line.items() if name and text is None]:
        raise ConfigError(f"{where} ends before its column {missing[0]!r}; complete it")
    share = _number(line, SHARE, where, Fraction)
    accuracy, seconds, excluded = (_number(line, name, where, float) for name in (ACCURACY, SECONDS, EXCLUDED))
    if excluded:
        return None
    if share is None or not 0 <= share <= 1:
        raise ConfigError(
            f"{where}: the BSP share {line[SHARE]!r} is not in [0, 1]; write a sixteenth as 0.0625 or 6.25%"
        )
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ConfigError(f"{where}: the accuracy {line[ACCURACY]!r} is not in [0, 1]; write it as 0.918 or 91.8%")
    if seconds is None:
        if ACCURACY not in line or accuracy is not None:
            raise ConfigError(f"{where} has no seconds; only a run without accuracy, which diverged, may lack them")
        return share, None, None
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{where}: the time {line[SECONDS]!r} is not above 0; correct it")
    return share, accuracy, seconds


Number = TypeVar("Number", Fraction, float)


def _number(line: Mapping[str, str | None], column: str, where: str, kind: Callable[[str], Number]) -> Number | None:
    """Return a number of one run; None where there is none."""
    text = (line.get(column) or "").strip()
    if text.lower() in ("", "nan"):
        return None
    try:
        found = kind(text.removesuffix("%").strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{where}: the column {column!r} has {text!r}, which is no number; correct it") from error
    return found / 100 if text.endswith("%") else found


def _means(rows: Sequence[Row]) -> Times:
    found: dict[Fraction, list[float]] = {}
    for share, _, seconds in rows:
        if seconds is not None:
            found.setdefault(share, []).append(seconds)
    return {share: statistics.fmean(some) for share, some in found.items()}


def _listed(rows: Sequence[Row]) -> list[float]:
    return [float(share) for share in sorted({share for share, _, _ in rows})]
