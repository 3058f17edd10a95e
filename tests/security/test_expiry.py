"""Certificates that end soon are told of, once each, with what makes another one."""

from __future__ import annotations

from hybridsync.security.expiry import SOON_SECS, Expiries

ENDS = {"early": 1_000_000.0, "late": 9_000_000.0, "later": 9_500_000.0}


def test_a_certificate_that_ends_soon_is_told_of_once() -> None:
    expiries = Expiries(ENDS.__getitem__)
    expiries.note("the head", "early")
    expiries.note("host 2", "late")
    assert expiries.due(ENDS["early"] - SOON_SECS) == []
    (line,) = expiries.due(ENDS["early"] - SOON_SECS + 1)
    assert line.startswith(
        "the certificate of the head is good until 1970-01-12 13:46 UTC; later connections are refused"
    )
    assert line.endswith("hybridsync certs rotate --folder=DIR")
    assert expiries.due(ENDS["early"] + 1) == []
    (line,) = expiries.due(ENDS["late"] + 1)
    assert "of host 2 is" in line and "certs issue --replace --folder=DIR --host=INDEX --out=DIR" in line


def test_another_certificate_is_told_of_in_its_turn() -> None:
    expiries = Expiries(ENDS.__getitem__)
    for certificate in ("late", "later"):
        expiries.note("host 2", certificate)
    assert expiries.due(ENDS["late"]) == [], "it was replaced"
    assert len(expiries.due(ENDS["later"] - 1)) == 1
    expiries.note("host 2", "later")
    assert expiries.due(ENDS["later"]) == []
