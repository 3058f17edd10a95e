from __future__ import annotations

import pytest

from hybridsync.core.errors import WaitTimeout
from hybridsync.transport.buffers import ALIGNMENT, Buffers, aligned


@pytest.mark.parametrize("num_bytes", [0, 1, 63, 4097])
def test_a_buffer_is_aligned_and_has_its_size(num_bytes: int) -> None:
    buffer = aligned(num_bytes)
    assert buffer.nbytes == num_bytes
    assert buffer.ctypes.data % ALIGNMENT == 0 or num_bytes == 0


def test_a_lent_buffer_is_lent_to_nobody_else_and_again_after_its_return() -> None:
    buffers = Buffers(100, num_buffers=2)
    with buffers.lend(1) as first:
        with buffers.lend(1) as second:
            assert first.ctypes.data != second.ctypes.data
        with buffers.lend(1) as third:
            assert third is second
    with buffers.lend(1) as fourth:
        assert fourth is first


def test_waiting_for_a_buffer_ends_with_an_error_that_says_what_to_change() -> None:
    buffers = Buffers(100, num_buffers=1)
    with (
        buffers.lend(1),
        pytest.raises(WaitTimeout, match=r"100 bytes became free within 0.01 s.*more buffers"),
        buffers.lend(0.01),
    ):
        pass


def test_a_buffer_comes_back_when_its_user_fails() -> None:
    buffers = Buffers(100, num_buffers=1)
    with pytest.raises(KeyError), buffers.lend(1):
        raise KeyError
    with buffers.lend(0.01) as buffer:
        assert buffer.nbytes == 100
