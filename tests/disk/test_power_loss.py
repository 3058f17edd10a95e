"""What is left when the power goes before any call: whole states, and everything that was promised."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.disk import oracle
from tests.disk.journal import Disk, crashes, everything

KEEP = 1
SWEEPS = [
    pytest.param({"every": 7, "seeds": 3}, 2, id="slice"),
    pytest.param({"every": 1, "seeds": 24}, 4, id="every-call", marks=pytest.mark.soak),
]


def last(promised: tuple[str, ...], word: str) -> int:
    """Return the number behind the last promise of a kind, 0 before the first."""
    return max((int(line.split()[1]) for line in promised if line.startswith(word)), default=0)


def check_saves(victim: Any, folder: Path, saves: int, sweep: dict[str, int], goes_on: int = 25) -> Counter[int]:
    """Save, cut the power everywhere, and count which state is found; every `goes_on`-th time, save again."""
    journal, root = folder / "journal", folder / "disk"
    victim.ask("journal_saves", folder=root, journal=journal, saves=saves, keep=KEEP)
    found: Counter[int] = Counter()
    for index, crash in enumerate(crashes(journal, root, **sweep)):
        copy = crash.build(folder / "copy")
        saved, going = last(crash.promised, "saved"), last(crash.promised, "begin")
        number = oracle.check_survivor(copy / "checkpoints", saved, going, KEEP)
        found[number - saved] += 1
        if index % goes_on == 0:
            oracle.check_saving_goes_on(copy / "checkpoints", KEEP)
        shutil.rmtree(copy)
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("sweep", "saves"), SWEEPS)
def test_a_power_loss_before_any_call_leaves_whole_states_and_all_that_were_promised(victim, tmp_path, sweep, saves):
    found = check_saves(victim, tmp_path, saves, sweep)
    print(f"{found.total()} disks: the promised state {found[0]} times, the one being saved {found[1]} times")
    assert found.total() > 50
    assert found[0] > found[1] > 0


def test_a_power_loss_while_a_damaged_step_is_set_aside_loses_neither_the_good_one_nor_the_reason(victim, tmp_path):
    journal, root, num_disks = tmp_path / "journal", tmp_path / "disk", 0
    victim.ask("journal_fallback", folder=root, journal=journal)
    for crash in crashes(journal, root, seeds=10):
        if "damaged" in crash.promised:
            copy = crash.build(tmp_path / "copy")
            oracle.check_fallback(copy / "checkpoints")
            shutil.rmtree(copy)
            num_disks += 1
    assert num_disks > 5


def check_phase_ids(victim: Any, folder: Path) -> int:
    """Reserve phases, cut the power everywhere, and reserve again; return how often."""
    journal, root = folder / "journal", folder / "disk"
    victim.ask("journal_phase_ids", folder=root, journal=journal, count=3)
    num_disks = 0
    for crash in crashes(journal, root, seeds=20):
        copy = crash.build(folder / "copy")
        oracle.check_phase_ids(copy, list(range(1, last(crash.promised, "phase") + 1)))
        shutil.rmtree(copy)
        num_disks += 1
    return num_disks


def test_a_power_loss_before_any_call_hands_no_phase_out_twice(victim, tmp_path):
    assert check_phase_ids(victim, tmp_path) > 20


def test_with_nothing_lost_the_journal_gives_the_same_bytes_as_the_disk(victim, tmp_path):
    journal, root = tmp_path / "journal", tmp_path / "disk"
    victim.ask("journal_saves", folder=root, journal=journal, saves=2, keep=KEEP)
    disk = Disk(root)
    for line in journal.read_text().splitlines():
        if not line.startswith("mark\t"):
            disk.apply(line)
    on_disk = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    replayed = {path: content for path, content in disk.after_power_loss(everything) if content is not None}
    assert replayed == on_disk


def test_a_save_syncs_each_file_and_folder_once(victim, tmp_path):
    journal, root = tmp_path / "journal", tmp_path / "disk"
    victim.ask("journal_saves", folder=root, journal=journal, saves=1, keep=KEEP)
    step = root / "checkpoints" / "1"
    calls = journal.read_text().partition("mark\tbegin 1")[2].splitlines()
    named = next(index for index, call in enumerate(calls) if call.startswith("rename") and call.endswith(f"\t{step}"))
    before = [call for call in calls[:named] if call.startswith("fsync")]
    after = [call for call in calls[named:] if call.startswith("fsync")]
    assert len(before) == len([step, *step.rglob("*")]), "TensorStore is to leave it to the store"
    assert len(after) == 1, "the folder that has the step's name"
