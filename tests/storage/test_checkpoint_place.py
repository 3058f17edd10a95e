"""A step that stands where it was not saved: renamed, brought from another workdir, or a link to somewhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync.config import TelemetryConfig
from hybridsync.core.errors import CheckpointError
from hybridsync.storage.checkpoints import QUARANTINE, REASON_FILE, CheckpointStore
from hybridsync.storage.checkpoints.manifest import MANIFEST_FILE, json_digest
from tests.trainers import events_of, is_exact, tally_trainer

OURS, THEIRS = "0123456789abcdef", "fedcba9876543210"


def save(folder: Path, number: int, run: str | None = OURS) -> int:
    store = CheckpointStore(folder, run=run)
    try:
        state = {"params": {"w": np.full(3, number, np.float32)}}
        return store.save(state, units=100 * number, ledger={"applied": []}, run={"seed": 7}).step
    finally:
        store.close()


def newest(folder: Path, run: str | None = OURS) -> tuple[int, tuple[tuple[int, str], ...]]:
    store = CheckpointStore(folder, run=run)
    restored = store.newest()
    store.close()
    assert restored is not None
    return restored.step, restored.quarantined


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold steps 1 to 3; to be copied."""
    folder = tmp_path_factory.mktemp("place") / "checkpoints"
    assert [save(folder, number) for number in (1, 2, 3)] == [1, 2, 3]
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold steps 2 to 4 of another run."""
    folder = tmp_path_factory.mktemp("others") / "checkpoints"
    assert [save(folder, number + 10, THEIRS) for number in (1, 2, 3, 4)] == [1, 2, 3, 4]
    return folder


@pytest.fixture
def folder(three_steps: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(three_steps, tmp_path / "checkpoints"))


def test_steps_in_their_places_are_taken(folder: Path) -> None:
    assert newest(folder) == (3, ())
    assert newest(folder, run=None) == (3, ())


def rename(folder: Path, others: Path) -> None:
    (folder / "1").rename(folder / "9")


def bring(folder: Path, others: Path) -> None:
    shutil.copytree(others / "4", folder / "4")


def bring_one_of_a_copy_of_this_run(folder: Path, others: Path) -> None:
    copy = Path(shutil.copytree(folder, folder.parent / "copy"))
    shutil.rmtree(copy / "3")
    assert (save(copy, 33), save(copy, 34)) == (3, 4)
    shutil.copytree(copy / "4", folder / "4")


def link(folder: Path, others: Path) -> None:
    (folder / "4").symlink_to(others / "4")


def link_to_nothing(folder: Path, others: Path) -> None:
    (folder / "4").symlink_to(folder / "absent")


def link_a_file(folder: Path, others: Path) -> None:
    shutil.move(folder / "3" / "run" / "metadata", folder.parent / "elsewhere")
    (folder / "3" / "run" / "metadata").symlink_to(folder.parent / "elsewhere")


def link_a_folder(folder: Path, others: Path) -> None:
    shutil.move(folder / "3" / "run", folder.parent / "elsewhere")
    (folder / "3" / "run").symlink_to(folder.parent / "elsewhere")


MOVED: list[tuple[Callable[[Path, Path], None], int, int, str]] = [
    # what is done, the step that is set aside, the one that is taken, the reason
    (rename, 9, 3, "its folder is named 9, its manifest says step 1"),
    (bring, 4, 3, f"its manifest says run {THEIRS}, this is run {OURS}"),
    (bring_one_of_a_copy_of_this_run, 4, 3, "it was saved behind a step 3 whose manifest has digest"),
    (link, 4, 3, "it is a symbolic link to"),
    (link_to_nothing, 4, 3, "it is a symbolic link to"),
    (link_a_file, 3, 2, "run/metadata is a symbolic link to"),
    (link_a_folder, 3, 2, "run is a symbolic link to"),
]


@pytest.mark.parametrize(("move", "refused", "taken", "reason"), MOVED, ids=[move.__name__ for move, *_ in MOVED])
def test_a_step_in_a_place_that_is_not_its_own_is_set_aside_and_the_newest_good_one_is_taken(
    folder: Path, others: Path, move: Callable[[Path, Path], None], refused: int, taken: int, reason: str
) -> None:
    move(folder, others)
    step, ((quarantined, why),) = newest(folder)
    assert (step, quarantined) == (taken, refused)
    assert reason in why
    assert (folder / QUARANTINE / str(refused) / REASON_FILE).read_text() == why + "\n"
    assert newest(folder) == (taken, ())
    assert save(folder, 5) == max(refused, 3) + 1


def test_a_damaged_manifest_costs_its_own_step_and_not_the_one_saved_behind_it(folder: Path) -> None:
    path = folder / "2" / MANIFEST_FILE
    path.write_text(path.read_text().replace('"units": 200', '"units": 201'))
    assert newest(folder) == (3, ())


def test_setting_a_link_aside_leaves_what_it_points_to(folder: Path, others: Path) -> None:
    before = sorted(path.name for path in (others / "4").iterdir())
    link(folder, others)
    newest(folder)
    assert sorted(path.name for path in (others / "4").iterdir()) == before
    assert os.readlink(folder / QUARANTINE / "4" / "link") == str(others / "4")


def test_where_every_step_is_another_ones_all_are_named_and_nothing_is_moved(others: Path) -> None:
    with pytest.raises(CheckpointError, match=f"step 4: its manifest says run {THEIRS}, this is run {OURS}.*step 2: "):
        newest(others)
    assert sorted(path.name for path in others.iterdir()) == ["2", "3", "4"]


def without_place(step: Path) -> None:
    """Make a step what an older version saved."""
    record: dict[str, Any] = json.loads((step / MANIFEST_FILE).read_text())
    for name in ("step", "run", "parent", "digest"):
        del record[name]
    text = json.dumps(record | {"digest": json_digest(record)}, indent=1, sort_keys=True) + "\n"
    (step / MANIFEST_FILE).write_text(text)


def test_steps_of_an_older_version_are_taken_as_they_are_named_and_gone_on_from(folder: Path) -> None:
    for step in ("1", "2", "3"):
        without_place(folder / step)
    assert newest(folder) == (3, ())
    assert save(folder, 4) == 4
    assert newest(folder) == (4, ())


def test_a_run_says_which_step_it_set_aside_and_goes_on_from_the_newest_of_its_own(tmp_path: Path) -> None:
    telemetry = TelemetryConfig(timeline=False)
    for name in ("ours", "theirs"):
        tally_trainer(workdir=tmp_path / name, telemetry=telemetry, plan="bsp:50%,asp").fit()
    identities = [json.loads((tmp_path / name / "config.json").read_text())["run"] for name in ("ours", "theirs")]
    steps = sorted(int(path.name) for path in (tmp_path / "ours" / "checkpoints").iterdir())
    newest_of_theirs = tmp_path / "theirs" / "checkpoints" / str(steps[-1])
    shutil.rmtree(tmp_path / "ours" / "checkpoints" / str(steps[-1]))
    shutil.copytree(newest_of_theirs, tmp_path / "ours" / "checkpoints" / str(steps[-1]))
    result = tally_trainer(workdir=tmp_path / "ours", telemetry=telemetry, plan="bsp:50%,asp").fit()
    assert is_exact(result.summary.final)
    (_, resumed) = events_of(tmp_path / "ours", "run_started")
    ((step, reason),) = resumed["quarantined"]
    assert step == steps[-1]
    assert f"its manifest says run {identities[1]}, this is run {identities[0]}" in reason
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["run"] == identities[0]
