"""Each peer of `benchmarks.peers` does a little of every work, where its environment is set up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import environments, measure
from benchmarks.peers.ours import write_digits
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.work import AllReduce, Digits, Transfer, Work

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WORKS: tuple[Work, ...] = (Digits("digits", "", 200), Transfer("transfer", 0.4, 10), AllReduce("allreduce", 1000, 10))
PEERS = [(name, work) for work in WORKS for name, system in SYSTEMS.items() if system.environment and system.does(work)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peers") / "digits.npz"
    write_digits(path)
    return path


@pytest.mark.parametrize(("name", "work"), PEERS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_peer_does_the_work_and_trains_what_it_should(name: str, work: Work, data: Path) -> None:
    environment = SYSTEMS[name].environment
    if environments.interpreter(environment) is None:
        pytest.skip(f"the environment {environment} is not set up: python -m benchmarks.peers setup {environment}")
    found = measure.found_by_peer(work, name, data)
    assert found and all(figure > 0 for figure, _ in found.values())
    if isinstance(work, Digits):
        assert all(accuracy is not None and accuracy > 0.5 for _, accuracy in found.values())
