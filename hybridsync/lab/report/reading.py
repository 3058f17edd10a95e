"""Reads what runs left into records; every refusal names the file and what to change."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridsync.core.errors import HybridSyncError, WorkdirError
from hybridsync.lab.report.stalls import switch_stalls
from hybridsync.storage.durable import read_file
from hybridsync.storage.jsonl import read_lines
from hybridsync.telemetry.events import EVENTS_FILE, FIELDS, unsound
from hybridsync.telemetry.kinds import KINDS, is_number, shown, wrong
from hybridsync.telemetry.metrics import FIELDS as METRICS_FIELDS
from hybridsync.telemetry.metrics import METRICS_FILE, moved
from hybridsync.telemetry.metrics import MORE as METRICS_MORE
from hybridsync.telemetry.older_times import training_times
from hybridsync.telemetry.run_record import Record
from hybridsync.telemetry.summary import CONFIG_FILE, SUMMARY_FILE, read_config, read_summary
from hybridsync.telemetry.timeline import FIELDS as TIMELINE_FIELDS
from hybridsync.telemetry.timeline import TIMELINE_FILE

SIMULATION_FILE = "simulation.json"
"""Beside the record of a simulated run."""

SEARCH_FILE = "search.json"
"""In a search's folder: where it has come to."""

SEARCH = {
    "job": "a text",
    "where": "a text",
    "runs": "a count",
    "tolerance": "a number",
    "target": "a number or null",
    "settings": "a list",
    "missing": "a text or null",
    "answer": "a text or null",
    "lines": "texts",
}
SETTING = {
    "plan": "a text",
    "share": "a number above 0",
    "accuracies": "numbers or nulls",
    "mean": "a number or null",
    "converged": "a number or null",
    "spread": "a number or null",
    "secs_a_run": "a number or null",
    "accepted": "true, false or null",
    "verdict": "a text",
}
"""The fields of a search's record, and of each of its settings."""

FIGURES = {"workload", "unit_size", "workers", "servers", "examples", "seconds"} | {
    *("issued", "applied", "dropped", "outstanding", "rolled_back"),
}
"""Numbers that a page shows of a configuration and a summary."""

NAMED = 5
"""How many folders a refusal names."""

BEFORE_WORK = ("run_started", "role_started", "worker_joined", "checkpoint")
"""Kinds of events that a run writes before there is anything to show."""


def named(workdirs: Sequence[str | os.PathLike[str]]) -> dict[str, Path]:
    """Return the workdirs of some runs by names that tell them apart; a workdir that is named twice counts once."""
    paths = [Path(workdir) for workdir in workdirs]
    names = [path.resolve().name for path in paths]
    return dict(zip(names if len(set(names)) == len(names) else map(str, paths), paths, strict=True))


def shown_records(workdirs: Sequence[str | os.PathLike[str]]) -> list[Record]:
    """Return the records of some runs for their page, each with a name of its own.

    Raises:
        WorkdirError: a folder holds no run, a run that has nothing to show yet, or a damaged file.
    """
    return [shown_record(path, name) for name, path in named(workdirs).items()]


def shown_record(workdir: Path, name: str) -> Record:
    """Return what the run in `workdir` left, with its timeline.

    Raises:
        WorkdirError: as `shown_records`.
    """
    record = read_record(workdir, name)
    if record.summary is None and all(event["kind"] in BEFORE_WORK for event in record.events):
        raise WorkdirError(f"the run in {workdir} has nothing to show yet: no phase was entered; come back when one is")
    try:
        rows = _read_trace(workdir / TIMELINE_FILE)
    except OSError as error:
        raise _unreadable(error) from None
    trace = [row for row in rows if isinstance(row, dict) and not wrong(row, TIMELINE_FIELDS)]
    try:
        stalls = switch_stalls(trace, record.events)
    except (KeyError, TypeError) as error:
        raise WorkdirError(f"{workdir / TIMELINE_FILE} is no timeline of this run ({error!r}); remove it") from None
    return dataclasses.replace(
        record,
        trace=trace,
        stall_secs={stall.phase: stall.stall_secs for stall in stalls},
        num_unreadable=record.num_unreadable + len(rows) - len(trace),
    )


