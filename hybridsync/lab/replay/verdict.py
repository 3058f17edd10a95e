"""A replay: the state from the seed, phase after phase, compared with what the run saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hybridsync.chief.ledger import Ledger
from hybridsync.core.errors import ResumeError, WorkdirError
from hybridsync.core.units import UnitSet
from hybridsync.lab.replay.logged_run import LoggedPhase, Record
from hybridsync.lab.replay.members import in_members
from hybridsync.lab.replay.phases import on_one_device
from hybridsync.runtime.agent.fork_server import ForkServerClient
from hybridsync.storage.checkpoints import CheckpointStore, Restored
from hybridsync.telemetry.summary import read_identity
from hybridsync.training.buffer_layout import Layout, fingerprint, leaf_bytes
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.workdir.resuming import CHECKPOINTS


@dataclass(frozen=True)
class Difference:
    """The first place at which a replayed state and a saved one are not the same bits.

    Args:
      leaf: path of the leaf.
      index: index of the first differing entry in the leaf; () for a scalar.
      replayed, saved: the two values of that entry.
      num_entries: number of the leaf's entries that differ.
    """

    leaf: str
    index: tuple[int, ...]
    replayed: Any
    saved: Any
    num_entries: int

    def __str__(self) -> str:
        where = f"{self.leaf}{list(self.index)}" if self.index else self.leaf
        return (
            f"{where} is {self.replayed!r} in the replay and {self.saved!r} in the checkpoint "
            f"({self.num_entries} entries of this leaf differ)"
        )


@dataclass(frozen=True)
class Replayed:
    """Holds the result of a replay.

    Args:
      updates: number of updates that were computed again.
      fingerprint: fingerprint of the replayed state.
      difference: None where every bit is as saved.
      since: the first phase whose result differs from what the next one began with; None where all agree.
    """

    updates: int
    fingerprint: str
    difference: Difference | None
    since: LoggedPhase | None

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.updates} updates replayed, bit for bit: fingerprint {self.fingerprint}"
        begin = f", since {self.since}" if self.since else ", in the checkpoint itself"
        return f"the replay of {self.updates} updates differs{begin}: {self.difference}"


def replay(
    record: Record,
    run: Run,
    fork_server_client: ForkServerClient | None = None,
    progress: Callable[[int], None] = lambda update: None,
) -> Replayed:
    """Compute a run again and compare it with its newest good checkpoint.

    Exact on the machine of the run, or on one with as many cores: how a matrix product is divided among threads decides
    its rounding.

    Args:
      record: record of the run; the caller holds the workdir's lock.
      run: with the configuration of `record`.
      fork_server_client: starts member processes (see `in_members`); needed where a phase was computed by processes.
      progress: called with the number of updates now and then.

    Raises:
      WorkdirError: there is no checkpoint, or it does not hold the log's updates.
      ResumeError: the data are no longer those of the run.
      CheckpointError: no checkpoint is good.
      HybridSyncError: a member process failed.
    """
    saved = _newest(record, run)
    state: Any = jax.device_get(run.initial_state())
    programs = run.programs(donate_parameters=False)
    digest, since, before = fingerprint(state), None, None
    for phase in record.phases:
        phase = phase if phase.after else dataclasses.replace(phase, after=saved.run["fingerprint"])
        if digest != phase.fingerprint and since is None:
            if before is None:
                raise ResumeError(
                    f"the starting state has fingerprint {digest}, the run's had {phase.fingerprint}; restore the "
                    "configuration file, the versions in config.json and the code of the run"
                )
            since = before
        state = _recompute(
            programs,
            record,
            programs.entered(state),
            phase=phase,
            fork_server_client=fork_server_client,
            progress=progress,
        )
        digest, before = fingerprint(state), phase
    difference = compare(state, saved.state)
    if difference is not None and since is None and digest != saved.run["fingerprint"]:
        since = before
    return Replayed(len(record.entries), digest, difference, since)


def compare(replayed: TrainState, saved: TrainState) -> Difference | None:
    """Return the first difference of two states of one structure, in the order of their leaves; None if equal.

    Bytes are compared, so that a NaN equals itself and 0.0 is not -0.0.
    """
    specs = Layout.of(saved).leaves
    for spec, left, right in zip(specs, jax.tree.leaves(replayed), jax.tree.leaves(saved), strict=True):
        ours, theirs = np.asarray(left), np.asarray(right)
        itemsize = spec.dtype.itemsize
        same = (leaf_bytes(ours) == leaf_bytes(theirs)).reshape(-1, itemsize).all(axis=1)
        if not same.all():
            index = tuple(int(i) for i in np.unravel_index(np.argmin(same), spec.shape))
            return Difference(spec.path, index, ours[index].item(), theirs[index].item(), int((~same).sum()))
    return None


def _newest(record: Record, run: Run) -> Restored:
    """Return the newest good checkpoint, which must be the state after the log's last update."""
    directory = record.workdir / CHECKPOINTS
    restored = (
        CheckpointStore(directory, run=read_identity(record.workdir)).newest(run.abstract_state())
        if directory.is_dir()
        else None
    )
    if restored is None:
        raise WorkdirError(f"{record.workdir} holds no checkpoint to compare with")
    updates, saved = len(record.entries), restored.run["sequence"]
    if updates < saved:
        raise WorkdirError(
            f"the apply log of {record.workdir} is incomplete from update {updates + 1} on: it holds {updates} "
            f"updates, checkpoint {restored.step} {saved}; the disk refused lines, or they were cut: the run cannot be "
            "replayed"
        )
    if updates > saved:
        raise WorkdirError(
            f"the newest good checkpoint of {record.workdir}, {restored.step}, holds {saved} of the {updates} logged "
            "updates; resume the run to its end, then replay"
        )
    if restored.run["source"] != run.describe_source():
        raise ResumeError(
            f"the data are not those of the run: they are {run.describe_source()}, the run had "
            f"{restored.run['source']}; restore them"
        )
    logged = UnitSet((unit, unit + 1) for entry in record.entries for unit in entry.units)
    applied = Ledger.from_json(restored.ledger).applied()
    for units, there, absent in ((logged, "apply log", "ledger"), (applied, "ledger", "apply log")):
        other = applied if units is logged else logged
        if only := units.difference(other).ranges():
            raise WorkdirError(f"unit {only[0][0]} is applied in the {there} of {record.workdir}, not in its {absent}")
    return restored


def _recompute(
    programs: Programs,
    record: Record,
    state: Any,
    phase: LoggedPhase,
    fork_server_client: ForkServerClient | None,
    progress: Callable[[int], None],
) -> Any:
    if phase.runtime == "processes":
        assert fork_server_client is not None, "a phase of processes is computed by processes"
        return in_members(
            fork_server_client, record.workdir, programs.state_layout, state=state, phase=phase, progress=progress
        )
    return jax.device_get(on_one_device(programs, jax.device_put(state), phase, progress))
