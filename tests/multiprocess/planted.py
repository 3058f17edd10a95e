"""`hybridsync train` with a bug planted in all processes: `python tests/multiprocess/planted.py NAME[+NAME] FLAGS...`.

A fault test that such a job passes proves nothing. The fork server is this program, too: the bug is planted in
the supervisor and in each role, once that knows which it is.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from absl import app

from hybridsync.cli import train
from hybridsync.runtime import processes
from hybridsync.runtime.agent import fork_server
from hybridsync.runtime.role import role_pipe
from hybridsync.runtime.supervisor import supervisor
from tests.multiprocess.planted_audit import AUDITS
from tests.multiprocess.planted_hangs import HANGS
from tests.multiprocess.planted_pauses import PAUSES

if TYPE_CHECKING:
    from hybridsync.core.clock import Clock
    from hybridsync.interfaces.messages import Snapshot

HOLD_SECS = 20.0
CALL_SECS = 60.0
CALLED = "called"
"""File in the workdir: see `the_reborn_wait_to_be_called`."""
LINK_BYTES_PER_SEC = 800_000
HURRY = "hurry"
"""File in the workdir: see `units_take_their_time_until_told`."""
SAVE_STAGES = ("SEAL", "SYNC", "NAMED", "DROP")


@dataclass
class Here:
    """Which role this process plays.

    Args:
      role: "chief", "server" or "worker"; "supervisor" before it has any.
      role_id: its number among its kind.
    """

    role: str = "supervisor"
    role_id: int = 0


here = Here()


def server_forgets_what_it_applied() -> None:
    """A unit that is pushed again is applied again."""
    from hybridsync.server.unit_counts import Count

    server_reports_late()
    if here.role == "server":
        Count.is_settled = lambda self, unit: False


def server_reports_late() -> None:
    """No bug: the chief hears late of what was applied, so that units of a lost worker are surely pushed again."""
    if here.role == "server":
        from hybridsync.runtime.role import server_main

        server_main.REPORT_SECS = 2.0


def units_of_the_lost_stay_leased() -> None:
    """What a lost worker was to do is never handed to anybody else."""
    from hybridsync.chief.ledger import Ledger

    Ledger.release = lambda self, holder: 0


def ledger_outruns_the_state() -> None:
    """A resume takes the state of the checkpoint, but counts as applied what the metrics had seen applied."""
    if here.role != "chief":
        return
    from hybridsync.chief.ledger import Ledger
    from hybridsync.telemetry.metrics import read_metrics
    from hybridsync.workdir import opening

    resumed = opening._resumed

    def resume(run, workdir, *args, **named):
        opened = resumed(run, workdir, *args, **named)
        seen = max(line["units"] for line in read_metrics(workdir))
        issued = max(seen, opened.ledger.counts().issued)
        opened.ledger = Ledger(run.config.workload, issued=issued, applied=[(0, seen)])
        return opened

    opening._resumed = resume


def preemption_saves_nothing() -> None:
    """A run that is asked to stop does, without a last checkpoint."""
    if here.role != "chief":
        return
    from hybridsync.chief.service import ChiefService
    from hybridsync.storage.checkpoints import CheckpointStore, SaveInfo

    save, preempt = CheckpointStore.save, ChiefService.preempt
    asked = threading.Event()

    def ask(self):
        asked.set()
        preempt(self)

    def keep(self, state, **record):
        return SaveInfo(step=99, bytes=1, secs=0.0) if asked.is_set() else save(self, state, **record)

    CheckpointStore.save, ChiefService.preempt = keep, ask


def only_the_first_signal_counts() -> None:
    """A supervisor that was asked to stop does not hear that it is to stop at once."""
    on_signal = supervisor.Supervisor._on_signal

    def hear(self, number, frame):
        if not self._num_signals:
            on_signal(self, number, frame)

    supervisor.Supervisor._on_signal = hear


def survivors_forget_the_newest_state() -> None:
    """A broken phase goes on from the last commit although its survivors hold what was applied since."""
    from hybridsync.phases.recovery import Found, Recovery
    from hybridsync.protocols.modes import SyncMode

    def forget(self: Recovery, floor: int, last: Snapshot, mode: SyncMode) -> Found | None:
        return None

    Recovery._from_workers = forget


def restarted_chief_starts_from_disk() -> None:
    """A restarted chief asks nobody where the run is, and begins from the last commit."""
    from hybridsync.chief.membership import RunMembership

    RunMembership.role_states = lambda self: {}


def ledger_keeps_what_the_server_lost() -> None:
    """The state goes back to the last commit, the accounting does not."""
    from hybridsync.chief.ledger import Ledger
    from hybridsync.core.units import UnitSet

    restore = Ledger.restore

    def keep(self, applied, dropped):
        return restore(self, self._applied.ranges() or UnitSet(applied).ranges(), dropped)

    Ledger.restore = keep


def nobody_reads_the_lock_again() -> None:
    """Whoever has taken the workdir's lock once believes for ever that it is theirs."""
    from hybridsync.storage.durable import WorkdirLock

    WorkdirLock.check = lambda self: None


