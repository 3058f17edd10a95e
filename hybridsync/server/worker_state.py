"""Holds what a server knows of each worker in the phase that it serves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hybridsync.interfaces.messages import Push


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker.

    Args:
      newest: the lowest incarnation whose calls are accepted; it outlives the phase.
      admitted: the incarnation that was let in; its later calls are not checked again. None before the first.
      joined: the incarnation that the rule has heard of; None if it has heard of none.
      fast_path_as: the incarnation that is admitted, joined and not idle: its pushes may take the fast path. None if
        absent.
      ready: the push that the worker waits to be granted.
      granted: the push that it was granted, and that has not come yet.
      restart_count: the newest that was heard of the incarnation that has joined.
      idle_in: the restart count of a worker that makes local updates when it reported that it has nothing to compute;
        None while it has something.
      num_units: units that a worker with local updates has had applied.
      last: the worker's last push that was applied; None for a worker without local updates, or a fenced one.
    """

    newest: int = 0
    admitted: int | None = None
    joined: int | None = None
    fast_path_as: int | None = None
    ready: Push | None = None
    granted: Push | None = None
    restart_count: int = 0
    idle_in: int | None = None
    num_units: int = 0
    last: Push | None = None
