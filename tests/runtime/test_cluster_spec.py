"""A host finds its address towards the head, whose name may have none yet."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from hybridsync.cluster.discovery import Place
from hybridsync.core.errors import AddressError
from hybridsync.runtime.cluster_spec import own_address
from tests.telemetry.clocks import ManualClock

AGENT, HEAD = Place("node-a:4711", 1, 2), Place("node-a:4711", 0, 2)


class Names:
    """A name service that knows `node-a` from the `known_at`-th question on.

    Attributes:
      waits: the pauses between the questions.
      said: to the user.
    """

    def __init__(self, known_at: int, address: str = "127.0.0.1") -> None:
        self.clock = ManualClock()
        self.waits: list[float] = []
        self.said: list[str] = []
        self._known_at, self._address, self._asked, self._real = known_at, address, 0, socket.getaddrinfo

    def __call__(self, host: str, *more: Any, **named: Any) -> Any:
        assert host == "node-a"
        self._asked += 1
        if self._asked < self._known_at:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real(self._address, *more, **named)

    def wait(self, secs: float) -> None:
        self.waits.append(secs)
        self.clock.advance(secs)

    def find(self, place: Place) -> str:
        return own_address(place, 600.0, self.said.append, self.clock, self.wait)


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Names:
    names = Names(*arguments)
    monkeypatch.setattr(socket, "getaddrinfo", names)
    return names


@pytest.mark.parametrize("place", [AGENT, HEAD], ids=["agent", "head"])
def test_a_name_without_an_address_is_asked_for_until_it_has_one(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    names = asked(monkeypatch, 5, "192.0.2.7")
    monkeypatch.setattr(socket.socket, "connect", lambda self, to: None)
    assert names.find(place) == ("192.0.2.7" if place is HEAD else "0.0.0.0")
    assert sum(names.waits) == 4.0
    assert names.said == [
        "--head=node-a:4711 cannot be reached from here yet: Name or service not known; it is tried for 600 s"
    ]


def test_a_name_that_never_has_an_address_is_refused_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    names = asked(monkeypatch, 10_000)
    with pytest.raises(AddressError, match=r"--head=node-a:4711 cannot be reached from here for 600 s: Name or serv"):
        names.find(AGENT)
    assert sum(names.waits) == 600.0


def test_a_name_that_is_loopback_to_this_host_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = asked(monkeypatch, 1, "127.0.1.1")
    with pytest.raises(AddressError, match=r"is 127\.0\.1\.1 to this host, which others do not reach"):
        names.find(AGENT)
    assert names.waits == []
