"""What `benchmarks.meter` reads off the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.meter import Meter, loopback_bytes, loopback_capacity, processor_secs
from hybridsync.core.clock import SYSTEM_CLOCK


def test_the_processor_time_of_a_child_is_counted_and_that_of_others_is_not() -> None:
    code = "import sys\nfor _ in range(3_000_000): pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        found = processor_secs(os.getpid())
        assert found[child.pid] > 0
        assert os.getpid() not in found and os.getppid() not in found
        child.stdin.close()


def test_what_a_stream_carries_is_seen_on_the_loopback() -> None:
    with Meter() as meter:
        began, before = SYSTEM_CLOCK.wall(), loopback_bytes()
        capacity = loopback_capacity()  # for a second
        carried = loopback_bytes() - before
        while len(meter._samples) < 2:  # which come twice a second, where the machine has the time
            loopback_capacity()
    assert 0.5 * capacity < carried, "the stream did not go over the loopback, or is not counted"
    assert (
        meter.loopback_bytes_per_sec(began, SYSTEM_CLOCK.wall()) > 0
        and meter.cpu_share(began, SYSTEM_CLOCK.wall()) >= 0
    )


def test_a_time_without_samples_is_refused() -> None:
    with Meter() as meter:
        pass
    with pytest.raises(RuntimeError, match=r"0 samples of the machine in 1\.0 s; make the run longer"):
        meter.cpu_share(0.0, 1.0)
