"""Options and fixtures of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

# A script's shell starts what it puts into its background with SIGINT ignored, and a run reads from that whether it is
# to outlive its parent: tests and the processes that they start begin as if typed.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("tests.multiprocess.job", "tests.multiprocess.scenarios")

GOLDEN = Path(__file__).parent / "golden"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30
"""That must be free there; of all tests, those that are under way and those that failed keep their files."""

# The same examples on every machine, and no verdict on its speed.
settings.register_profile(
    "hybridsync", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hybridsync")


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share compiled programs among the runs of one session and their processes: most train the same few tasks."""
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    settings = {
        "jax_compilation_cache_dir": session / "compiled",
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, str(value) if isinstance(value, Path) else value)


@pytest.fixture
def quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile with few optimizations, for tests of what a model computes, not of its bits; soak tests do as users do.

    A deep model compiles in a fourth of the time. So do the processes that the test starts.
    """
    if request.node.get_closest_marker("soak"):
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def pytest_configure() -> None:
    """Hold the files of the tests in memory, if this machine has the room.

    A run commits again and again, and on a busy disk it waits longer for fsync than it computes. What a disk may do to
    a run is tested in disk/, where it is injected.
    """
    try:
        there = os.statvfs(MEMORY)
    except OSError:
        return
    room = there.f_bavail * there.f_frsize >= MEMORY_BYTES and not there.f_flag & os.ST_NOEXEC  # for tests/shims.py
    if room and os.access(MEMORY, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the half million objects that are made here and stay to the end, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden/; review them as a diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--rewrite-golden"):
            path.write_text(text)
        assert path.exists(), f"{path.name} is missing: run pytest --rewrite-golden once and review it"
        assert text == path.read_text(), f"{path.name} differs: review it, then pytest --rewrite-golden"

    return compare