def deadlines_by_the_wall_clock() -> None:
    """Leases and deadlines go by a clock that somebody may set."""
    from hybridsync.core.clock import SystemClock

    SystemClock.monotonic = staticmethod(SystemClock.wall)


def worker_2_dies_while_a_mesh_connects() -> None:
    """No bug: once, when it has met the others in its second mesh and before it can be connected to."""
    if (here.role, here.role_id) != ("worker", 2):
        return
    from hybridsync.collectives.mesh.flat_sum import MeshSum

    prove, done = MeshSum._prove, workdir_of_the_run() / "died-connecting"
    met = []

    def die(self, num_floats, num_ints):
        if self not in met:
            met.append(self)
        if len(met) == 2 and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        prove(self, num_floats, num_ints)

    MeshSum._prove = die


def workdir_of_the_run() -> Path:
    *_, workdir = (flag.partition("=")[2] for flag in sys.argv if flag.startswith("--workdir="))  # as made whole
    return Path(workdir)


def units_take_their_time_until_told() -> None:
    """No bug: once HURRY lies in the workdir, no unit is stretched, so that a run lasts as long as its story needs."""
    if here.role != "worker":
        return
    from hybridsync.emulation.device import Emulation

    told, finish = workdir_of_the_run() / HURRY, Emulation.finish

    def finish_in_time(self: Emulation, worker: int, unit: int, started: float, clock: Clock) -> None:
        if not told.exists():
            finish(self, worker, unit, started, clock)

    Emulation.finish = finish_in_time


def the_reborn_wait_to_be_called() -> None:
    """No bug: a worker that takes another's place comes once CALLED lies in the workdir, and the others go on first."""
    if here.role != "worker":
        return
    first, called = (workdir_of_the_run() / name for name in (f"worker-{here.role_id}-came", CALLED))
    if not first.exists():
        first.touch()
        return
    deadline = time.monotonic() + CALL_SECS
    while not called.exists() and time.monotonic() < deadline:
        threading.Event().wait(0.005)


def servers_fetch_over_a_slow_link() -> None:
    """No bug: a server gets LINK_BYTES_PER_SEC of the state that it takes over."""
    if here.role != "server":
        return
    from hybridsync.transport.directory import Readers
    from tests.transport.relay import Relay

    read_from = Readers.__call__
    Readers.__call__ = lambda self, address: read_from(self, Relay(address, LINK_BYTES_PER_SEC).address)


def one_device_each() -> None:
    """No bug: a process group of two workers has two meshes."""
    supervisor.SupervisorSpec = functools.partial(supervisor.SupervisorSpec, num_devices=1)


def _worker_1() -> bool:
    return (here.role, here.role_id) == ("worker", 1)


def worker_1_fails_at_each_unit() -> None:
    """Whatever unit worker 1 begins, it ends with an exception."""
    from hybridsync.worker.stats import WorkerRecorder

    computing = WorkerRecorder.computing

    def fail(self, unit):
        computing(self, unit)
        raise RuntimeError(f"worker 1 cannot compute unit {unit}")

    if _worker_1():
        WorkerRecorder.computing = fail


def worker_1_fails_before_its_process_group() -> None:
    """Worker 1 ends with an exception before it has met the others."""
    from hybridsync.collectives.mesh.process_group import ProcessGroup

    def fail(*args, **options):
        raise RuntimeError("worker 1 has no device")

    if _worker_1():
        ProcessGroup.join = fail


def every_worker_fails_at_each_unit() -> None:
    """Nobody can compute anything after the first 50 units."""
    from hybridsync.worker.stats import WorkerRecorder

    computing = WorkerRecorder.computing

    def fail(self, unit):
        if unit >= 50:
            raise RuntimeError("the driver is gone")
        return computing(self, unit)

    if here.role == "worker":
        WorkerRecorder.computing = fail


