"""Writes a search's progress into its folder for `hybridsync report`, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.reading import SEARCH_FILE
from hybridsync.lab.tuning.search_rules import Search, Setting, plan_of
from hybridsync.lab.tuning.search_table import next_line, verdict_lines, verdict_of
from hybridsync.storage.durable import write_durable


def record_of(search: Search, job: str, where: str) -> dict[str, Any]:
    """Return a search as plain values (see `hybridsync.lab.report.reading.SEARCH`).

    Args:
      search: search in progress, or at its end.
      job: name of the job.
      where: place of its runs, in words.
    """
    ended = search.missing is None
    return {
        "job": job,
        "where": where,
        "runs": search.rules.runs,
        "tolerance": search.rules.tolerance,
        "target": search.target,
        "settings": [_setting(search, setting) for setting in search.settings],
        "missing": None if ended else next_line(search),
        "answer": plan_of(search.share) if ended else None,
        "lines": verdict_lines(search) if ended else [],
    }


def write_record(folder: Path, search: Search, job: str, where: str) -> None:
    """Write a search's record into its folder, in place of the last one.

    Raises:
      WorkdirError: the disk refuses.
    """
    path = folder / SEARCH_FILE
    try:
        write_durable(path, json.dumps(record_of(search, job, where), indent=1) + "\n")
    except OSError as error:
        raise WorkdirError(f"cannot write {path}: {error.strerror}; make room, then give the command again") from None


def _setting(search: Search, setting: Setting) -> dict[str, Any]:
    return {
        "plan": plan_of(setting.share),
        "share": float(setting.share),
        "accuracies": [outcome.accuracy for outcome in setting.outcomes],
        "mean": setting.mean,
        "converged": setting.converged,
        "spread": setting.spread,
        "secs_a_run": setting.seconds / len(setting.outcomes) if setting.outcomes else None,
        "accepted": setting.accepted,
        "verdict": verdict_of(search, setting),
    }
