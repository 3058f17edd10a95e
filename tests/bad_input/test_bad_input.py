"""Everything a peer or a user can send wrong is refused by name, with both values, and changes nothing."""

from __future__ import annotations

import re

import grpc
import pytest

from hybridsync.rpc.status import NAME_KEY
from tests.bad_input.job import running
from tests.bad_input.wire_cases import WIRE, Wire

DEFECTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}


def assert_text(text: str, pattern: str) -> None:
    assert re.fullmatch(pattern, text, re.DOTALL), f"answered {text!r}, expected {pattern!r}"


def answer(case: Wire, job) -> tuple[grpc.StatusCode, str, str]:
    """Send the case's message, and return status, named error and text of the answer."""
    try:
        return grpc.StatusCode.OK, "", str(case.send(job))
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code(), dict(error.trailing_metadata() or ()).get(NAME_KEY, ""), error.details() or ""


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{group}: {case.name}") for group, cases in WIRE.items() for case in cases]
)
def test_a_bad_message_is_answered_by_name_and_changes_nothing(case: Wire) -> None:
    with running() as job:
        case.before(job)
        before = job.fingerprints()
        code, name, text = answer(case, job)
        assert code not in DEFECTS, f"{code.name} from a handler is a defect: {text}"
        assert (code, name) == (case.code, case.error), text
        assert_text(text, case.text)
        assert job.fingerprints() == before
        job.assert_works()
