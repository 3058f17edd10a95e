"""A token that was exchanged is good for a minute more, and credentials are exchanged under calls that go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

from hybridsync.core.errors import HandshakeRefused, StalePhase, Unauthenticated
from hybridsync.interfaces.commands import StatusReply
from hybridsync.security.certificates import Authority
from hybridsync.security.keyring import MOST_SHOWN, OVERLAP_SECS, Keyring
from hybridsync.transport.grpc import dialling
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.dialling import Channel
from hybridsync.transport.grpc.interceptors import TOKEN_KEY
from tests.security.roles import REACHED, SECS, TOKEN, Role, dialled, messages, outcome, served
from tests.transport.conftest import FakeChief

NEW, NEWEST = "0ddba11" * 8, "f00d" * 16


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def condition(self) -> Any:
        return threading.Condition()


# --- the rule, by the clock of each process ---


def test_the_former_token_is_shown_and_accepted_for_a_minute() -> None:
    clock = Clock()
    keys = Keyring(TOKEN, clock=clock)
    assert keys.shown() == (TOKEN,) and keys.accepts([TOKEN]) and not keys.accepts([NEW])
    keys.exchange(NEW, None)
    assert keys.token == NEW and keys.shown() == (NEW, TOKEN)
    clock.now += OVERLAP_SECS - 0.001
    assert keys.accepts([TOKEN]) and keys.accepts([NEW]) and keys.shown() == (NEW, TOKEN)
    clock.now += 0.002
    assert not keys.accepts([TOKEN]) and keys.accepts([NEW]) and keys.shown() == (NEW,)


def test_each_of_several_former_tokens_has_a_minute_of_its_own() -> None:
    clock = Clock()
    keys = Keyring(TOKEN, clock=clock)
    keys.exchange(NEW, None)
    clock.now += OVERLAP_SECS / 2
    keys.exchange(NEWEST, None)
    assert keys.shown() == (NEWEST, NEW, TOKEN)
    clock.now += OVERLAP_SECS / 2 + 1
    assert keys.shown() == (NEWEST, NEW) and not keys.accepts([TOKEN])


def test_whichever_end_has_heard_of_the_new_token_first_they_agree() -> None:
    one, other = Keyring(TOKEN), Keyring(TOKEN)
    one.exchange(NEW, None)
    assert other.accepts(one.shown()) and one.accepts(other.shown())


def test_an_exchange_of_credentials_alone_keeps_the_token() -> None:
    keys = Keyring(TOKEN)
    keys.exchange(TOKEN, None)
    assert keys.shown() == (TOKEN,)


@pytest.mark.parametrize(
    "shown",
    [[], [""], ["0" * 56], [TOKEN[:-1]], [TOKEN, TOKEN], [*map(str, range(MOST_SHOWN)), TOKEN]],
    ids=["none", "empty", "another run's", "a part", "twice", "among many"],
)
def test_what_is_no_token_of_the_run_is_refused(shown: list[str]) -> None:
    assert not Keyring(TOKEN).accepts(shown)


def test_who_follows_hears_of_each_exchange_until_it_ends() -> None:
    keys, heard = Keyring(TOKEN), list[str]()
    with keys.followed_by(lambda: heard.append(keys.token)):
        keys.exchange(NEW, None)
    keys.exchange(NEWEST, None)
    assert heard == [TOKEN, NEW]


# --- over TLS ---


@pytest.mark.parametrize(
    ("shown", "age", "is_let_in"),
    [
        ((NEW,), 0.0, True),
        ((TOKEN,), OVERLAP_SECS - 1, True),
        ((NEW, TOKEN), OVERLAP_SECS - 1, True),
        ((TOKEN,), OVERLAP_SECS + 1, False),
        ((NEW, TOKEN), OVERLAP_SECS + 1, True),
        (("0" * 56, TOKEN), OVERLAP_SECS + 1, False),
    ],
    ids=["new", "old in its minute", "both", "old behind its minute", "both, behind it", "a wrong one and the old one"],
)
def test_calls_with_an_exchanged_token(
    authority: Authority, shown: tuple[str, ...], age: float, is_let_in: bool
) -> None:
    role, clock = Role(), Clock()
    keys = Keyring(TOKEN, authority.issue("chief"), clock)
    metadata = tuple((TOKEN_KEY, each) for each in shown)
    with served(role, None, keys=keys) as address, dialled(address, authority.issue("user"), "chief") as channel:
        keys.exchange(NEW, authority.issue("chief"))
        clock.now += age
        for path in ("Chief/Status", "SnapshotSource/Read"):
            stream = channel.stream_stream(f"/hybridsync.{path}")
            with pytest.raises(grpc.RpcError) as error:
                list(stream(iter(messages(path)), timeout=SECS, metadata=metadata))
            assert isinstance(error.value, grpc.Call)
            refused = error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert refused is not is_let_in, (path, error.value.details())
            if path == "SnapshotSource/Read":  # a user may not, whatever its token is
                assert is_let_in is (error.value.code() is grpc.StatusCode.PERMISSION_DENIED)
    assert role.seen == (["status"] if is_let_in else [])


def test_a_server_meets_new_connections_with_its_new_certificate(authority: Authority, stranger: Authority) -> None:
    keys = Keyring(TOKEN, authority.issue("chief"))
    with served(Role(), None, keys=keys) as address:
        keys.exchange(TOKEN, stranger.issue("chief"))
        for credentials, wanted in ((authority.issue("user"), "UNAVAILABLE"), (stranger.issue("user"), "FAILED_PREC")):
            with dialled(address, credentials, "chief") as channel:
                assert outcome(channel, "Chief/Status", messages("Chief/Status"))[0].startswith(wanted)


def test_a_client_dials_anew_with_its_new_certificate(authority: Authority, stranger: Authority) -> None:
    role, keys = Role(), Keyring(TOKEN, stranger.issue("user"))
    with (
        served(role, authority.issue("chief")) as address,
        closing(ChiefClient(address, SECS, keys)) as client,
    ):
        with pytest.raises(HandshakeRefused):
            client.status()
        keys.exchange(TOKEN, authority.issue("user"))
        with pytest.raises(StalePhase, match=REACHED):
            client.status()
    assert role.seen == ["status"]


class HoldingChief(FakeChief):
    """Answers a status when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()

    def status(self) -> StatusReply:
        self.entered.release()
        assert self.go_on.wait(SECS)
        return super().status()


