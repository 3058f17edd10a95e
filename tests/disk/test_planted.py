"""Every check of this folder is shown able to fail: each planted bug must be found by the one that is there for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hybridsync.core.errors import HybridSyncError
from hybridsync.storage.checkpoints import CheckpointStore
from tests.disk import bugs, oracle
from tests.disk.conftest import Buggy
from tests.disk.test_damage import check_flips
from tests.disk.test_power_loss import check_phase_ids, check_saves

SPARSE = {"every": 5, "seeds": 2}


@pytest.fixture
def saves(victim, tmp_path) -> Callable[[str], object]:
    return lambda bug: check_saves(Buggy(victim, bug), tmp_path, 2, SPARSE)


@pytest.fixture
def phase_ids(victim, tmp_path) -> Callable[[str], object]:
    return lambda bug: check_phase_ids(Buggy(victim, bug), tmp_path)


@pytest.fixture
def refusals(victim, one_step, tmp_path) -> Callable[[str], object]:
    def run(bug: str) -> None:
        process = Buggy(victim, bug)
        for at in range(10, 80, 20):
            process.ask("save_with_fault", template=one_step, folder=tmp_path / str(at), mode="ENOSPC", at=at)

    return run


@pytest.fixture
def flips(tmp_path, monkeypatch) -> Callable[[str], object]:
    def run(bug: str) -> None:
        store = CheckpointStore(tmp_path / "checkpoints")
        oracle.save(store, 1)
        oracle.save(store, 2)
        store.close()
        if bug:
            next(found for found in bugs.BUGS if found.__name__ == bug)(monkeypatch)
        check_flips(tmp_path / "checkpoints", tmp_path, 32)

    return run


CASES = [
    (bugs.renames_without_fsync, "saves", "a half step had a name|none of the 1 checkpoints"),
    (bugs.renames_without_fsync, "phase_ids", r"phase holds .*, not \{"),
    (bugs.never_syncs_a_directory, "saves", "state 0 was restored, 1 was promised|none of the 1 checkpoints"),
    (bugs.never_syncs_a_directory, "phase_ids", r"phase \d was forgotten"),
    (bugs.does_not_verify_digests, "flips", "is not what was saved|was not found|was called"),
    (bugs.verifies_leaves_only, "flips", "was not found|was called"),
    (bugs.skips_a_damaged_step_silently, "flips", "was not told"),
    (bugs.leaves_what_a_failed_save_wrote, "refusals", "something was left behind"),
    (bugs.swallows_a_failed_save, "refusals", "none of the 1 checkpoints .* unreadable although"),
    (bugs.deletes_the_old_step_first, "saves", "state 0 was restored, 1 was promised|none of the 1 checkpoints"),
]


@pytest.mark.parametrize(("bug", "check", "finding"), CASES, ids=[f"{bug.__name__}-{check}" for bug, check, _ in CASES])
def test_a_planted_bug_is_found(request, bug, check, finding):
    run = request.getfixturevalue(check)
    with pytest.raises((AssertionError, HybridSyncError), match=finding):
        run(bug.__name__)


@pytest.mark.parametrize("check", ["saves", "phase_ids", "refusals", "flips"])
def test_without_a_bug_the_checks_are_silent(request, check):
    request.getfixturevalue(check)("")


def test_every_bug_is_looked_for():
    assert {bug for bug, _, _ in CASES} == set(bugs.BUGS)