def worker_1_has_a_broken_device() -> None:
    """No gradient of worker 1 is finite."""
    if not _worker_1():
        return
    import jax
    import numpy as np

    from hybridsync.training.compiled_programs import Programs

    gradient = Programs.gradient

    def broken(self, parameters, unit, wire="float32", worker=0, batch=None):
        made = gradient(self, parameters, unit, wire, worker, batch)
        return {**made, "floats": jax.tree.map(lambda leaf: leaf * np.float32("nan"), made["floats"])}

    Programs.gradient = broken


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        server_forgets_what_it_applied,
        server_reports_late,
        units_of_the_lost_stay_leased,
        ledger_outruns_the_state,
        preemption_saves_nothing,
        survivors_forget_the_newest_state,
        restarted_chief_starts_from_disk,
        ledger_keeps_what_the_server_lost,
        only_the_first_signal_counts,
        deadlines_by_the_wall_clock,
        nobody_reads_the_lock_again,
        units_take_their_time_until_told,
        the_reborn_wait_to_be_called,
        servers_fetch_over_a_slow_link,
        one_device_each,
        worker_2_dies_while_a_mesh_connects,
        worker_1_fails_at_each_unit,
        worker_1_fails_before_its_process_group,
        worker_1_has_a_broken_device,
        every_worker_fails_at_each_unit,
    )
}


def stands_at(stage: str, workdir: Path) -> None:
    """No bug: the chief stands still at a stage of the first switch, or of a save, so that a test can hurt somebody.

    It leaves the file `at-STAGE` in the workdir, and goes on when that is gone, or after HOLD_SECS. It does so once: in
    no later session of the chief as long as `was-STAGE` lies there.
    """
    if here.role != "chief":
        return
    from hybridsync.phases.entry import EntryStage
    from hybridsync.phases.recovery import CaptureStage
    from hybridsync.storage.checkpoints import CheckpointStore, store

    places = {
        "DRAIN": (CaptureStage, "drain"),
        "CAPTURE": (CaptureStage, "capture_final"),
        "RESERVE": (EntryStage, "reserve"),
        "ENTER": (EntryStage, "announce"),
        "COMMIT": (CheckpointStore, "save"),
        # of a save: its arrays are written, its manifest as well, it has its name, what is too old is to go
        "SEAL": (store, "files_of"),
        "SYNC": (store, "sync_tree"),
        "NAMED": (store, "sync_directory"),
        "DROP": (CheckpointStore, "_drop_old"),
    }
    armed = threading.Event()
    armer, arming = places["ENTER" if stage in SAVE_STAGES else "DRAIN"]
    begin = getattr(armer, arming)

    def arm(self):
        armed.set()
        return begin(self)

    setattr(armer, arming, arm)
    owner, name = places[stage]
    original = getattr(owner, name)
    marker, done = workdir / f"at-{stage}", workdir / f"was-{stage}"

    def stand_still(*args, **options):
        if armed.is_set() and not done.exists():
            done.touch()
            marker.touch()
            deadline = time.monotonic() + HOLD_SECS
            while marker.exists() and time.monotonic() < deadline:
                threading.Event().wait(0.005)
        return original(*args, **options)

    setattr(owner, name, stand_still)


def plant(name: str) -> None:
    """Plant the bugs of a name here."""
    bug, _, stage = name.partition(":")
    if stage:
        stands_at(stage, workdir_of_the_run())
    else:
        for part in bug.split("+"):
            if part in PAUSES:
                PAUSES[part](here.role, here.role_id, workdir_of_the_run())
            elif part in HANGS or part in AUDITS:
                {**HANGS, **AUDITS}[part](here.role, workdir_of_the_run())
            else:
                BUGS[part]()


def main() -> None:
    """Plant the bug, and be `hybridsync train` otherwise."""
    name, play = sys.argv.pop(1), train.play

    def play_planted(role: role_pipe.Child, load: Callable[[], processes.Launch]) -> int:
        here.role, here.role_id = role.role, role.role_id
        plant(name)
        return play(role, load)

    train.play = play_planted
    if fork_server.FORK_SERVER_FD not in os.environ:
        plant(name)
    command, made = (sys.executable, __file__, name), supervisor.SupervisorSpec
    # Whatever program the launcher names: its roles would run without the bug, and no fault test could fail.
    supervisor.SupervisorSpec = lambda *args, **named: made(*args, **{**named, "command": command})
    app.run(train.main)


if __name__ == "__main__":
    main()
