"""The user's folder of compiled programs: whose it may be, what it keeps, and that a damaged entry stops nobody."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.runtime.role import compilation_cache as cache_module
from hybridsync.runtime.role.compilation_cache import open_cache

TWICE_TWO = """import sys
from hybridsync.runtime.role.compilation_cache import use_cache
use_cache(sys.argv[1])
import jax, jax.numpy as jnp
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
four = int(jax.jit(lambda a: a * 2)(jnp.int32(2)))
print(four, any(event.endswith("cache_hits") for event in found))
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def opened(environment: dict[str, str], named: str = "", num_threads: int = 1) -> tuple[str, list[str]]:
    said: list[str] = []
    return open_cache(named, num_threads, said.append, environment), said


def test_the_users_cache_folder_is_made_for_the_user_alone(home: dict[str, str], tmp_path: Path) -> None:
    part, said = opened(home)
    assert Path(part).parent == tmp_path / "hybridsync" / "compiled" and not said
    for folder in (tmp_path / "hybridsync", Path(part).parent, Path(part)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_other_numbers_of_threads_have_a_part_of_their_own(home: dict[str, str]) -> None:
    assert opened(home, num_threads=1) == opened(home, num_threads=1) != opened(home, num_threads=2)


def test_a_folder_may_be_named_or_nothing_be_kept(home: dict[str, str], tmp_path: Path) -> None:
    assert Path(opened(home, str(tmp_path / "flag"))[0]).parent == tmp_path / "flag"
    named = {**home, "HYBRIDSYNC_COMPILATION_CACHE": str(tmp_path / "named")}
    assert Path(opened(named)[0]).parent == tmp_path / "named"
    assert opened(named, "off") == opened({"HYBRIDSYNC_COMPILATION_CACHE": "off"}) == ("", [])
    assert not (tmp_path / "hybridsync").exists()


def test_jaxs_own_folder_has_a_part_for_each_number_of_threads_and_jaxs_own_settings(
    home: dict[str, str], tmp_path: Path
) -> None:
    own = str(tmp_path / "jax")
    environment = {**home, "JAX_COMPILATION_CACHE_DIR": own}
    (one, said), (two, _) = opened(environment, num_threads=1), opened(environment, num_threads=2)
    assert one != two and Path(one).parent == Path(two).parent == Path(own) and not said
    assert not Path(own).exists(), "it may be at another host, and is JAX's to make"
    assert opened(environment, "off") == ("", [])
    assert Path(opened(environment, str(tmp_path / "named"))[0]).parent == tmp_path / "named"
    kept = {"JAX_COMPILATION_CACHE_DIR": own, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000"}
    assert compiled(one, **kept) == "4 False" and not list(Path(own).rglob("*-cache")), "JAX's settings keep none"
    kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    assert compiled(one, **kept) == "4 False" and list(Path(one).glob("*-cache"))


def compiled(folder: str, **environment: str) -> str:
    """Compute in a process that keeps what it compiles; return the result, and whether it was found there."""
    command = [sys.executable, "-W", "ignore", "-c", TWICE_TWO, folder]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": "", **environment}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=240, env=environment
    ).stdout.strip()


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(home: dict[str, str], tmp_path: Path, mode: int) -> None:
    folder = Path(opened(home)[0]).parent
    folder.chmod(mode)
    part, (said,) = opened(home)
    assert part == "" and f"others can write to {folder}, whose mode is {mode:o}, not 700" in said
    with pytest.raises(ConfigError, match=r"others can write to .*; name another folder with --compilation_cache"):
        opened(home, str(folder))


def test_a_part_that_others_can_write_to_is_refused(home: dict[str, str]) -> None:
    Path(opened(home)[0]).chmod(0o777)
    assert "others can write to" in opened(home)[1][0]


def test_a_folder_of_another_user_is_refused(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = Path(opened(home)[0]).parent, os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    part, (said,) = opened(home)
    assert part == "" and f"{folder} belongs to user {own}, not to {own + 1}" in said


def test_a_folder_that_others_can_put_another_one_for_is_refused(home: dict[str, str], tmp_path: Path) -> None:
    opened(home)
    (tmp_path / "hybridsync").chmod(0o777)
    part, (said,) = opened(home)
    assert part == "" and f"because they can write to {tmp_path / 'hybridsync'}" in said
    (tmp_path / "hybridsync").chmod(0o1777)  # as /tmp: nobody renames what is not theirs
    assert opened(home)[1] == []


def test_a_folder_that_cannot_be_made_is_said_and_stops_no_run(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hybridsync").write_text("a file")
    part, (said,) = opened(home)
    assert part == "" and said.startswith("compiled programs are not kept in")
    with pytest.raises(ConfigError, match=r"compiled programs cannot be kept in .*: Not a directory"):
        opened(home, str(tmp_path / "hybridsync" / "compiled"))


def test_unfinished_entries_are_removed_before_a_run(home: dict[str, str]) -> None:
    folder = Path(opened(home)[0])
    whole = zlib.compress(b"program" * 1000)
    contents = {"whole": whole, "half": whole[:20], "empty": b"", "zstd": b"\x28\xb5\x2f\xfd..."}
    for name, content in contents.items():
        (folder / f"{name}-cache").write_bytes(content)
    opened(home)
    assert {path.name for path in folder.iterdir()} == {"whole-cache", "zstd-cache"}


def test_what_was_used_last_is_kept_within_the_bounds(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Path(opened(home, num_threads=num_threads)[0]) for num_threads in (1, 2)]
    for age in range(6):
        path = parts[age % 2] / f"{age}-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(cache_module, "MAX_BYTES", 450)
    opened(home)
    assert sorted(path.name for part in parts for path in part.iterdir()) == [f"{age}-cache" for age in range(4)]
    monkeypatch.setattr(cache_module, "MAX_ENTRIES", 1)
    opened(home)
    assert [path.name for part in parts for path in part.iterdir()] == ["0-cache"]


def test_only_entries_in_parts_are_removed(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    part = Path(opened(home)[0])
    folder, (machine, processor, _) = part.parent, part.name.split("-")
    others = [
        "data",
        "pip-cache",
        f"{machine}-{processor}",
        f"{machine}-{processor}-01",
        f"{machine}-{processor}-1-old",
    ]
    kept = [folder / name / "empty-cache" for name in others]
    for path in kept:
        path.parent.mkdir()
        path.touch()
    (folder / f"{machine}-{processor}-2").symlink_to(folder / "data")
    (folder / f"{machine}-{processor}-3").touch()
    (part / "folder-cache").mkdir()
    (part / "link-cache").symlink_to(kept[0])
    (part / "entry-cache").touch()
    monkeypatch.setattr(cache_module, "MAX_ENTRIES", 0)
    assert opened(home) == (str(part), []), "a folder of the user's own makes the cache unusable"
    assert all(path.exists() for path in kept), "the user's own file is gone"
    assert {path.name for path in part.iterdir()} == {"folder-cache", "link-cache"}


def test_an_entry_is_unpacked_piece_by_piece_and_up_to_a_bound(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(opened(home)[0])
    (folder / "large-cache").write_bytes(zlib.compress(bytes(64 << 20)))
    (folder / "random-cache").write_bytes(zlib.compress(os.urandom(3 << 20)))
    tracemalloc.start()
    try:
        opened(home)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20, "it is unpacked whole"
    finally:
        tracemalloc.stop()
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(cache_module, "_MOST_UNPACKED_BYTES", 32 << 20)
    (folder.parent / "swept").unlink()
    opened(home)
    assert [path.name for path in folder.iterdir()] == ["random-cache"]


def test_a_damaged_entry_stops_nobody_and_is_compiled_again(home: dict[str, str]) -> None:
    folder, _ = opened(home)
    assert compiled(folder) == "4 False"
    assert compiled(folder) == "4 True"
    for path in Path(folder).glob("*-cache"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + b"damage" + content[len(content) // 2 + 6 :])
    assert compiled(folder) == "4 False"
    opened(home)
    assert not list(Path(folder).glob("*-cache")), "it would be read in vain by every run"
    assert compiled(folder) == "4 False"
    assert compiled(folder) == "4 True"
