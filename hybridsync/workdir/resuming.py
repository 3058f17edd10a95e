"""Checks what the record in a workdir rules out: before any role starts, and again under the workdir's lock.

A run that continues with units of another size has another workload than its command line. The record keeps both, so
that the same command still means the same run.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from hybridsync.config import RunConfig, check_resumable
from hybridsync.core.errors import CheckpointError, ResumeError, WorkdirError
from hybridsync.storage.apply_log import APPLY_LOG
from hybridsync.storage.durable import FILE, FOLDER, LOCK_FILE, PHASE_FILE, kind_of
from hybridsync.storage.lock_beats import BEAT_FILE
from hybridsync.storage.orders_file import ORDERS_FILE
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.metrics import METRICS_FILE
from hybridsync.telemetry.summary import CONFIG_FILE, SUMMARY_FILE, read_config
from hybridsync.telemetry.tensorboard import TENSORBOARD_FOLDER
from hybridsync.telemetry.timeline import PART_FILE, TIMELINE_FILE

Resume = Literal["auto", "must", "never"]


class Allowed(TypedDict):
    """Which changes a resume may make: units of another size; another model, loss or optimizer."""

    convert_units: bool
    accept_changes: bool


CHECKPOINTS = "checkpoints"

CONTROL_FILE = "control.json"
LOGS = "logs"
FILES = (
    *(CONFIG_FILE, SUMMARY_FILE, EVENTS_FILE, METRICS_FILE, TIMELINE_FILE, PART_FILE, APPLY_LOG),
    *(PHASE_FILE, LOCK_FILE, BEAT_FILE, ORDERS_FILE, CONTROL_FILE),
)
FOLDERS = (CHECKPOINTS, f"{CHECKPOINTS}/partial", f"{CHECKPOINTS}/quarantine", LOGS, TENSORBOARD_FOLDER)
"""Everything that a run keeps in its workdir."""

RECORD = ("config", "phase", "seconds", "sequence", "source")
LEDGER = ("applied", "dropped", "issued", "rolled_back", "workload")
"""Fields that a resume reads from a checkpoint's two records."""


def check_workdir(
    workdir: Path, config: RunConfig, *, resume: Resume, convert_units: bool, accept_changes: bool = False
) -> RunConfig | None:
    """Return what the run in `workdir` goes on with, None where there is no run yet; needs no JAX.

    Args:
      workdir: may be absent.
      config: configuration to start or continue with.
      resume: "auto" starts fresh or resumes, "must" refuses a fresh workdir, "never" a used one.
      convert_units: whether a run may continue with units of another size.
      accept_changes: whether it may continue with another model or optimizer.

    Raises:
      WorkdirError: something else is where the run keeps a file or a folder, the workdir is used and `resume` is
        "never", or it holds checkpoints without their config.json.
      ResumeError: it is fresh and `resume` is "must", or its run contradicts the configuration.
    """
    check_entries(workdir)
    saved = _begun(workdir)
    if saved is None and resume == "must":
        raise ResumeError(f"resume is 'must', but {workdir} holds no checkpoint; check the path, or start with 'auto'")
    if saved is None:
        return None
    if resume == "never":
        raise WorkdirError(
            f"{workdir} holds a run already and resume is 'never'; name a fresh workdir, or resume with 'auto'"
        )
    asked = config
    if config.workload == saved.get("workload_asked"):
        config = dataclasses.replace(config, workload=saved["config"]["workload"])
    check_resumable(saved["config"], config, convert_units=convert_units, accept_changes=accept_changes)
    return continued(workdir, asked)


