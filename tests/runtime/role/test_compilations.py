"""What a process compiles is counted, and what another process compiles already is waited for and loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hybridsync.core.clock import SystemClock
from hybridsync.runtime.role import compilations as module
from hybridsync.runtime.role.compilations import Compilations, SharedCache, share_compilations

WAITS = 60.0

CLAIMS = """import sys
from pathlib import Path
from tests.runtime.role.test_compilations import PlainCache
from hybridsync.runtime.role.compilations import SharedCache
cache = SharedCache(PlainCache(Path(sys.argv[1])), Path(sys.argv[1]))
assert cache.get("program") is None
print("claimed", flush=True)
if sys.stdin.readline().strip() == "put":
    cache.put("program", b"made")
"""


class PlainCache:
    """A cache as JAX has it: one file an entry."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        path = self._folder / key
        return path.read_bytes() if path.exists() else None

    def put(self, key: str, value: bytes) -> None:
        (self._folder / key).write_bytes(value)


class OneLook(SystemClock):
    """A clock that stands still, and past every deadline once the cache has waited twice."""

    def __init__(self) -> None:
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return 0.0 if self.asked <= 2 else 2 * module.WAIT_SECS


def claimant(folder: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", CLAIMS, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "claimed\n"
    return started


def test_who_misses_a_program_that_another_process_compiles_waits_and_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = SharedCache(PlainCache(tmp_path), tmp_path), claimant(tmp_path)
    waits: list[float] = []

    def let_it_compile(secs: float) -> None:
        if not waits:
            other.communicate("put\n", timeout=WAITS)
        waits.append(secs)

    monkeypatch.setattr(module, "pause", let_it_compile)
    assert cache.get("program") == b"made" and waits


def test_a_process_that_dies_while_it_compiles_leaves_the_program_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = SharedCache(PlainCache(tmp_path), tmp_path), claimant(tmp_path)
    waits: list[float] = []

    def kill(secs: float) -> None:
        waits.append(secs)
        other.kill()
        other.communicate(timeout=WAITS)

    monkeypatch.setattr(module, "pause", kill)
    assert cache.get("program") is None and waits


def test_a_process_that_compiles_for_too_long_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = claimant(tmp_path)
    try:
        assert SharedCache(PlainCache(tmp_path), tmp_path, clock=OneLook()).get("program") is None
    finally:
        other.communicate("end\n", timeout=WAITS)


def test_a_compilation_that_keeps_nothing_ends_its_claim(tmp_path: Path) -> None:
    cache = SharedCache(PlainCache(tmp_path), tmp_path)
    assert cache.get("program") is None
    jax.jit(lambda value: value * 3.0 + 17.25)(jnp.float32(1.0)).block_until_ready()
    other = claimant(tmp_path)  # which finds nothing, and may compile
    other.communicate("end\n", timeout=WAITS)


def test_jax_asks_the_shared_cache(tmp_path: Path) -> None:
    script = (
        "import sys; from hybridsync.runtime.role.compilation_cache import use_cache; use_cache(sys.argv[1]);"
        "import jax, jax.numpy as jnp; jax.jit(lambda a: a * 2)(jnp.int32(2));"
        "from jax._src import compilation_cache; print(type(compilation_cache._cache).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "SharedCache\n" and (tmp_path / module.CLAIMS).exists()


def test_a_jax_without_a_place_for_it_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compilation_cache

    monkeypatch.delattr(compilation_cache, "get_file_cache")
    share_compilations()
    assert not hasattr(compilation_cache, "get_file_cache")


def test_what_is_traced_and_compiled_is_counted_and_named_as_it_begins() -> None:
    said: list[str] = []
    secs: list[float] = []
    counted = Compilations(secs.append, say=said.append)
    try:

        def thrice(value: jax.Array) -> jax.Array:
            return 3.0 * value - 0.625

        jax.jit(thrice)(jnp.float32(2.0)).block_until_ready()
    finally:
        counted.close()
    assert "compiling jit(thrice), unless it was compiled before" in said
    assert counted.traced >= 1 and counted.compiled + counted.loaded == len(secs) >= 1
    counted.say_all("the end")
    assert said[-1].startswith(f"until the end: {counted.traced} programs traced in ")
    before = counted.traced
    jax.jit(lambda value: thrice(value) + 1.0)(jnp.float32(2.0))
    assert counted.traced == before, "it counts after its end"
