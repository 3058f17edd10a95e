from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridsync import Trainer
from hybridsync.chief.chief import Chief
from hybridsync.chief.divergence import MAX_IN_A_ROW, Divergence
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_REFUSED, Diverged
from hybridsync.interfaces.messages import NON_FINITE, LeaseRequest
from hybridsync.interfaces.reports import Report
from tests.roles import hello, phase_of
from tests.tasks import plain_sgd, tally_task
from tests.trainers import NEVER, events_of, is_exact

REASON = f"{NON_FINITE}: leaf w, first index [3]"


def spoiled(unit_is_bad: Callable[[jax.Array], jax.Array], *, entries: int = 64, **options: Any) -> Trainer:
    """Return a tally whose loss is no number at some units; it has twice as many units to give out as `entries`."""
    whole = tally_task(entries)

    def loss(params, model_state, batch, key):
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(unit_is_bad(batch["unit"][0]), jnp.nan, value), rest

    task = replace(whole, loss=loss)
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, "plan": "asp", **options}
    return Trainer(task, plain_sgd(1.0), workload=64, unit_size=1, **options)


@pytest.mark.parametrize("options", [{}, {"servers": 2}, {"plan": "bsp"}, {"plan": "bsp", "workers": 1}], ids=str)
def test_a_unit_whose_contribution_is_not_finite_is_dropped_and_a_fresh_one_takes_its_place(options):
    result = spoiled(lambda unit: unit % 10 == 3, **options).fit()
    units = result.summary.units
    assert result.completed and is_exact(result.summary.final)
    assert (units.applied, units.dropped, units.issued, units.outstanding) == (64, 7, 71, 0)


def test_a_lock_step_stage_goes_on_with_fresh_units_until_its_share_is_applied(tmp_path):
    result = spoiled(lambda unit: unit % 10 == 3, plan="bsp:50%,asp", workers=3, workdir=tmp_path).fit()
    assert result.completed and is_exact(result.summary.final)
    *lockstep, served = events_of(tmp_path, "phase_entered")
    assert [phase["reason"] for phase in lockstep] == ["start"] + ["dropped"] * (len(lockstep) - 1)
    assert (served["protocol"], served["units"], served["reason"]) == ("asp", 32, "planned")
    assert len(result.summary.switches) == 1


@pytest.mark.parametrize("bad_from", [0, 20, 62])
def test_lock_step_training_that_has_diverged_ends_the_run(bad_from):
    with pytest.raises(Diverged, match="units in a row"):
        spoiled(lambda unit: unit >= bad_from, entries=20_000, plan="bsp").fit()  # until the chief hears of it


def test_a_run_that_has_diverged_ends_with_the_leaf_and_a_summary(tmp_path):
    with pytest.raises(Diverged, match=r"units in a row .* leaf floats/loss, first index \[\]"):
        spoiled(lambda unit: unit >= 20, entries=20_000, workdir=tmp_path).fit()  # until the chief hears of it
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["exit"] == "failed" and "diverged" in summary["error"]
    assert summary["units"]["applied"] == 20


def drops(count: int, reason: str = REASON) -> tuple[tuple[int, str], ...]:
    return tuple((unit, reason) for unit in range(count))


def test_one_more_than_ten_in_a_row_ends_the_run_by_name():
    divergence = Divergence()
    assert divergence.record((), drops(MAX_IN_A_ROW)) is None
    error = divergence.record((), drops(1))
    assert isinstance(error, Diverged) and error.exit_code == EXIT_REFUSED
    assert "11 units in a row" in str(error) and f"unit 0, {REASON}" in str(error)


@pytest.mark.parametrize(
    ("applied", "dropped"), [(((7, 8),), ()), (((7, 8),), drops(3))], ids=["alone", "beside drops"]
)
def test_a_unit_applied_between_them_begins_the_count_again(applied, dropped):
    divergence = Divergence()
    divergence.record((), drops(MAX_IN_A_ROW))
    assert divergence.record(applied, dropped) is None
    assert divergence.record((), drops(MAX_IN_A_ROW)) is None


def test_what_was_dropped_for_another_reason_does_not_count():
    divergence = Divergence()
    assert divergence.record((), drops(100, "too stale")) is None
    assert divergence.record((), drops(MAX_IN_A_ROW)) is None


def test_gradients_that_a_server_may_hold_before_it_applies_them_are_allowed_for():
    divergence = Divergence()
    assert divergence.record((), drops(MAX_IN_A_ROW + 63), held=63) is None
    assert isinstance(divergence.record((), drops(1), held=63), Diverged)


def test_the_chief_fails_a_run_that_has_diverged():
    chief = Chief(RunState(Ledger(100), 1, "schema", SYSTEM_CLOCK))
    worker, server = chief.service.register(hello(0)), chief.service.register(hello(0, role="server"))
    phase = phase_of(members=(0,), end=100)
    chief.control.announce(phase)
    chief.control.open_leases()
    chief.service.lease(LeaseRequest(0, worker.incarnation, phase.id, 0, 0))
    for unit in range(MAX_IN_A_ROW + 1):
        if unit >= chief.control.counts().issued:
            chief.service.lease(LeaseRequest(0, worker.incarnation, phase.id, unit, unit))
        chief.service.report(Report("server", 0, server.incarnation, phase.id, dropped=((unit, REASON),)))
    with pytest.raises(Diverged, match="11 units in a row"):
        chief.control.watch(lambda: False, 0.0)
