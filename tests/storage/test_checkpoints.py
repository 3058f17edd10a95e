import dataclasses
import os
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx, struct

from hybridsync.core.errors import CheckpointError, TaskError, WorkdirTaken
from hybridsync.storage.checkpoints import CheckpointStore, arrays, manifest
from hybridsync.storage.checkpoints import store as store_module
from hybridsync.training.buffer_layout import fingerprint

LEDGER = {"applied": [[0, 400]], "dropped": []}
RUN = {"seed": 7, "source": {"name": "digits", "rate": 0.1}}


@struct.dataclass
class State:
    params: Any
    opt_state: Any
    model_state: Any
    protocol_state: Any
    counters: Any


def make_state(seed: int = 0, **fields: Any) -> State:
    rng = np.random.default_rng(seed)
    params = {
        "layers": [{"kernel": rng.standard_normal((64, 48)).astype(np.float32)}, {"bias": np.float32(seed)}],
        "half": rng.standard_normal(5).astype(ml_dtypes.bfloat16),
        "mask": np.array([True, False]),
    }
    optimizer = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3))
    weights = {"kernel": params["layers"][0]["kernel"]}
    opt_state = optimizer.update(weights, optimizer.init(weights), weights)[1]
    state = State(
        params=params,
        opt_state=jax.tree.map(np.asarray, opt_state),
        model_state={"key_data": np.array([1, 2**32 - 1], np.uint32)},
        protocol_state={},
        counters={"units": np.int32(16777217), "updates": np.asarray(3, np.int32)},
    )
    return dataclasses.replace(state, **fields)


def shapes(state: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def save(store: CheckpointStore, state: Any, units: int) -> int:
    return store.save(state, units=units, ledger=LEDGER, run=RUN).step


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory) -> Path:
    """Hold step 1 (seed 1, 100 units) and step 2 (seed 2, 200 units); to be copied, not changed."""
    directory = tmp_path_factory.mktemp("two") / "checkpoints"
    store = CheckpointStore(directory)
    save(store, make_state(1), 100)
    save(store, make_state(2), 200)
    store.close()
    return directory


@pytest.fixture
def directory(two_steps, tmp_path) -> Path:
    return Path(shutil.copytree(two_steps, tmp_path / "checkpoints"))


def files_of(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


def check_recovery(directory: Path, what: str) -> bool:
    """Assert that a damaged step 2 is restored exactly or set aside for step 1; return which."""
    store = CheckpointStore(directory)
    restored = store.newest(shapes(make_state()))
    store.close()
    assert restored is not None, what
    assert (restored.ledger, restored.run) == (LEDGER, RUN), what
    assert restored.units == 100 * restored.step, what
    assert fingerprint(restored.state) == fingerprint(make_state(restored.step)), what
    assert [step for step, _ in restored.quarantined] == [2] * (restored.step == 1), what
    assert store.steps() == ((1,) if restored.quarantined else (1, 2)), what
    return bool(restored.quarantined)


def test_a_state_comes_back_bit_for_bit_in_its_own_structure(tmp_path):
    store = CheckpointStore(tmp_path / "deep" / "checkpoints")
    assert store.newest(shapes(make_state())) is None
    info = store.save(make_state(), units=400, ledger=LEDGER, run=RUN)
    assert info.step == 1
    assert info.bytes > 64 * 48 * 4
    assert info.secs > 0
    for target in (make_state(), shapes(make_state())):
        restored = store.newest(target)
        assert restored is not None
        assert (restored.step, restored.units, restored.quarantined) == (1, 400, ())
        assert (restored.ledger, restored.run) == (LEDGER, RUN)
        assert jax.tree.structure(restored.state) == jax.tree.structure(make_state())
        assert fingerprint(restored.state) == fingerprint(make_state())
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(restored.state))


def test_the_state_of_an_nnx_module_comes_back(tmp_path):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)])

    _, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)
    state = jax.tree.map(np.asarray, make_state(params=params, model_state=rest))
    store = CheckpointStore(tmp_path)
    save(store, state, 1)
    restored = store.newest(shapes(state))
    assert restored is not None
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    assert fingerprint(restored.state) == fingerprint(state)


