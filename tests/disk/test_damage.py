"""A stored step in which a bit, a file's length or a file has changed: found, named, and fallen back from."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridsync.storage.checkpoints import QUARANTINE, REASON_FILE, CheckpointStore
from tests.disk import oracle

SWEEPS = [pytest.param(200, id="200"), pytest.param(1000, id="1000", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def two_steps(folders) -> Path:
    """Hold states 1 and 2; to be copied."""
    folder = folders / "two"
    store = CheckpointStore(folder)
    oracle.save(store, 1)
    oracle.save(store, 2)
    store.close()
    return folder


def files_below(step: Path) -> list[Path]:
    return sorted(path.relative_to(step) for path in step.rglob("*") if path.is_file())


def kind_of(path: Path) -> str:
    """Return a file's kind: Orbax gives the files of arrays random names."""
    return re.sub("[0-9a-f]{32}", "*", str(path))


def check_damage(two_steps: Path, folder: Path, file: Path, damage: Callable[[Path], object]) -> str:
    """Damage one file of step 2; assert that state 1 is restored and the reason names the file; return it."""
    copy = Path(shutil.copytree(two_steps, folder / "copy"))
    before = (copy / "2" / file).read_bytes()
    damage(copy / "2" / file)
    assert not (copy / "2" / file).is_file() or (copy / "2" / file).read_bytes() != before
    found = oracle.newest(copy)
    assert found is not None
    number, restored = found
    assert number == 1, f"the damage of {file} was not found"
    assert [step for step, _ in restored.quarantined] == [2], f"the damage of {file} was not told"
    ((_, reason),) = restored.quarantined
    assert str(file) in reason, f"the damage of {file} was called {reason!r}"
    assert (copy / QUARANTINE / "2" / REASON_FILE).read_text() == reason + "\n"
    assert sorted(os.listdir(copy)) == ["1", QUARANTINE]
    shutil.rmtree(copy)
    return reason


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def check_flips(two_steps: Path, folder: Path, count: int) -> Counter[str]:
    """Flip one bit at a time, in each file as often as in every other; return how often in which kind."""
    rng, files, flips = random.Random(20), files_below(two_steps / "2"), Counter()
    for trial in range(count):
        file = files[trial % len(files)]
        check_damage(two_steps, folder, file, lambda path: flip(path, rng))
        flips[kind_of(file)] += 1
    return flips


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", SWEEPS)
def test_every_flipped_bit_is_found_in_every_kind_of_file(two_steps, tmp_path, count):
    flips = check_flips(two_steps, tmp_path, count)
    print(f"{flips.total()} flips found: {dict(flips)}")
    assert flips.keys() >= {
        *("manifest.json", "_CHECKPOINT_METADATA", "commit_success.txt", "ledger/metadata", "run/metadata"),
        *("state/_METADATA", "state/manifest.ocdbt", "state/d/*", "state/ocdbt.process_0/d/*"),
    }


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte less": lambda path: os.truncate(path, path.stat().st_size - 1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": Path.unlink,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_file_that_is_cut_grown_zeroed_or_gone_is_named(two_steps, tmp_path, kind):
    for file in files_below(two_steps / "2"):
        check_damage(two_steps, tmp_path, file, DAMAGES[kind])


def test_one_file_in_the_place_of_another_is_found(two_steps, tmp_path):
    """Every byte is one that was written, but in another step."""
    for file in (Path("run/metadata"), Path("ledger/metadata"), Path("_CHECKPOINT_METADATA")):
        other = two_steps / "1" / file
        if other.read_bytes() == (two_steps / "2" / file).read_bytes():
            continue
        check_damage(two_steps, tmp_path, file, lambda path, other=other: shutil.copy(other, path))


def test_two_damaged_steps_are_both_named(two_steps, tmp_path):
    copy = Path(shutil.copytree(two_steps, tmp_path / "copy"))
    store = CheckpointStore(copy)
    oracle.save(store, 3)
    (copy / "3" / "run" / "metadata").unlink()
    (copy / "2" / "ledger" / "metadata").write_text("{}")
    found = oracle.newest(copy)
    assert found is not None
    assert found[0] == 1
    assert [step for step, _ in found[1].quarantined] == [3, 2]
    assert [reason.split()[1] for _, reason in found[1].quarantined] == ["run/metadata", "ledger/metadata"]