def read_record(workdir: Path, name: str) -> Record:
    """Return what the run in `workdir` left, except its timeline; files that a run may lack are empty.

    Raises:
        WorkdirError: the folder holds no run, or a damaged file.
    """
    if not workdir.is_dir():
        raise WorkdirError(f"there is no folder {workdir}; name the --workdir of a run")
    try:
        config, summary = read_config(workdir), read_summary(workdir)
        if config is None and not (workdir / EVENTS_FILE).exists():
            raise WorkdirError(
                f"{workdir} holds no run: neither {CONFIG_FILE} nor {EVENTS_FILE}; name a run's --workdir"
                f"{_below(workdir)}"
            )
        events = read_lines(workdir / EVENTS_FILE)
        metrics = read_lines(workdir / METRICS_FILE)
        simulation = _read_object(workdir / SIMULATION_FILE)
    except OSError as error:
        raise _unreadable(error) from None
    num_lines = len(events) + len(metrics)
    events = [event for event in events if not unsound(event)]
    metrics = [line for line in metrics if not wrong(line, {**METRICS_FIELDS, **METRICS_MORE})]
    _check_figures(workdir / CONFIG_FILE, (config or {}).get("config") or {})
    _check_figures(workdir / SUMMARY_FILE, {**(summary or {}), **((summary or {}).get("units") or {}), "units": 0})
    for event in events:
        _check(workdir / EVENTS_FILE, event, ("t", "kind", "phase", *FIELDS.get(event.get("kind", ""), ())))
    for line in metrics:
        _check(workdir / METRICS_FILE, line, tuple(METRICS_FIELDS))
    events, late = training_times(events)
    metrics = moved(metrics, late)
    return Record(
        name=name,
        config=config,
        events=events,
        metrics=metrics,
        summary=summary,
        simulation=simulation,
        num_unreadable=num_lines - len(events) - len(metrics),
    )


@contextlib.contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Refuse a run or a search, by its folder, for what reading or drawing it raises."""
    try:
        yield
    except HybridSyncError:
        raise
    except OSError as error:
        raise WorkdirError(
            f"cannot read {error.filename}: {error.strerror}; name the --workdir of a run that you have access to"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WorkdirError(f"a file in {folder} is damaged ({error!r:.120}); restore the damaged file") from error


def _unreadable(error: OSError) -> WorkdirError:
    return WorkdirError(f"cannot read {error.filename}: {error.strerror}; give yourself access to it")


def _check_figures(path: Path, values: Mapping[str, Any]) -> None:
    """Check the numbers that a page shows of a configuration or a summary."""
    for name in FIGURES & values.keys():
        if not is_number(values[name]):
            raise WorkdirError(f"{path} is damaged: {name} is {shown(values[name])}, not a number; restore it")


def _below(folder: Path) -> str:
    """Return a part of a sentence that names what there is in a folder of runs or of searches."""
    marks = (CONFIG_FILE, SEARCH_FILE)
    found = sorted({path.parent.name for mark in marks for path in folder.glob(f"*/{mark}")})
    more = ", ..." if len(found) > NAMED else ""
    return f"; it has some in {', '.join(found[:NAMED])}{more}" if found else ""


def read_search(folder: Path) -> dict[str, Any] | None:
    """Return what a search left in `folder`; None where there is none.

    Raises:
        WorkdirError: the file is damaged.
    """
    path = folder / SEARCH_FILE
    search = _read_object(path)
    if search is not None:
        _check_kinds(path, search, SEARCH, "")
        for at, setting in enumerate(search["settings"]):
            if not isinstance(setting, dict):
                raise WorkdirError(f"{path} is damaged: settings[{at}] is {shown(setting)}, not an object; restore it")
            setting.setdefault("converged", None)  # records that were written before it was counted lack it
            _check_kinds(path, setting, SETTING, f"settings[{at}].")
    return search


def _read_trace(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(read_file(path))["traceEvents"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise WorkdirError(
            f"{path} is damaged ({error}); restore it, or remove it and lose its part of the page"
        ) from None


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(read_file(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WorkdirError(f"{path} is damaged ({error}); restore it") from None
    if not isinstance(value, dict):
        raise WorkdirError(f"{path} is damaged: it holds a {type(value).__name__}; restore it")
    return value


def _check(path: Path, line: Mapping[str, Any], fields: Sequence[str]) -> None:
    missing = [field for field in fields if field not in line]
    if missing:
        raise WorkdirError(f"{path} is damaged: the line {shown(line)} lacks {', '.join(missing)}; restore the file")


def _check_kinds(path: Path, values: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    """Check that an object holds a value of its kind under each name; `where` it stands in the file."""
    _check(path, values, tuple(kinds))
    for name, kind in kinds.items():
        if not KINDS[kind](values[name]):
            raise WorkdirError(f"{path} is damaged: {where}{name} is {shown(values[name])}, not {kind}; restore it")
