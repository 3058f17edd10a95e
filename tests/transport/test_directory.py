"""Clients by address: one each, and none of roles that are gone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hybridsync.transport.directory import Directory
from hybridsync.transport.link import Link


class Client:
    def __init__(self, address: str) -> None:
        self.address = address
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


class Roles:
    """A directory, who lives, and the clients it made."""

    def __init__(self, *live: str) -> None:
        self.live = set(live)
        self.made: list[Client] = []
        self.directory = Directory(self.make, self.live.__contains__)

    def make(self, address: str) -> Link[Client]:
        client = Client(address)
        self.made.append(client)
        return Link(client, client.close)


def test_a_role_is_reached_by_one_client_however_often_it_is_called():
    roles = Roles("a", "b")
    first = roles.directory("a")
    assert roles.directory("b") is not first and roles.directory("a") is first
    assert [client.address for client in roles.made] == ["a", "b"]


def test_the_client_of_a_role_that_is_gone_is_closed_once_somebody_else_is_called():
    roles = Roles("a", "b")
    gone, kept = roles.directory("a"), roles.directory("b")
    roles.live.remove("a")
    assert roles.directory("b") is kept
    assert (gone.num_closed, kept.num_closed) == (1, 0)
    roles.directory("b")
    assert gone.num_closed == 1


def test_who_asks_for_a_role_that_is_not_known_to_live_gets_its_client_all_the_same():
    """The call itself says that nobody answers; a role may register between the two."""
    roles = Roles("a")
    client = roles.directory("late")
    assert client.num_closed == 0 and roles.directory("late") is client


def test_a_role_that_comes_back_at_the_same_address_gets_a_new_client():
    roles = Roles("a", "b")
    former = roles.directory("a")
    roles.live.remove("a")
    roles.directory("b")
    roles.live.add("a")
    assert roles.directory("a") is not former


def test_an_error_of_making_a_client_leaves_none_behind():
    roles = Roles("a")

    def refuse(address: str) -> Link[Client]:
        raise ValueError(address)

    directory = Directory(refuse, roles.live.__contains__)
    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            directory("a")


def test_threads_that_ask_at_once_share_one_client():
    roles = Roles("a")
    together = threading.Barrier(8)

    def ask(_: int) -> Client:
        together.wait(60)
        return roles.directory("a")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(ask, range(8))))) == 1
    assert len(roles.made) == 1