def test_without_a_target_the_state_is_nested_dicts_and_lists(directory):
    restored = CheckpointStore(directory).newest()
    assert restored is not None
    kernel = make_state(2).params["layers"][0]["kernel"]
    np.testing.assert_array_equal(restored.state["params"]["layers"][0]["kernel"], kernel)
    assert restored.state["opt_state"][1]["hyperparams"]["learning_rate"].dtype == np.float32


def test_steps_count_on_and_only_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    assert [save(store, make_state(), 100) for _ in range(3)] == [1, 2, 3]
    assert store.steps() == (2, 3)
    assert save(CheckpointStore(tmp_path, keep=1), make_state(), 100) == 4
    assert store.steps() == (4,)


def test_the_step_is_durable_before_an_older_one_is_deleted(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, make_state(1), 100)
    synced = []
    sync_directory = store_module.sync_directory

    def noted(path):
        synced.append((Path(path), store.steps()))
        sync_directory(path)

    monkeypatch.setattr(store_module, "sync_directory", noted)
    save(store, make_state(2), 200)
    assert synced[0] == (tmp_path, (1, 2))
    assert store.steps() == (2,)


def test_a_save_from_another_thread_commits(tmp_path):
    store = CheckpointStore(tmp_path)
    thread = threading.Thread(target=save, args=(store, make_state(), 5))
    thread.start()
    thread.join(timeout=120)
    assert store.newest(make_state()) is not None


def reseal(step: Path) -> None:
    """Let a step's manifest say that its files were written as they are now."""
    sealed = manifest.read_manifest(step)
    files = {path: seal for path, seal in manifest.files_of(step).items() if path != manifest.MANIFEST_FILE}
    (step / manifest.MANIFEST_FILE).write_text(replace(sealed, files=files).text())


