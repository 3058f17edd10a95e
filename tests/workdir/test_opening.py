"""Where a run begins: fresh, from its checkpoint, from another run; and what is refused, leaving all intact."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import optax
import pytest

from hybridsync import EmulationConfig
from hybridsync.core.errors import CheckpointError, DataError, OptimizerError, ResumeError, WorkdirError, WorkdirTaken
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.interfaces.commands import Order
from hybridsync.models import MLP
from hybridsync.storage.durable import WorkdirLock
from hybridsync.storage.lock_record import LockRecord
from hybridsync.storage.orders_file import OrdersFile
from hybridsync.trainer import Trainer
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.task import Task
from hybridsync.workdir.opening import open_run
from hybridsync.workdir.resuming import check_init_from
from tests.access import no_access
from tests.tasks import adamw, momentum_sgd, plain_sgd, tally_task
from tests.trainers import LOGGED, NEVER, events_of, fit_and_stop, is_exact, lines_of, mlp_trainer, tally_trainer

WORKLOAD = 48
SLOW = EmulationConfig(compute_secs=0.02)


@pytest.fixture(scope="module")
def preempted(tmp_path_factory) -> Path:
    """Hold a tally run of 48 units that was stopped among them; to be copied, not changed."""
    workdir = tmp_path_factory.mktemp("preempted") / "run"
    result = fit_and_stop(tally_trainer("bsp", WORKLOAD, workdir=workdir, telemetry=LOGGED, emulation=SLOW), 8)
    assert result.summary.exit == "preempted"
    assert 0 < result.summary.units.applied < WORKLOAD
    return workdir


@pytest.fixture
def workdir(preempted, tmp_path) -> Path:
    return Path(shutil.copytree(preempted, tmp_path / "run"))


def tree_of(workdir: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(workdir.rglob("*")) if path.is_file() and path.name not in ("lock", "beat"))
    return {str(path.relative_to(workdir)): path.read_bytes() for path in paths}


def test_a_chief_that_is_started_again_when_another_host_has_the_workdir_changes_nothing(workdir):
    """Its supervisor stood still meanwhile, and has handed it the nonce that it took the lock with."""
    with WorkdirLock(workdir) as lock:
        held = lock.held._replace(descriptor=os.dup(lock.held.descriptor))
        (workdir / "lock").write_text(LockRecord(7, "there", 12, "another-boot", "5eed").text())
        run = tally_trainer("bsp", WORKLOAD, workdir=workdir)._run
        before = tree_of(workdir)
        with pytest.raises(WorkdirTaken, match=r"names process 7 on there, and this is process"):
            open_run(run, alive=True, held=held)
        assert tree_of(workdir) == before


def test_auto_starts_a_fresh_workdir_and_resumes_a_used_one(workdir):
    before = json.loads((workdir / "summary.json").read_text())
    result = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    assert result.completed
    assert is_exact(result.summary.final)
    entered = events_of(workdir, "phase_entered")
    assert [event["reason"] for event in entered] == ["start", "resume"]
    assert entered[1]["units"] == before["units"]["applied"]
    assert entered[1]["phase"] > entered[0]["phase"]
    times = [event["t"] for event in events_of(workdir)]
    assert times == sorted(times)
    assert result.summary.seconds > before["seconds"], "earlier sessions count"


def test_must_resumes_and_refuses_where_there_is_nothing(workdir, tmp_path):
    assert tally_trainer("bsp", WORKLOAD, workdir=workdir, resume="must").fit().completed
    for options in ({"workdir": tmp_path / "fresh"}, {}):
        with pytest.raises(ResumeError, match="'must'"):
            tally_trainer("bsp", WORKLOAD, resume="must", **options).fit()


def test_never_refuses_a_used_workdir_and_leaves_it_as_it_was(workdir):
    before = tree_of(workdir)
    with pytest.raises(WorkdirError, match="'never'"):
        tally_trainer("bsp", WORKLOAD, workdir=workdir, resume="never").fit()
    assert tree_of(workdir) == before


def clipped(learning_rate):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))


@pytest.mark.parametrize(
    ("factory", "servers", "named"),
    [
        (clipped, 2, "cannot be divided among 2 servers"),
        (lambda learning_rate: optax.sgd(1e-9), 1, "takes learning_rate and does not use it"),
    ],
)
def test_an_optimizer_that_no_run_can_train_with_is_refused_before_the_workdir_is_made(
    factory, servers, named, tmp_path
):
    for workdir in (None, tmp_path / "run"):
        trainer = mlp_trainer("asp", 16, Optimizer(factory, learning_rate=0.1), workdir=workdir, servers=servers)
        with pytest.raises(OptimizerError, match=named):
            trainer.fit()
    assert not (tmp_path / "run").exists()


def test_an_optimizer_that_looks_at_several_leaves_trains_with_one_server():
    assert mlp_trainer("asp", 16, Optimizer(clipped, learning_rate=0.1)).fit().completed


def test_a_completed_run_is_returned_as_it_ended(workdir):
    ended = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    before = tree_of(workdir)
    again = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    assert again.completed
    assert again.summary.units == ended.summary.units
    assert fingerprint(again.state.params) == fingerprint(ended.state.params)
    changed = {name for name, content in tree_of(workdir).items() if before.get(name) != content}
    assert changed <= {"config.json"}


@pytest.mark.parametrize(
    ("plan", "warns"), [("asp:50%,bsp", True), ("ssp:50%,bsp_server", True), ("bsp:50%,asp", False)]
)
def test_a_plan_with_lock_step_after_asynchrony_warns_once(capsys, plan, warns):
    assert tally_trainer(plan, 16, progress=True).fit().completed
    assert capsys.readouterr().err.count("lock-step comes after asynchrony") == warns


def test_a_completed_run_says_so_to_who_follows_its_progress(workdir, capsys):
    assert tally_trainer("bsp", WORKLOAD, workdir=workdir).fit().completed
    assert "nothing is left to do" not in capsys.readouterr().err
    assert tally_trainer("bsp", WORKLOAD, workdir=workdir, progress=True).fit().completed
    assert f"is complete: {WORKLOAD} of {WORKLOAD} units applied; nothing is left to do" in capsys.readouterr().err


def test_a_run_that_died_between_its_last_commit_and_its_summary_is_concluded(workdir):
    ended = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    (workdir / "summary.json").unlink()
    again = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    assert again.completed
    assert is_exact(again.summary.final)
    assert fingerprint(again.state) == fingerprint(ended.state)


def test_the_workers_and_the_rest_of_the_plan_may_change(workdir):
    result = tally_trainer("bsp:50%,asp", WORKLOAD, workdir=workdir, workers=2).fit()
    assert is_exact(result.summary.final)
    assert result.summary.units.applied == WORKLOAD
    assert events_of(workdir, "phase_entered")[-1]["members"] == [0, 1]


def test_an_order_that_the_resumed_run_has_no_room_for_is_dropped_and_said_so(workdir, capsys):
    """The plan under which it was given named its protocol in a later stage."""
    orders = (Order(1, "diloco", 4, stage=0), Order(2, "asp", 5))
    OrdersFile(workdir, "bsp").write(orders)
    assert tally_trainer("bsp", WORKLOAD, workdir=workdir, progress=True).fit().completed
    (dropped,) = events_of(workdir, "order_dropped")
    assert (dropped["number"], dropped["protocol"]) == (1, "diloco")
    assert "keeps a momentum of its own" in dropped["why"]
    assert [event["protocol"] for event in events_of(workdir, "phase_entered")] == ["bsp", "asp"]
    assert [order.number for order in OrdersFile(workdir, "bsp").read()] == [2]
    assert "the order to go on under diloco, given at unit 4, is dropped: diloco keeps" in capsys.readouterr().err


def test_in_one_workdir_there_is_one_run_at_a_time(workdir):
    refused: list[Exception] = []
    trainer = tally_trainer("bsp", WORKLOAD, workdir=workdir)

    def start_another(metrics) -> None:
        try:
            tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
        except WorkdirError as error:
            refused.append(error)

    trainer.add_hook(start_another, every=8)
    assert trainer.fit().completed
    assert refused


# --- what a session that died has left ---


def opened_seconds(workdir: Path) -> float:
    """Return for how long the run in `workdir` has trained, as its next session is told."""
    opening = open_run(tally_trainer("bsp", WORKLOAD, workdir=workdir)._run)
    assert opening.lock is not None
    opening.lock.release()
    return opening.t


def test_the_time_between_the_last_commit_and_a_death_counts(workdir):
    events = (workdir / "events.jsonl").read_text().splitlines()
    assert '"run_finished"' in events.pop()  # it died instead
    (workdir / "events.jsonl").write_text("\n".join(events) + "\n")
    metrics = lines_of(workdir / "metrics.jsonl")[-1]
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**metrics, "t": metrics["t"] + 100.0}) + "\n")
    assert opened_seconds(workdir) == pytest.approx(metrics["t"] + 100.0)


def test_the_time_of_every_earlier_session_counts_and_what_was_between_them_does_not(workdir):
    """A session that leased no unit, and start-up, are no training; so in sessions of versions that counted them."""
    before = opened_seconds(workdir)
    last = events_of(workdir)[-1]

    def event(kind: str, secs: float, **fields: object) -> str:
        return json.dumps({**last, "kind": kind, "t": last["t"] + secs, **fields}) + "\n"

    with open(workdir / "events.jsonl", "a") as file:
        file.write(event("run_started", 0.0, reason="resume"))
        file.write(event("role_lost", 10.0, phase=last["phase"]))
        file.write(event("run_started", 10.0, reason="resume"))
        file.write(event("phase_entered", 30.0, phase=last["phase"] + 1))
        file.write(event("role_lost", 35.0, phase=last["phase"] + 1))
    assert opened_seconds(workdir) == pytest.approx(before + 5.0, abs=1e-3)


def test_a_start_from_unit_0_in_a_used_workdir_counts_its_own_time(workdir):
    before = events_of(workdir)[-1]["t"]
    shutil.rmtree(workdir / "checkpoints")
    result = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    assert result.completed and events_of(workdir, "run_started")[-1]["reason"] == "start"
    *_, last = events_of(workdir)
    assert result.summary.seconds == pytest.approx(last["t"] - before, abs=0.25)


def test_a_torn_last_line_of_the_apply_log_is_cut_when_the_run_goes_on(workdir):
    lines = (workdir / "apply_log").read_bytes().splitlines(keepends=True)
    (workdir / "apply_log").write_bytes(b"".join(lines) + lines[-1][: len(lines[-1]) // 2])
    result = tally_trainer("bsp", WORKLOAD, workdir=workdir, telemetry=LOGGED).fit()
    assert result.completed and is_exact(result.summary.final)
    entries = lines_of(workdir / "apply_log")
    assert [entry["sequence"] for entry in entries] == list(range(1, len(entries) + 1))
    assert sorted(unit for entry in entries for unit in entry["units"]) == list(range(WORKLOAD))


# --- what makes a run the run it is ---


def test_another_seed_is_refused_with_both_values(workdir):
    before = tree_of(workdir)
    with pytest.raises(ResumeError, match=r"seed.* 0.* 7"):
        tally_trainer("bsp", WORKLOAD, workdir=workdir, seed=7).fit()
    assert tree_of(workdir) == before


@pytest.fixture
def mlp_run(tmp_path) -> Path:
    workdir = tmp_path / "mlp"
    assert not fit_and_stop(mlp_trainer("bsp", WORKLOAD, workdir=workdir, emulation=SLOW), 8).completed
    return workdir


def test_another_model_and_another_optimizer_are_refused_by_the_leaf(mlp_run):
    before = tree_of(mlp_run)
    source = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64)
    wider = Task.from_nnx(lambda rngs: MLP((16, 48, 4), rngs=rngs), source)
    for task, optimizer in [(wider, momentum_sgd(0.02)), (mlp_trainer()._run.task, adamw())]:
        trainer = Trainer(task, optimizer, workload=WORKLOAD, unit_size=8, plan="bsp", workdir=mlp_run, progress=False)
        with pytest.raises(CheckpointError, match=r"leaf (params|opt_state)"):
            trainer.fit()
        assert tree_of(mlp_run) == before


def test_changed_data_are_refused_with_both_hashes(mlp_run):
    other = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64, data_seed=1)
    task = Task.from_nnx(lambda rngs: MLP((16, 32, 4), rngs=rngs), other)
    trainer = Trainer(
        task, momentum_sgd(0.02), workload=WORKLOAD, unit_size=8, plan="bsp", workdir=mlp_run, progress=False
    )
    with pytest.raises(ResumeError, match=f"hash was .*is '{other.describe()['hash']}'"):
        trainer.fit()


def test_another_unit_size_is_refused_and_converted_when_asked_for(mlp_run):
    with pytest.raises(ResumeError, match=r"unit_size.* 8.* 4"):
        mlp_trainer("bsp", WORKLOAD, workdir=mlp_run, unit_size=4).fit()
    examples = json.loads((mlp_run / "summary.json").read_text())["examples"]
    result = mlp_trainer("bsp", WORKLOAD, workdir=mlp_run, unit_size=4, convert_units=True).fit()
    assert result.completed
    assert events_of(mlp_run, "phase_entered")[-1]["units"] == examples / 4
    assert result.summary.units.workload == result.summary.units.applied == 2 * WORKLOAD
    assert result.summary.examples == 8 * WORKLOAD
    assert int(result.state.counters["units"]) == 2 * WORKLOAD
    again = mlp_trainer("bsp", WORKLOAD, workdir=mlp_run, unit_size=4, convert_units=True).fit()
    assert again.summary.units == result.summary.units, "the same command still means the same run"


def two_a_unit(workdir: Path, **options: Any) -> Trainer:
    """Return a run of units that the tally does not have."""
    task = tally_task(WORKLOAD)
    return Trainer(
        task, plain_sgd(1.0), workload=WORKLOAD, unit_size=2, workdir=workdir, workers=4, progress=False, **options
    )


def test_units_that_the_source_does_not_have_are_refused_before_the_record_says_them(workdir):
    before = tree_of(workdir)
    with pytest.raises(DataError, match="not of 2"):
        two_a_unit(workdir, plan="bsp", convert_units=True).fit()
    assert tree_of(workdir) == before


def test_what_was_refused_before_the_first_phase_is_not_held_against_the_command_that_sets_it_right(tmp_path):
    with pytest.raises(DataError, match="not of 2"):
        two_a_unit(tmp_path / "run").fit()
    assert is_exact(tally_trainer("bsp", WORKLOAD, workdir=tmp_path / "run", resume="never").fit().summary.final)
    with pytest.raises(ResumeError, match=r"unit_size.* 1.* 2"):
        two_a_unit(tmp_path / "run").fit()


# --- damage ---


def newest_step(workdir: Path) -> Path:
    return max((p for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def damage(step: Path) -> None:
    """Flip one bit in the middle of the largest file."""
    path = max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_newest_checkpoint_is_set_aside_and_its_units_are_done_again(workdir):
    lost = json.loads((workdir / "summary.json").read_text())["units"]["applied"]
    damaged = newest_step(workdir)
    damage(damaged)
    result = tally_trainer("bsp", WORKLOAD, workdir=workdir, telemetry=LOGGED).fit()
    assert result.completed
    assert is_exact(result.summary.final)
    assert result.summary.units.rolled_back == lost
    assert events_of(workdir, "phase_entered")[-1]["units"] == 0
    assert (workdir / "checkpoints" / "quarantine" / damaged.name / "reason.txt").exists()
    sequences = [entry["sequence"] for entry in lines_of(workdir / "apply_log")]
    assert sequences == list(range(1, len(sequences) + 1)), "updates that were lost are cut from the log"


def test_units_are_counted_as_rolled_back_once(workdir):
    """A second resume does not count again what the first one lost."""
    damage(newest_step(workdir))
    lost = fit_and_stop(tally_trainer("bsp", WORKLOAD, workdir=workdir, emulation=SLOW), 4).summary.units
    assert lost.rolled_back > 0
    assert lost.applied < WORKLOAD
    final = tally_trainer("bsp", WORKLOAD, workdir=workdir).fit().summary.units
    assert final.rolled_back == lost.rolled_back


def test_a_run_without_any_good_checkpoint_is_refused_and_nothing_is_moved(workdir):
    for step in (workdir / "checkpoints").iterdir():
        damage(step)
    before = tree_of(workdir)
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        tally_trainer("bsp", WORKLOAD, workdir=workdir).fit()
    assert tree_of(workdir) == before


# --- from another run ---


def test_another_runs_state_starts_a_new_run_at_unit_zero(mlp_run, tmp_path):
    trained = mlp_trainer("bsp", WORKLOAD, workdir=mlp_run).fit()
    workdir = tmp_path / "new"
    trainer = mlp_trainer("bsp", 8, workdir=workdir, init_from=mlp_run)
    result = trainer.fit()
    (entered,) = events_of(workdir, "phase_entered")
    assert (entered["reason"], entered["units"]) == ("init_from", 0)
    zeroed = dataclasses.replace(trained.state, counters={"units": entered["units"], "updates": 0})
    assert int(result.state.counters["units"]) == 8
    assert fingerprint(trained.state.params) == fingerprint(zeroed.params)
    fresh = mlp_trainer("bsp", 8).fit()
    assert fingerprint(result.state.params) != fingerprint(fresh.state.params)


def test_another_runs_state_is_trained_with_the_hyperparameters_asked_for(tmp_path):
    def fit(momentum: float, **options: Any) -> Any:
        optimizer = Optimizer(optax.sgd, learning_rate=0.01, momentum=momentum)
        return mlp_trainer("bsp", 8, optimizer, **options).fit()

    fit(0.9, workdir=tmp_path / "first")
    after = fit(0.5, workdir=tmp_path / "second", init_from=tmp_path / "first")
    assert float(after.state.opt_state.hyperparams["momentum"]) == 0.5


@pytest.mark.parametrize("make", [lambda path: path / "absent", lambda path: path])
def test_a_folder_without_checkpoints_cannot_be_started_from(tmp_path, make):
    with pytest.raises(ResumeError, match="no checkpoint"):
        mlp_trainer("bsp", 8, init_from=make(tmp_path)).fit()


def test_a_folder_that_nobody_may_look_into_cannot_be_started_from(tmp_path):
    with no_access(tmp_path), pytest.raises(ResumeError, match=r"init_from names .* cannot be read: Permission denied"):
        check_init_from(tmp_path / "run")


def test_a_fresh_start_after_a_crash_before_the_first_commit(tmp_path):
    """config.json is written before the first checkpoint: the workdir counts as used, and starts."""
    workdir = tmp_path / "run"
    assert tally_trainer("bsp", 8, workdir=workdir, checkpoint=NEVER).fit().completed
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "summary.json").unlink()
    result = tally_trainer("bsp", 8, workdir=workdir).fit()
    assert is_exact(result.summary.final)
    phase_numbers = [event["phase"] for event in events_of(workdir, "phase_entered")]
    assert phase_numbers == sorted(set(phase_numbers)), "a phase number is never used twice"


@pytest.mark.parametrize("resume", ["auto", "must", "never"])
def test_checkpoints_whose_config_json_is_lost_are_not_taken_for_a_fresh_workdir(workdir, resume):
    (workdir / "config.json").unlink()
    before = tree_of(workdir)
    with pytest.raises(WorkdirError, match=r"checkpoints holds checkpoints, but .*config\.json is lost; restore it"):
        tally_trainer("bsp", WORKLOAD, workdir=workdir, resume=resume).fit()
    assert tree_of(workdir) == before
