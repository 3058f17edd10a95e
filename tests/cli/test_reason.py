"""The reason that a user gives for a command is checked before the command goes out, and the flag is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hybridsync.cli.reason import checked_reason
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.commands import StopRequest
from hybridsync.transport.grpc.codec import decode, encode


@pytest.mark.parametrize("text", ["", "the network is slow", "x" * 4000, "größer"])
def test_a_plain_text_is_a_reason_that_a_message_carries(text: str) -> None:
    assert decode(StopRequest, encode(StopRequest(checked_reason(text)))).reason == text


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x" * 4001, r"--why has 4,001 characters, above the 4,000 of a reason; shorten it"),
        ("a\udcff", r"--why has a byte that is no UTF-8 in place 2; write plain text"),
        ("one\ntwo", r"--why has the character '\\n' in place 4"),
        ("\x1b[31m", r"--why has the character '\\x1b' in place 1"),
    ],
)
def test_what_no_message_carries_is_refused(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        checked_reason(text)


@pytest.mark.parametrize(("command", "more"), [("stop", []), ("switch", ["asp"])])
def test_the_commands_check_it(command: str, more: list[str]) -> None:
    line = [sys.executable, "-m", "hybridsync", command, "nowhere", *more, b"--why=a\xff"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: --why has a byte that is no UTF-8 in place 2; write plain text on one line\n"
