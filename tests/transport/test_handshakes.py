"""Which failures end a call at once: those that no later attempt would change."""

from __future__ import annotations

import pytest

from hybridsync.core.errors import HandshakeRefused
from hybridsync.transport.grpc.dialling import CLOSED_SECS, Handshakes

AT = "failed to connect to all addresses; last error: "
VERIFY = f"{AT}UNKNOWN: ipv4:10.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: VERIFY_FAILED: OK"
NAME = f"{AT}UNKNOWN: ipv4:10.0.0.1:1: Custom verification check failed with error: UNAUTHENTICATED: Hostname"
CLOSED = f"{AT}UNAVAILABLE: ipv4:10.0.0.1:1: Socket closed"
CLOSED_IN_A_WRITE = f"{CLOSED} (sendmsg: Broken pipe (32))".replace(
    "Socket closed", "Delayed close due to in-progress write (Socket closed)"
)
ABSENT = f"{AT}UNKNOWN: ipv4:10.0.0.1:1: Failed to connect to remote host: Connection refused"


def ends_after(*failures: tuple[str, float], is_last: bool = False) -> list[bool]:
    handshakes = Handshakes("the chief", "Lease")
    told = [handshakes.after(text, now, is_last=is_last and now == failures[-1][1]) for text, now in failures]
    assert all(error is None or isinstance(error, HandshakeRefused) for error in told)
    return [error is not None for error in told]


@pytest.mark.parametrize("text", [VERIFY, NAME])
def test_three_handshakes_that_this_end_ends_are_enough(text: str) -> None:
    assert ends_after((text, 0.0), (text, 0.1), (text, 0.3)) == [False, False, True]


def test_a_role_that_comes_back_meanwhile_is_waited_for() -> None:
    assert not any(ends_after((VERIFY, 0.0), (ABSENT, 0.1), (VERIFY, 0.2), (VERIFY, 0.3), (ABSENT, 99.0)))


def test_connections_that_are_closed_at_once_are_tried_for_a_while() -> None:
    twice = (CLOSED, 0.0), (CLOSED_IN_A_WRITE, CLOSED_SECS - 0.1)
    assert ends_after(*twice, (CLOSED, CLOSED_SECS)) == [False, False, True]
    assert not any(ends_after((CLOSED, 0.0), (ABSENT, 1.0), (CLOSED, 2.0), (CLOSED, CLOSED_SECS + 1.9)))


def test_a_connection_that_broke_later_says_nothing_of_tls() -> None:
    assert not any(ends_after(("Socket closed", 0.0), ("Socket closed", 99.0), is_last=True))
    assert not any(ends_after((ABSENT, 0.0), (ABSENT, 99.0), is_last=True))


@pytest.mark.parametrize("text", [VERIFY, CLOSED, CLOSED_IN_A_WRITE])
def test_the_last_failure_of_a_short_call_is_told_so_as_well(text: str) -> None:
    assert ends_after((text, 0.0), is_last=True) == [True]
    error = Handshakes("the chief", "Lease").after(text, 0.0, is_last=True)
    assert "is TLS on at both ends" in str(error) and "the chief" in str(error) and "Lease" in str(error)
