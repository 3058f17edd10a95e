"""Replay in one process: real runs come out bit-equal, and every planted bug is found and named."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.config import RunConfig, apply_overrides, load_config, restore_values
from hybridsync.core.errors import ConfigError, HybridSyncError, NotRunning, ResumeError, RoleLost, WorkdirError
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import Replayed, compare, replay
from hybridsync.runtime.agent.fork_server import ForkServerClient
from hybridsync.storage.apply_log import APPLY_LOG
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.telemetry.events import read_events
from hybridsync.trainer import Trainer
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.workdir.resuming import CHECKPOINTS
from tests.command_lines import CommandLines, command_lines
from tests.trainers import ALL_UNITS, fit_and_stop, units_held

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "configs" / "digits_mlp.py"
WORKLOAD = 90  # the second phase of bsp:40%,... begins at 36, so each lock-step phase of 4 may end on a short step
VALUES = [f"workload={WORKLOAD}", "unit_size=8", "telemetry.apply_log=true", "model.dropout=0.1"]


def trainer(workdir: Path, plan: str, *values: str, **options: Any) -> Trainer:
    return Trainer.from_config(DIGITS, [*VALUES, f"plan={plan}", *values], workdir=workdir, progress=False, **options)


def replayed(workdir: Path, fork_server_client: ForkServerClient | None = None) -> Replayed:
    record = read_record(workdir)
    loaded = load_config(DIGITS)
    config = restore_values(loaded.config, record.config)
    run = Run(config, loaded.module.task(config), loaded.module.optimizer(config), workdir)
    return replay(record, run, fork_server_client)


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three phases: 9 lock-step updates, 27 served ones, 7 lock-step ones of which the last is short."""
    workdir = tmp_path_factory.mktemp("runs") / "switched"
    assert trainer(workdir, "bsp:40%,asp:30%,bsp").fit().completed
    return workdir


@pytest.fixture
def copied(switched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(switched, tmp_path / "run"))


def edit_log(workdir: Path, sequence: int, change: Callable[[dict[str, Any]], None]) -> None:
    lines = [json.loads(line) for line in (workdir / APPLY_LOG).read_text().splitlines()]
    change(lines[sequence - 1])
    (workdir / APPLY_LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))


def spoiled_run(*values: str) -> Run:
    """Return a run some of whose units have no finite loss."""
    loaded = load_config(DIGITS)
    config = apply_overrides(loaded.config, [*VALUES, f"plan={values[0]}", *values[1:]])
    whole = loaded.module.task(config)

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(jnp.sum(batch["label"]) % 7 == 0, jnp.nan, value), rest

    return Run(config, dataclasses.replace(whole, loss=loss), loaded.module.optimizer(config), None)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A lock-step run of four members, some of whose units have no finite loss."""
    workdir = tmp_path_factory.mktemp("runs") / "spoiled"
    run = spoiled_run("bsp")
    assert Trainer(run.task, run.optimizer, run.config, workdir=workdir, progress=False).fit().summary.units.dropped
    return workdir, dataclasses.replace(run, workdir=workdir)


def test_a_run_whose_mesh_dropped_units_replays_bit_for_bit(spoiled: tuple[Path, Run]) -> None:
    workdir, run = spoiled
    record = read_record(workdir)
    assert any(entry.slots and entry.slots[0] > 0 for entry in record.entries), "whoever is first dropped one"
    found = replay(record, run)
    assert found.difference is None, str(found)


def test_a_run_that_its_user_switched_replays_bit_for_bit(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    ordered = trainer(workdir, "bsp:80%,asp", "emulation.compute_secs=0.02")
    orders = ["ssp(staleness=2)"]  # once: the later stage goes by the plan

    def order(metrics: object) -> None:
        if orders:
            ordered.switch(orders.pop(), "to see it")

    ordered.add_hook(order, every=20)
    with units_held(24, lambda: ALL_UNITS):
        assert ordered.fit().completed
    record = read_record(workdir)
    assert [phase.spec for phase in record.phases] == ["bsp", "ssp(staleness=2)", "asp"]
    assert [event["reason"] for event in read_events(workdir, "switch")] == ["ordered", "planned"]
    found = replayed(workdir)
    assert found.difference is None, str(found)
    with pytest.raises(NotRunning, match="fit is not under way"):
        ordered.switch("asp")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose lock-step members take 4, 4, 1 and 4 units of a step; its last step is short."""
    workdir = tmp_path_factory.mktemp("runs") / "shared"
    assert trainer(workdir, "bsp:40%,asp:30%,bsp", "policy.shares=4,4,1,4").fit().completed
    return workdir