def test_an_array_that_was_written_wrong_is_named_by_its_leaf_wherever_it_differs(two_steps, tmp_path):
    kernel = make_state(2).params["layers"][0]["kernel"].tobytes()
    data = next(path for path in files_of(two_steps / "2") if kernel in path.read_bytes())
    start = data.read_bytes().index(kernel)
    for trial, offset in enumerate((0, len(kernel) // 2, len(kernel) - 1)):
        directory = Path(shutil.copytree(two_steps, tmp_path / str(trial)))
        content = bytearray(data.read_bytes())
        content[start + offset] ^= 1
        (directory / data.relative_to(two_steps)).write_bytes(content)
        reseal(directory / "2")
        assert check_recovery(directory, f"byte {offset} of the kernel")
        reason = (directory / "quarantine" / "2" / "reason.txt").read_text()
        assert reason == "leaf params/layers/0/kernel differs from what was saved\n"


def test_an_item_that_was_written_wrong_and_a_changed_unit_count_are_named(directory):
    for name, old, new in (("2/ledger/metadata", "400", "401"), ("1/manifest.json", '"units": 100', '"units": 101')):
        path = directory / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    reseal(directory / "2")
    with pytest.raises(CheckpointError, match=r"step 2: ledger differs.*step 1: file manifest.json is not what was"):
        CheckpointStore(directory).newest(make_state())


def test_files_that_orbax_cannot_read_although_they_are_as_written_are_fallen_back_from(directory):
    (directory / "2" / "state" / "_METADATA").write_text("{}")
    reseal(directory / "2")
    assert check_recovery(directory, "the tree's metadata")
    assert "unreadable although every file" in (directory / "quarantine" / "2" / "reason.txt").read_text()


def test_when_every_step_is_bad_each_reason_is_given_and_nothing_is_moved(directory):
    shutil.rmtree(directory / "1" / "state")
    (directory / "2" / "manifest.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .*step 2: .*step 1: "):
            CheckpointStore(directory).newest(make_state())
    assert sorted(os.listdir(directory)) == ["1", "2"]


def test_numbers_of_quarantined_steps_are_not_used_again(directory):
    (directory / "2" / "manifest.json").unlink()
    store = CheckpointStore(directory)
    assert store.newest(make_state()) is not None
    assert save(store, make_state(3), 300) == 3
    restored = store.newest(make_state())
    assert restored is not None
    assert (restored.step, restored.quarantined) == (3, ())


def with_kernel(kernel: np.ndarray) -> State:
    return make_state(params={**make_state().params, "layers": [{"kernel": kernel}, {"bias": np.float32(0)}]})


OTHER_MODELS = {
    "dtype": (
        make_state(counters={"units": np.float32(0), "updates": np.int32(0)}),
        r"leaf counters/units is int32\[\], expected float32\[\]",
    ),
    "shape": (
        with_kernel(np.zeros((48, 64), np.float32)),
        r"leaf params/layers/0/kernel is float32\[64,48\], expected float32\[48,64\]",
    ),
    "missing leaf": (
        make_state(model_state={"key_data": np.zeros(2, np.uint32), "mean": np.zeros(1, np.float32)}),
        r"leaf model_state/mean is absent, expected float32\[1\]",
    ),
    "extra leaf": (
        make_state(model_state={}),
        r"leaf model_state/key_data is uint32\[2\], expected no such leaf",
    ),
    "optimizer": (
        make_state(opt_state=jax.tree.map(np.asarray, optax.sgd(0.1, 0.9).init({"kernel": np.zeros(1)}))),
        r"leaf opt_state/0/trace/kernel is absent",
    ),
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_a_checkpoint_of_another_model_is_refused_by_leaf_and_both_types(directory, kind):
    state, message = OTHER_MODELS[kind]
    with pytest.raises(CheckpointError, match=f"checkpoint 2 .*another model.*{message}"):
        CheckpointStore(directory).newest(shapes(state))
    assert sorted(os.listdir(directory)) == ["1", "2"]


@pytest.mark.parametrize("number", [2, 4])
def test_a_checkpoint_of_another_format_is_refused_with_both_numbers(tmp_path, monkeypatch, number):
    store = CheckpointStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", number)
        save(store, make_state(), 1)
    with pytest.raises(CheckpointError, match=f"has format {number}, this HybridSync reads format 3"):
        store.newest(make_state())
    assert store.steps() == (1,)


def test_a_protocol_state_may_be_missing_on_either_side(tmp_path):
    momentum = make_state(protocol_state={"outer": np.ones(3, np.float32)})
    store = CheckpointStore(tmp_path)
    for saved, wanted, expected in (
        (momentum, make_state(), make_state()),
        (make_state(), momentum, make_state()),
        (momentum, momentum, momentum),
    ):
        save(store, saved, 1)
        restored = store.newest(shapes(wanted))
        assert restored is not None
        assert fingerprint(restored.state) == fingerprint(expected)


def test_each_protocols_state_may_be_missing_by_itself(tmp_path):
    outer, other = np.ones(3, np.float32), np.zeros(2, np.float32)
    store = CheckpointStore(tmp_path)
    save(store, make_state(protocol_state={"outer": outer}), 1)
    restored = store.newest(shapes(make_state(protocol_state={"other": other, "outer": outer})))
    assert restored is not None
    assert fingerprint(restored.state) == fingerprint(make_state(protocol_state={"outer": outer}))


def test_a_full_disk_is_reported_and_the_previous_step_stays(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, make_state(1), 100)
    large = make_state(params={"w": np.random.default_rng(0).standard_normal(2**20)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, hard))  # writes then fail as on a full disk
    try:
        with pytest.raises(CheckpointError, match=r"checkpoint 2 at 200 units was not.*File too large"):
            save(store, large, 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    restored = store.newest(make_state())
    assert restored is not None
    assert fingerprint(restored.state) == fingerprint(make_state(1))
    save(store, large, 200)
    assert sorted(os.listdir(tmp_path)) == [str(step) for step in store.steps()]
    assert store.newest(large) is not None


def test_a_disk_that_fails_to_sync_is_reported_with_its_cause(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    save(store, make_state(1), 100)

    def broken(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="Input/output error") as caught:
        patch.setattr(store_module, "sync_tree", broken)
        save(store, make_state(2), 200)
    assert isinstance(caught.value.__cause__, OSError)
    assert 1 in store.steps()
    assert save(store, make_state(3), 300) > 1


def test_a_passing_refusal_to_read_costs_no_step(directory, monkeypatch):
    store = CheckpointStore(directory)

    def refuse(*args, **kwargs):
        raise OSError(24, "Too many open files")

    expected = pytest.raises(CheckpointError, match=r"cannot be read.*Too many open files")
    with monkeypatch.context() as patch, expected:
        patch.setattr(arrays.ocp.Checkpointer, "restore", refuse)
        store.newest(make_state())
    restored = store.newest(make_state())
    assert restored is not None
    assert restored.step == 2


def test_what_a_killed_save_left_behind_is_ignored_and_removed(directory):
    left = directory / "partial"
    shutil.copytree(directory / "2", left / "3.orbax-checkpoint-tmp")
    store = CheckpointStore(directory)
    assert store.steps() == (1, 2)
    assert save(store, make_state(3), 300) == 3
    assert not left.exists()


class Fence:
    """Is asked before whatever changes the directory; the workdir is another chief's from its `taken`-th answer on."""

    def __init__(self, taken: int) -> None:
        self.asked, self.taken = 0, taken

    def __call__(self) -> None:
        self.asked += 1
        if self.asked >= self.taken:
            raise WorkdirTaken("another chief has it")


def test_a_chief_whose_workdir_was_taken_leaves_what_another_one_is_saving(directory):
    (directory / "partial" / "3.1.another").mkdir(parents=True)
    with pytest.raises(WorkdirTaken):
        save(CheckpointStore(directory, fence=Fence(taken=1)), make_state(3), 300)
    assert (directory / "partial" / "3.1.another").is_dir()


def test_a_step_whose_workdir_was_taken_while_it_was_written_gets_no_name(directory):
    fence = Fence(taken=2)
    with pytest.raises(WorkdirTaken):
        save(CheckpointStore(directory, fence=fence), make_state(3), 300)
    assert fence.asked == 2 and CheckpointStore(directory).steps() == (1, 2)


def test_a_step_whose_files_another_chief_has_removed_is_no_failed_save(directory, monkeypatch):
    def removed(path):
        shutil.rmtree(directory / "partial")
        (directory / "partial" / "3.1.another").mkdir(parents=True)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(store_module, "sync_tree", removed)
    with pytest.raises(WorkdirTaken):
        save(CheckpointStore(directory, fence=Fence(taken=2)), make_state(3), 300)
    assert (directory / "partial" / "3.1.another").is_dir()


def test_old_steps_are_kept_by_whom_the_workdir_was_taken_from(directory):
    fence = Fence(taken=3)
    with pytest.raises(WorkdirTaken):
        save(CheckpointStore(directory, keep=1, fence=fence), make_state(3), 300)
    assert CheckpointStore(directory).steps() == (1, 2, 3)


def test_a_damaged_step_is_moved_by_the_workdirs_chief_alone(directory):
    (directory / "2" / "run" / "metadata").unlink()
    with pytest.raises(WorkdirTaken):
        CheckpointStore(directory, fence=Fence(taken=1)).newest(make_state())
    assert CheckpointStore(directory).steps() == (1, 2) and not (directory / "2" / "reason.txt").exists()


def test_two_stores_never_write_in_one_place(directory):
    places = {CheckpointStore(directory)._unnamed(3) for _ in range(2)}
    assert len(places) == 2


@pytest.mark.parametrize(
    ("state", "ledger", "error", "message"),
    [
        (make_state(protocol_state={"x": np.zeros((0, 2))}), {}, CheckpointError, "x is float64.0,2."),
        (make_state(protocol_state={"x": 3}), {}, TaskError, "protocol_state/x is a int, not an array"),
        (make_state(protocol_state={"x": jax.random.key(0)}), {}, TaskError, "x is a PRNG key array"),
        (make_state(), {"x": float("nan")}, CheckpointError, "ledger is not JSON"),
        (make_state(), {"x": object()}, CheckpointError, "ledger is not JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path, state, ledger, error, message):
    store = CheckpointStore(tmp_path)
    with pytest.raises(error, match=message):
        store.save(state, units=1, ledger=ledger, run={})
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made_and_a_keep_of_none_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot open .*file"):
        CheckpointStore(tmp_path / "file" / "checkpoints")
    with pytest.raises(CheckpointError, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def test_a_folder_that_is_removed_while_the_store_is_open_is_made_again(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    save(store, make_state(), 1)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    save(store, make_state(), 2)
    found = CheckpointStore(tmp_path / "run" / "checkpoints").newest()
    assert found is not None and found.units == 2
