"""summary.json and config.json: how the run ended, and what it was asked to do."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hybridsync.config import RunConfig, to_json
from hybridsync.core.errors import WorkdirError
from hybridsync.interfaces.commands import ENDS
from hybridsync.storage.durable import Fence, read_file, unfenced, write_durable
from hybridsync.storage.jsonl import encode

SUMMARY_FILE = "summary.json"
CONFIG_FILE = "config.json"

_HOLDS: Mapping[str, Mapping[str, type]] = {
    CONFIG_FILE: {"config": dict, "config.workload": int, "config.unit_size": int},
    SUMMARY_FILE: {"exit": str, "units": dict},
}
"""The values that are read back from each file, by their paths inside."""

PACKAGES = ("hybridsync", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grpcio", "protobuf", "numpy")


@dataclass(frozen=True)
class Units:
    """The ledger's account: issued = applied + dropped + outstanding; `rolled_back` counts events."""

    workload: int
    issued: int
    applied: int
    dropped: int
    outstanding: int
    rolled_back: int

    def __post_init__(self) -> None:
        assert self.issued == self.applied + self.dropped + self.outstanding, f"units do not add up: {self}"


@dataclass(frozen=True)
class Summary:
    """Holds the values of summary.json, name by name.

    Args:
        exit: end of the run: "completed", "stopped" by a callback for good, "preempted", "failed", or "restarting" for
            the next stage of the plan.
        units: the ledger's account.
        examples: examples applied.
        seconds: seconds from the first unit leased, stalls and earlier sessions included: the run's time at its end.
        plan: the plan as it was run.
        switches: the `switch` events, earlier sessions' included.
        final: `{"accuracy", "loss"}`, or what the task's `summarize` returned, of the last evaluation; empty without
            one, or where it failed or came too late: figures of an older state are not the last.
        staleness: mean, p95 and max over the run.
        error: reason why it did not complete, one line; else None.
        units_by_host: host -> units that were applied while its workers had them; empty for a run on one host.
        quarantined_workers: number of each worker that was given up in this session, and why.
        start_up_secs: seconds that this session and earlier ones took from their command to their first unit, which
            `seconds` does not count.
        stop_reason: reason that the callback gave which stopped the run; "" for another end.
        callback_secs: seconds that each callback took in this session, by the name of its class.
    """

    exit: Literal["completed", "stopped", "preempted", "restarting", "failed"]
    units: Units
    examples: int
    seconds: float
    plan: str
    switches: Sequence[Mapping[str, Any]]
    final: Mapping[str, Any]
    staleness: Mapping[str, float]
    error: str | None = None
    quarantined_workers: Mapping[str, str] = field(default_factory=dict)
    units_by_host: Mapping[str, int] = field(default_factory=dict)
    start_up_secs: float = 0.0
    stop_reason: str = ""
    callback_secs: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the same command does not train on."""
        return self.exit in ENDS


def write_summary(workdir: str | os.PathLike[str], summary: Summary, fence: Fence = unfenced) -> None:
    """Write summary.json, whole or not at all.

    Raises:
        OSError: the disk refuses; an earlier file is intact.
        WorkdirTaken: by `fence`; an earlier file is intact.
    """
    _write(Path(workdir) / SUMMARY_FILE, asdict(summary), fence)


def read_summary(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what summary.json says, None before the run's first end.

    Raises:
        WorkdirError: the file cannot be read, is damaged, or another user's.
    """
    return _read(Path(workdir) / SUMMARY_FILE)


def write_config(
    workdir: str | os.PathLike[str],
    config: RunConfig,
    file: str | os.PathLike[str] | None = None,
    workload_asked: int | None = None,
    run: str | None = None,
    fence: Fence = unfenced,
    *,
    trained: Mapping[str, Any] | None = None,
    accepted: Sequence[str] = (),
) -> None:
    """Write config.json: the resolved values as "config", and "versions" of packages; the rest is named as here.

    Args:
        workdir: existing directory.
        config: resolved configuration of the run.
        file: the configuration file as it was given; None for a run that had none.
        workload_asked: workload of the command, when `config` counts in converted units; None for the same.
        run: identity of the run, which its checkpoints carry too; None for one without any.
        fence: see `write_durable`.
        trained: what the run trains, by what it computes (`hybridsync.workdir.trained`); None where nobody traced it.
        accepted: what it trained otherwise before, and its user accepted.

    Raises:
        OSError: the disk refuses; an earlier file is intact.
        WorkdirTaken: the fence refused; an earlier file is intact.
    """
    record = {
        "config": to_json(config),
        "file": None if file is None else str(file),
        "workload_asked": workload_asked or config.workload,
        "run": run,
        "trained": trained,
        "accepted": list(accepted),
        "versions": versions(),
    }
    _write(Path(workdir) / CONFIG_FILE, record, fence)


def versions() -> dict[str, str | None]:
    """Return the version of Python and of each package that a run depends on; None for one that is not there."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def read_config(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what config.json says, None in a fresh workdir.

    Raises:
        WorkdirError: the file cannot be read, is damaged, or another user's.
    """
    return _read(Path(workdir) / CONFIG_FILE)


def read_identity(workdir: str | os.PathLike[str]) -> str | None:
    """Return the identity of the run in `workdir`, None where there is no run or an older version did not name it.

    Raises:
        WorkdirError: as `read_config`.
    """
    return (read_config(workdir) or {}).get("run")


def _write(path: Path, value: Mapping[str, Any], fence: Fence) -> None:
    write_durable(path, json.dumps(json.loads(encode(value)), indent=2) + "\n", fence)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(read_file(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WorkdirError(f"{path} is damaged ({error}); restore it, or name another workdir") from None
    except OSError as error:
        raise WorkdirError(f"cannot read {path}: {error.strerror}; name another workdir") from None
    for known, kind in _HOLDS[path.name].items():
        found = value
        for key in known.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, kind):
            raise WorkdirError(f"{path} was not written by HybridSync: it lacks {known!r}; name another workdir")
    return value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