def test_a_run_whose_members_took_shares_replays_bit_for_bit(shared: Path) -> None:
    record = read_record(shared)
    assert [phase.shares for phase in record.phases] == [(4, 4, 1, 4), (), (4, 4, 1, 4)]
    assert [len(entry.units) for entry in record.phases[0].entries] == [13, 13, 10]
    assert [entry.rate for entry in record.phases[0].entries] == [13.0, 13.0, 10.0]
    found = replayed(shared)
    assert found.difference is None, str(found)


def test_a_run_that_was_rebalanced_replays_bit_for_bit(tmp_path: Path) -> None:
    slow = "emulation.stragglers=worker=1,delay_ms=30,from=0%,to=100%"
    values = ["workload=600", "emulation.compute_secs=0.01", slow, "policy.online=rebalance"]
    assert trainer(tmp_path, "bsp:80%,asp", *values).fit().completed
    first, *rest = read_record(tmp_path).phases
    shares = next(phase.shares for phase in rest if phase.shares)
    assert not first.shares and shares[1] == 1 and max(shares) > 1
    found = replayed(tmp_path)
    assert found.difference is None, str(found)


@pytest.mark.parametrize("plan", ["preduce", "adpsgd"])
def test_a_run_in_groups_whose_rate_moves_replays_bit_for_bit(tmp_path: Path, plan: str) -> None:
    assert trainer(tmp_path, plan, "optimizer.schedule.kind=cosine").fit().completed
    found = replayed(tmp_path)
    assert found.difference is None, str(found)


def test_other_shares_than_the_runs_are_found(shared: Path, tmp_path: Path) -> None:
    workdir = Path(shutil.copytree(shared, tmp_path / "run"))
    events = (workdir / "events.jsonl").read_text()
    (workdir / "events.jsonl").write_text(events.replace('"shares":[4,4,1,4]', '"shares":[1,4,4,4]', 1))
    found = replayed(workdir)
    assert found.since is not None and found.since.number == 1
    (workdir / "events.jsonl").write_text(events.replace('"shares":[4,4,1,4]', '"shares":[3,3,1,3]', 1))
    with pytest.raises(WorkdirError, match=r"update 1 holds 13 units, a step of phase 1 .* has 10 places"):
        read_record(workdir)


def test_a_run_whose_members_dropped_some_of_their_units_replays_bit_for_bit(tmp_path: Path) -> None:
    run = spoiled_run("bsp", "policy.shares=3,0,1,2")
    assert Trainer(run.task, run.optimizer, run.config, workdir=tmp_path, progress=False).fit().summary.units.dropped
    found = replay(read_record(tmp_path), dataclasses.replace(run, workdir=tmp_path))
    assert found.difference is None, str(found)


@pytest.mark.parametrize("slots", [[0], [2, 1, 0], [0, 0, 1], [1, 2, 9]])
def test_places_that_no_mesh_has_are_named(spoiled: tuple[Path, Run], tmp_path: Path, slots: list[int]) -> None:
    workdir = Path(shutil.copytree(spoiled[0], tmp_path / "run"))
    entry = next(entry for entry in read_record(workdir).entries if len(entry.slots) == 3)
    edit_log(workdir, entry.sequence, lambda line: line.update(slots=slots))
    with pytest.raises(WorkdirError, match=rf"update {entry.sequence} has units .*in the places"):
        read_record(workdir)


def test_a_run_that_switched_twice_replays_bit_for_bit(switched: Path) -> None:
    found = replayed(switched)
    assert found.difference is None, str(found)
    assert (found.updates, found.since) == (9 + 27 + 7, None)
    assert str(found) == f"43 updates replayed, bit for bit: fingerprint {found.fingerprint}"


def test_a_resumed_run_replays_as_a_whole(tmp_path: Path) -> None:
    first = trainer(tmp_path, "bsp:40%,asp", "emulation.compute_secs=0.02")
    assert not fit_and_stop(first, 45).completed
    assert trainer(tmp_path, "bsp:40%,asp", "workers=3").fit().completed
    assert [phase.members for phase in read_record(tmp_path).phases][0::2] == [(0, 1, 2, 3), (0, 1, 2)]
    found = replayed(tmp_path)
    assert found.difference is None, str(found)


def test_a_wrong_base_is_found_and_the_phase_named(copied: Path) -> None:
    entry = next(entry for entry in read_record(copied).phases[1].entries if entry.base > 10)
    edit_log(copied, entry.sequence, lambda line: line.update(base=entry.base - 1))
    found = replayed(copied)
    assert found.difference is not None and found.since is not None
    assert found.since.number == 2
    assert "phase 2 (asp, updates 10 to 36)" in str(found)
    assert found.difference.leaf.startswith("params/") and found.difference.leaf in str(found)
    assert found.difference.replayed != found.difference.saved


