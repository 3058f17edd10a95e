"""One sitting of a search: its folder, locked; the history, opened; the runs, made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybridsync.config import RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import WorkdirError
from hybridsync.lab.tuning.job_history import History, default_place
from hybridsync.lab.tuning.recurring_job import Job
from hybridsync.lab.tuning.search import Runner, carry_out
from hybridsync.lab.tuning.search_record import write_record
from hybridsync.lab.tuning.search_rules import Rules, Search
from hybridsync.storage.durable import WorkdirLock, make_directory

RUNTIMES = ("simulator", "inprocess", "processes")


def default_folder(job: Job) -> Path:
    """Return where the runs of a job's searches go when nobody names a folder."""
    return Path("runs") / "tune" / f"{job.name}-{job.digest[:8]}"


def search_in(
    folder: Path,
    job: Job,
    config: RunConfig,
    rules: Rules,
    runner: Runner,
    *,
    history: str | Path | None,
    watch: Callable[[Search], None] = lambda search: None,
) -> Search:
    """Search in a folder that nobody else searches in meanwhile (see `carry_out`).

    Args:
      folder: folder of the search; made if it is missing.
      job: job to search for.
      config: configuration of every run, except plan and seed.
      rules: rules of the search.
      runner: makes the runs.
      history: file; None takes the default place.
      watch: called with the search before each run, and at the end, when the folder has its record, too.

    Raises:
      WorkdirError: another process searches there, or it cannot be written.
      HybridSyncError: as `carry_out`.
    """

    def note(search: Search) -> None:
        write_record(folder, search, job.name, runner.place)
        watch(search)

    try:
        make_directory(folder)
    except OSError as error:
        raise WorkdirError(f"cannot create {folder}: {error.strerror}; name another folder with --workdir") from None
    with WorkdirLock(folder), History(Path(history) if history else default_place(), SYSTEM_CLOCK) as opened:
        return carry_out(job, config, rules, runner=runner, history=opened, watch=note)