def check_entries(workdir: Path) -> None:
    """Check that nothing stands where a run keeps its files and folders; a link to a folder is one.

    A fifo would make the run wait for ever, a link would have it write elsewhere, a folder would fail it at its end.

    Raises:
      WorkdirError: names the path and what is there.
    """
    for path, wanted in _entries(workdir):
        try:
            found = kind_of((os.stat if wanted == FOLDER else os.lstat)(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            if not path.is_symlink():
                continue
            found = f"symbolic link to {os.readlink(path)}, which is not there"
        except OSError as error:
            raise WorkdirError(f"cannot look at {path}: {error.strerror}; name another workdir") from None
        if found != wanted:
            raise WorkdirError(
                f"{path} is a {found}, and a run keeps a {wanted} there; move it away, or name another workdir"
            )


def _entries(workdir: Path) -> Iterator[tuple[Path, str]]:
    """Yield each path that a run uses, with what it has to be: `FILE` or `FOLDER`."""
    yield workdir, FOLDER
    for name in FILES:
        yield workdir / name, FILE
        yield workdir / f".{name}.tmp", FILE  # what `write_durable` begins with
    for name in FOLDERS:
        yield workdir / name, FOLDER
    for log in sorted((workdir / LOGS).glob("*.log")):
        yield log, FILE


def continued(workdir: Path, config: RunConfig) -> RunConfig:
    """Return `config` with the workload that the run in `workdir` has in units of `config.unit_size`.

    Every role builds its optimizer from it, so that schedules keep their place when the units change.

    Args:
      workdir: may be absent.
      config: as the command line asks for it.
    """
    saved = _begun(workdir)
    if saved is None:
        return config
    before, size = saved["config"]["unit_size"], config.unit_size
    if before != size:
        return dataclasses.replace(config, workload=math.ceil(saved["config"]["workload"] * before / size))
    if config.workload == saved.get("workload_asked"):
        return dataclasses.replace(config, workload=saved["config"]["workload"])
    return config


def _begun(workdir: Path) -> dict[str, Any] | None:
    """Return what config.json says of the run in `workdir`, None where none has begun.

    One that was refused before its first phase, by its data or its model, has left a config.json and no work: what was
    wrong in it is not to be held against the command that sets it right.

    Raises:
      WorkdirError: there are checkpoints, but no config.json: a start at unit 0 would replace them.
    """
    saved = read_config(workdir)
    has_checkpoints = any((workdir / CHECKPOINTS).glob("*"))
    if saved is None and has_checkpoints:
        raise WorkdirError(
            f"{workdir / CHECKPOINTS} holds checkpoints, but {workdir / CONFIG_FILE} is lost; restore it, or start in "
            "another workdir, with --init_from to take over the newest state"
        )
    return saved if has_checkpoints or (workdir / PHASE_FILE).exists() else None


def check_init_from(init_from: Path, workdir: Path | None = None) -> None:
    """Check, without JAX, that a run can start from the state in `init_from`.

    Args:
      init_from: workdir of the run to take the state from.
      workdir: workdir of the run to start; None leaves nothing.

    Raises:
      ResumeError: it is the same workdir, cannot be read, or holds no checkpoints.
    """
    if workdir is not None and init_from.resolve() == workdir.resolve():
        raise ResumeError(
            f"init_from names {init_from}, which is this run's own workdir, {workdir}; name another run's"
        )
    try:
        has_checkpoints = (init_from / CHECKPOINTS).is_dir()
    except OSError as error:
        raise ResumeError(
            f"init_from names {init_from}, which cannot be read: {error.strerror}; give yourself access to it"
        ) from None
    if not has_checkpoints:
        raise ResumeError(f"init_from names {init_from}, which holds no checkpoints; name the workdir of a run")


def check_record(run: Mapping[str, Any], ledger: Mapping[str, Any], what: str) -> None:
    """Check that a checkpoint holds what a resume reads from it.

    Args:
      run: the checkpoint's record of the run.
      ledger: the checkpoint's record of the ledger.
      what: names the checkpoint.

    Raises:
      CheckpointError: something is missing: another program saved it.
    """
    for name, record, needed in (("run", run, RECORD), ("ledger", ledger, LEDGER)):
        if missing := sorted(set(needed) - record.keys()):
            raise CheckpointError(
                f"{what} lacks {', '.join(missing)} in its record {name!r}, which holds "
                f"{', '.join(sorted(record)) or 'nothing'}: a run cannot go on from it; start one with --init_from"
            )
