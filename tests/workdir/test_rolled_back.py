"""Lost units are counted once, whichever chief tells of them, from the record that a dead session has left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybridsync import EmulationConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.runtime.role.chief_wiring import ChiefRole
from hybridsync.workdir.opening import Opening, open_run
from tests.trainers import LOGGED, events_of, fit_and_stop, lines_of, tally_trainer

WORKLOAD = 48


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run that was stopped, and saved, among its units; to be copied, not changed."""
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    slow = EmulationConfig(compute_secs=0.02)
    trainer = tally_trainer("bsp", WORKLOAD, workdir=workdir, telemetry=LOGGED, emulation=slow)
    assert fit_and_stop(trainer, 8).summary.exit == "preempted"
    return workdir


@pytest.fixture
def workdir(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def write_on(workdir: Path, *, lines: tuple[tuple[float, int], ...] = (), **rollback: int) -> None:
    """Let one more session write lines (seconds since the last sign, units applied), and a rollback at second 1."""
    last, line = events_of(workdir)[-1], lines_of(workdir / "metrics.jsonl")[-1]
    until = max(last["t"], line["t"])
    with open(workdir / "metrics.jsonl", "a") as file:
        for secs, units in lines:
            file.write(json.dumps({**line, "t": until + secs, "units": units}) + "\n")
    if rollback:
        with open(workdir / "events.jsonl", "a") as file:
            file.write(json.dumps({**last, "kind": "rollback", "t": until + 1.0, **rollback}) + "\n")


def opened(workdir: Path, *, alive: bool) -> Opening:
    """Return what the next chief starts from; `alive` is one whose roles go on."""
    opening = open_run(tally_trainer("bsp", WORKLOAD, workdir=workdir)._run, alive=alive)
    assert opening.lock is not None
    opening.lock.release()
    return opening


def test_what_a_resume_has_lost_is_not_lost_again_with_a_server_before_its_first_snapshot(workdir: Path) -> None:
    saved = opened(workdir, alive=False).ledger.num_applied
    write_on(workdir, lines=((1.0, saved + 10),))
    opening = opened(workdir, alive=False)
    layout = opening.run.programs(donate_parameters=False).state_layout
    role = ChiefRole(opening, layout, SYSTEM_CLOCK)
    assert opening.rolled_back == 10
    assert role.run_state.restore(role.committed.publish(), rolled_back=True) == 0
    assert role.run_state.ledger.counts().rolled_back == 10


def test_a_restarted_chief_knows_what_the_one_before_it_had_lost_and_what_was_applied_since(workdir: Path) -> None:
    saved = opened(workdir, alive=False).ledger.num_applied
    write_on(workdir, lines=((1.0, saved + 10),))
    write_on(workdir, lines=((0.5, saved + 12), (2.0, saved + 3)), to_units=saved, rolled_back=12)
    opening = opened(workdir, alive=True)
    assert (opening.ledger.rolled_back, opening.rolled_back, opening.known) == (12, 0, saved + 3)


def test_the_next_resume_loses_only_what_was_applied_since_the_last_one(workdir: Path) -> None:
    saved = opened(workdir, alive=False).ledger.num_applied
    write_on(workdir, lines=((1.0, saved + 10),))
    write_on(workdir, lines=((2.0, saved + 3),), to_units=saved, rolled_back=10)
    opening = opened(workdir, alive=False)
    assert (opening.ledger.rolled_back, opening.rolled_back, opening.known) == (13, 3, 0)


def test_what_nobody_logged_since_a_rollback_is_not_lost_again(workdir: Path) -> None:
    saved = opened(workdir, alive=False).ledger.num_applied
    write_on(workdir, lines=((1.0, saved + 10),))
    write_on(workdir, to_units=saved, rolled_back=10)
    opening = opened(workdir, alive=False)
    assert (opening.ledger.rolled_back, opening.rolled_back) == (10, 0)
