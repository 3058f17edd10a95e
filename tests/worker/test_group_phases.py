"""Group phases in one process: what the replicas become, what is counted, and what others hold of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync import CheckpointConfig, EmulationConfig, TelemetryConfig
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.lab.replay.phases import on_one_device
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.trainer import Trainer
from hybridsync.training.averaging import copied
from hybridsync.training.state import TrainState, initial_state
from tests.tasks import adamw, mlp_task, plain_sgd, programs_of, tally_task
from tests.trainers import events_of, fit_and_stop, is_exact, mlp_trainer, tally_trainer

ALL = "preduce(size=4,slowdown=0)"
PLANS = (
    *("preduce", ALL, "preduce(groups=arrival,period=3)", "preduce(groups=static)", "preduce(momentum=true)"),
    "preduce(every=3)",
    "adpsgd",
)


def test_one_group_of_all_with_plain_sgd_is_lock_step() -> None:
    """The same units in the same steps, whoever has them: the mean of four updates is the update by the mean."""
    programs = programs_of(mlp_task(), plain_sgd(0.05))
    start = jax.device_put(initial_state(mlp_task(), plain_sgd(0.05), 0))
    steps = [tuple(range(4 * step, 4 * step + 4)) for step in range(6)]
    all_slots = (0, 1, 2, 3)

    def state_of(spec: str, group: tuple[int, ...] = ()) -> TrainState:
        entries = tuple(
            Entry(1, step, units, step - 1, 4.0, 4.0, 1.0, all_slots, group=group, bases=(step - 1,) * len(group))
            for step, units in enumerate(steps, start=1)
        )
        phase = LoggedPhase(1, spec, all_slots, 0, "inprocess", "", entries)
        return on_one_device(programs, copied(start), phase, lambda update: None)

    ours, theirs = state_of(ALL, all_slots), state_of("bsp")
    for left, right in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert int(ours.counters["units"]) == int(theirs.counters["units"]) == 24


@pytest.mark.parametrize("plan", PLANS)
def test_the_final_mean_holds_every_unit_once_to_a_thousandth(plan: str) -> None:
    result = tally_trainer(plan, 150, emulation=EmulationConfig(compute_secs=0.001)).fit()
    counts = -np.asarray(result.state.params["tally"])
    np.testing.assert_allclose(counts[:150], 1.0, atol=1e-3)
    np.testing.assert_allclose(counts[150:], 0.0, atol=1e-3)
    assert result.summary.units.issued == result.summary.units.applied == 150


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_may_form_groups(workers: int) -> None:
    result = tally_trainer("bsp:20%,preduce:50%,adpsgd", 61, workers=workers).fit()
    assert result.completed and is_exact(result.summary.final)


@pytest.mark.parametrize("plan", ["preduce", "preduce(groups=arrival)", "adpsgd"])
def test_what_is_saved_and_evaluated_on_the_way_is_one_state_of_all(plan: str, tmp_path: Path) -> None:
    trainer = tally_trainer(
        plan,
        400,
        workdir=tmp_path / "run",
        emulation=EmulationConfig(compute_secs=0.01),
        telemetry=TelemetryConfig(evaluate_units=100),
    )
    result = trainer.fit()
    figures = [event for event in events_of(tmp_path / "run", "evaluation") if event["examples"]]
    assert len(figures) >= 2, "nothing was measured on the way"
    for event in figures:
        assert (event["min_count"], event["max_count"], event["stray"]) == (1, 1, 0)
    assert result.completed and is_exact(result.summary.final)


def test_a_preempted_run_saves_one_state_of_all_and_goes_on(tmp_path: Path) -> None:
    options = {"workdir": tmp_path / "run", "emulation": EmulationConfig(compute_secs=0.02)}
    trainer = tally_trainer("preduce", 200, **options)
    stopped = fit_and_stop(trainer, 60)
    assert stopped.summary.exit == "preempted"
    assert 60 <= stopped.summary.units.applied < 200
    counts = -np.asarray(stopped.state.params["tally"])
    np.testing.assert_allclose(counts[counts > 0.5], 1.0, atol=1e-3)
    assert (counts > 0.5).sum() == stopped.summary.units.applied
    assert stopped.summary.units.rolled_back == 0
    result = tally_trainer("preduce", 200, **options).fit()
    assert result.completed and is_exact(result.summary.final)


def test_a_unit_that_is_not_finite_is_dropped_and_a_fresh_one_takes_its_place(tmp_path: Path) -> None:
    task = tally_task(40)

    def loss(params, model_state, batch, key):
        value, rest = task.loss(params, model_state, batch, key)
        return jnp.where(batch["unit"][0] == 7, jnp.nan, 1.0) * value, rest

    for plan in ("preduce", "adpsgd"):
        trainer = Trainer(
            dataclasses.replace(task, loss=loss),
            plain_sgd(1.0),
            workload=40,
            unit_size=1,
            workers=4,
            plan=plan,
            progress=False,
            checkpoint=CheckpointConfig(secs=3600.0),
            workdir=tmp_path / plan,
        )
        result = trainer.fit()
        assert is_exact(result.summary.final)
        units = result.summary.units
        assert (units.issued, units.applied, units.dropped, units.outstanding) == (41, 40, 1, 0)


def test_every_replica_has_its_own_optimizer_state_which_becomes_one_at_the_end() -> None:
    result = mlp_trainer("preduce:50%,bsp", 64, adamw()).fit()
    assert result.completed
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.opt_state))
    counts = [int(leaf) for leaf in jax.tree.leaves(result.state.opt_state) if np.asarray(leaf).dtype == np.int32]
    assert max(counts) >= 8 + 64 // 2 // 4, "step counts go on from those of the furthest replica"


def test_the_schedule_follows_the_units_of_all_workers() -> None:
    """Each unit leaves in the final mean what the schedule was told when it was applied."""
    optimizer = plain_sgd(1.0)
    optimizer.learning_rate = lambda examples: examples + 1.0
    trainer = Trainer(
        tally_task(80),
        optimizer,
        workload=80,
        unit_size=1,
        workers=4,
        plan="preduce",
        progress=False,
        emulation=EmulationConfig(compute_secs=0.005),
    )
    result = trainer.fit()
    told = -np.asarray(result.state.params["tally"])[:80]
    assert (told >= 1.0 - 1e-3).all()
    assert told.max() >= 60, "a worker's own units are a quarter of them"