def test_a_call_that_is_under_way_ends_where_it_began_and_its_channel_is_closed_behind_it(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed, real = list[grpc.Channel](), list[grpc.Channel](), dialling.make_channel

    def noted(*arguments: Any) -> grpc.Channel:
        channel = real(*arguments)
        close = channel.close
        monkeypatch.setattr(channel, "close", lambda: (closed.append(channel), close()))
        made.append(channel)
        return channel

    monkeypatch.setattr(dialling, "make_channel", noted)
    chief, keys = HoldingChief(), Keyring(TOKEN, authority.issue("user"))
    server, address = make_server([ChiefServicer(chief)], keys=Keyring(TOKEN, authority.issue("chief")))
    server.start()
    with closing(ChiefClient(address, SECS, keys)) as client, ThreadPoolExecutor(2) as pool:
        held = pool.submit(client.status)
        assert chief.entered.acquire(timeout=SECS)
        keys.exchange(TOKEN, authority.issue("user"))
        after = pool.submit(client.status)
        assert chief.entered.acquire(timeout=SECS), "the second call has reached the chief"
        assert len(made) == 2 and closed == [], "the first one still has its channel"
        chief.go_on.set()
        assert held.result(SECS) == after.result(SECS) == FakeChief().status()
        client.status()
        assert closed == made[:1]
    assert closed == made
    server.stop(None)


def test_a_stream_counts_as_under_way_until_it_ends(authority: Authority) -> None:
    keys, role, go_on = Keyring(TOKEN, authority.issue("worker", 2)), Role(), threading.Event()

    def late() -> Iterator[bytes]:
        go_on.wait(SECS)
        yield from messages("OptimizerState/Upload")

    with served(role, authority.issue("server")) as address, Channel(address, keys, "server") as channel:
        stream = channel.stream_stream("/hybridsync.OptimizerState/Upload")
        replies = stream(late(), timeout=2 * SECS)
        keys.exchange(TOKEN, authority.issue("worker", 2))
        with pytest.raises(grpc.RpcError, match=REACHED):
            list(stream(iter(messages("OptimizerState/Upload")), timeout=SECS))
        go_on.set()
        with pytest.raises(grpc.RpcError, match=REACHED):  # and not CANCELLED
            list(replies)
    assert role.seen == ["upload_opt_state"] * 2


def test_a_client_says_what_is_wrong_with_a_token_that_is_over(authority: Authority) -> None:
    role, clock = Role(), Clock()
    keys = Keyring(TOKEN, authority.issue("chief"), clock)
    with (
        served(role, None, keys=keys) as address,
        closing(ChiefClient(address, SECS, Keyring(TOKEN, authority.issue("user")))) as client,
    ):
        keys.exchange(NEW, authority.issue("chief"))
        clock.now += OVERLAP_SECS + 1
        with pytest.raises(Unauthenticated, match=r"does not show the token of the run"):
            client.status()
    assert role.seen == []