@pytest.mark.parametrize("sequence", [3, 43])
def test_a_wrong_rate_is_found_and_the_phase_named(copied: Path, sequence: int) -> None:
    edit_log(copied, sequence, lambda line: line.update(rate=line["rate"] * (1 + 2**-12)))
    found = replayed(copied)
    assert found.difference is not None and found.since is not None
    assert sequence in {entry.sequence for entry in found.since.entries}


def test_a_wrong_order_of_members_is_found(copied: Path) -> None:
    edit_log(copied, 4, lambda line: line.update(units=line["units"][::-1]))
    found = replayed(copied)
    assert found.since is not None and found.since.number == 1


def test_a_doubled_unit_is_named_with_both_its_updates(copied: Path) -> None:
    edit_log(copied, 20, lambda line: line.update(units=[5]))
    with pytest.raises(WorkdirError, match=r"unit 5 was applied twice: .* in updates 2 and 20"):
        read_record(copied)


def test_a_unit_that_the_ledger_does_not_know_is_named(copied: Path) -> None:
    edit_log(copied, 20, lambda line: line.update(units=[WORKLOAD + 7]))
    with pytest.raises(WorkdirError, match=f"unit {WORKLOAD + 7} is applied in the apply log .* not in its ledger"):
        replayed(copied)


def test_one_altered_bit_of_a_checkpoint_is_found_with_both_values(copied: Path) -> None:
    store = CheckpointStore(copied / CHECKPOINTS)
    saved = store.newest()
    assert saved is not None
    leaves, treedef = jax.tree.flatten_with_path(saved.state)
    where, leaf = next((index, leaf) for index, (_, leaf) in enumerate(leaves) if leaf.ndim == 2)
    altered = leaf.copy()
    altered.view(np.uint32)[3, 5] ^= 1
    path = jax.tree_util.keystr(leaves[where][0], simple=True, separator="/")
    state = treedef.unflatten([altered if i == where else leaf for i, (_, leaf) in enumerate(leaves)])
    store.save(state, units=saved.units, ledger=saved.ledger, run=saved.run)
    store.close()
    found = replayed(copied)
    assert found.difference is not None and found.since is None
    assert (found.difference.leaf, found.difference.index, found.difference.num_entries) == (path, (3, 5), 1)
    assert found.difference.replayed == leaf[3, 5].item() != altered[3, 5].item() == found.difference.saved
    assert "in the checkpoint itself" in str(found)


def test_a_changed_initialisation_is_told_from_a_wrong_update(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["config"]["seed"] += 1
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResumeError, match="the starting state has fingerprint"):
        replayed(copied)


def test_comparing_looks_at_bits_not_values() -> None:
    def state(*values: float) -> TrainState:
        return TrainState({"w": np.array(values, np.float32)}, {}, {}, {}, {"units": np.int32(1)})

    assert compare(state(np.nan, 1.0), state(np.nan, 1.0)) is None
    difference = compare(state(0.0, 1.0), state(-0.0, 1.0))
    assert difference is not None and (difference.leaf, difference.index) == ("params/w", (0,))


def cut_line(workdir: Path) -> None:
    lines = (workdir / APPLY_LOG).read_text().splitlines(keepends=True)
    (workdir / APPLY_LOG).write_text("".join(lines[:10] + lines[11:]))


def cut_end(workdir: Path) -> None:
    lines = (workdir / APPLY_LOG).read_text().splitlines(keepends=True)
    (workdir / APPLY_LOG).write_text("".join(lines[:-1]))


def lose_newest_checkpoint(workdir: Path) -> None:
    shutil.rmtree(max((workdir / CHECKPOINTS).glob("[0-9]*"), key=lambda step: int(step.name)))


def spoil_line(workdir: Path) -> None:
    (workdir / APPLY_LOG).write_text((workdir / APPLY_LOG).read_text().replace('"sequence":7,', '"sequence":', 1))


def begin_from_another(workdir: Path) -> None:
    events = (workdir / "events.jsonl").read_text()
    (workdir / "events.jsonl").write_text(events.replace('"reason":"start"', '"reason":"init_from"', 1))


def change_unit_size(workdir: Path) -> None:
    config = json.loads((workdir / "config.json").read_text())
    config["config"]["unit_size"] = 16
    (workdir / "config.json").write_text(json.dumps(config))


def drop_last_event(workdir: Path) -> None:
    lines = (workdir / "events.jsonl").read_text().splitlines(keepends=True)
    (workdir / "events.jsonl").write_text("".join(lines[:-1]))


def turn_log_off(workdir: Path) -> None:
    config = json.loads((workdir / "config.json").read_text())
    config["config"]["telemetry"]["apply_log"] = False
    (workdir / "config.json").write_text(json.dumps(config))


