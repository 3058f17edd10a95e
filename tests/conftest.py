"""Options and fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.multiprocess.job", "tests.multiprocess.scenarios")

GOLDEN = Path(__file__).parent / "golden"

# The same examples on every machine, and no verdict on its speed.
settings.register_profile("hybridsync", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("hybridsync")


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share compiled programs among the runs of one session: most of them train the same few tasks."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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
