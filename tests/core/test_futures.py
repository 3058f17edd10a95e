"""A wait for a future: its own errors are passed on, also where they say that a time was up."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from hybridsync.core.errors import WaitTimeout
from hybridsync.core.futures import result_within


def test_a_result_that_is_here_is_returned():
    future: Future[int] = Future()
    future.set_result(3)
    assert result_within(future, 0.0, "late") == 3


@pytest.mark.parametrize("error", [WaitTimeout("the holder did not answer"), TimeoutError(), OSError("disk gone")])
def test_an_error_of_the_work_itself_is_passed_on(error):
    future: Future[int] = Future()
    future.set_exception(error)
    with pytest.raises(type(error)) as raised:
        result_within(future, 0.0, "late")
    assert raised.value is error


def test_what_has_not_ended_in_time_is_told_by_name():
    with pytest.raises(WaitTimeout, match="the disk is late"):
        result_within(Future(), 0.01, "the disk is late")