REFUSED: list[tuple[Callable[[Path], None], type[HybridSyncError], str]] = [
    (turn_log_off, WorkdirError, "run with --apply_log"),
    (lambda workdir: (workdir / "config.json").unlink(), WorkdirError, "holds no run"),
    (lambda workdir: (workdir / APPLY_LOG).unlink(), WorkdirError, "holds no apply log"),
    (lambda workdir: shutil.rmtree(workdir / CHECKPOINTS), WorkdirError, "no checkpoint to compare with"),
    (drop_last_event, WorkdirError, "is not finished"),
    (cut_line, WorkdirError, "is incomplete from update 11 on: update 12 stands there"),
    (cut_end, WorkdirError, "is incomplete from update 43 on: it holds 42 updates, checkpoint"),
    (lose_newest_checkpoint, WorkdirError, "holds 36 of the 43 logged updates"),
    (spoil_line, WorkdirError, "is damaged behind update 6"),
    (begin_from_another, ResumeError, "began from another run's state"),
    (change_unit_size, ResumeError, "another unit size: 8 at unit"),
]


@pytest.mark.parametrize(("spoil", "kind", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_cannot_be_replayed_is_refused_by_name(
    copied: Path, spoil: Callable[[Path], None], kind: type[HybridSyncError], message: str
) -> None:
    spoil(copied)
    with pytest.raises(kind, match=message):
        replayed(copied)


ENDS = """import os
from hybridsync.runtime.agent.fork_server import connect
connect().serve()
print('so long, with threads:', os.environ['PJRT_NPROC'])
raise SystemExit(3)"""


def test_a_member_process_has_the_runs_threads_and_is_named_with_its_log_where_it_ends_early(copied: Path) -> None:
    events, in_processes = (copied / "events.jsonl").read_text(), '"runtime":"processes","num_threads":5'
    events = events.replace('"runtime":"inprocess"', in_processes, 1).replace('"collective":"threads",', "", 1)
    (copied / "events.jsonl").write_text(events)
    (copied / "logs").mkdir()
    fork_server_client = ForkServerClient([sys.executable, "-c", ENDS], copied / "logs" / "fork-server.log")
    early = r"member \d of the replay of phase 1 .* ended early: exit 3"
    with contextlib.closing(fork_server_client), pytest.raises(RoleLost, match=early) as lost:
        replayed(copied, fork_server_client)
    assert "so long, with threads: 5" in str(lost.value)


def test_values_come_back_from_json_as_they_were_and_unknown_ones_are_refused() -> None:
    config = load_config(DIGITS).config
    saved = {"workload": 9, "model": {"hidden": [3, 2]}, "optimizer": {"clip": 0.5}}
    restored: RunConfig = restore_values(config, saved)
    assert (restored.workload, restored.model.hidden, restored.optimizer.clip) == (9, (3, 2), 0.5)
    assert restored.data == config.data
    with pytest.raises(ConfigError, match=r"model\.depth=8"):
        restore_values(config, {"model": {"depth": 8}})


def test_neither_donation_nor_a_committed_device_changes_a_bit() -> None:
    """Worker processes compute one way, threads and the replay the other; the same programs, other executables."""

    def trained(donate: bool, device: Any) -> str:
        loaded = load_config(DIGITS)
        config = restore_values(loaded.config, {"workload": WORKLOAD, "model": {"dropout": 0.1}})
        run = Run(config, loaded.module.task(config), loaded.module.optimizer(config), None)
        programs = run.programs(donate_parameters=donate)
        state = jax.device_put(jax.device_get(run.initial_state()), device)
        for unit in range(20):
            contribution = programs.gradient(Parameters(state.params, state.model_state), unit)
            total = jax.device_put(jax.device_get(contribution), device) if donate else contribution
            state = programs.update(state, total, units=1, factor=1.0, blend=0.25)
        return fingerprint(state)

    assert trained(True, jax.local_devices()[0]) == trained(False, None)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    imported = ("hybridsync.lab.replay.verdict", "hybridsync.models", "hybridsync.data.digits")
    with command_lines(tmp_path_factory.mktemp("printed"), "replay", *imported) as command:
        yield command


def test_the_command_prints_one_line_and_ends_with_0(command: CommandLines, copied: Path) -> None:
    done = command(str(copied))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("43 updates replayed, bit for bit: fingerprint ")
    assert done.stdout.count("\n") == 1


def test_the_command_prints_the_difference_and_ends_with_1(command: CommandLines, copied: Path) -> None:
    edit_log(copied, 20, lambda line: line.update(rate=2.0))
    config = json.loads((copied / "config.json").read_text())
    config["file"] = "configs/moved.py"
    (copied / "config.json").write_text(json.dumps(config))
    refused = command(str(copied))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"error: there is no configuration file '{Path('configs/moved.py').resolve()}'")
    assert refused.stderr.count("\n") == 1
    done = command(str(copied), f"--config={DIGITS}")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("the replay of 43 updates differs, since phase 2 (asp, updates 10 to 36): params/")
