"""A state that takes longer to arrive than a server's lease lasts, over processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.multiprocess.planted import LINK_BYTES_PER_SEC
from tests.multiprocess.scenarios import tally

UNITS, COPIES = 1_000_000, 2
STATE_BYTES = COPIES * 2 * UNITS * 4
LEASE_SECS = 15.0


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(400)
def test_two_servers_take_over_a_state_for_twenty_seconds_side_by_side_and_none_is_lost(tmp_path: Path) -> None:
    flags = (f"--set=model.copies={COPIES}", "--servers=2", "--bind=127.0.0.1")  # the relay speaks TCP
    planted = "servers_fetch_over_a_slow_link"
    secs = STATE_BYTES / LINK_BYTES_PER_SEC
    assert secs > LEASE_SECS
    with tally(tmp_path / "run", *flags, plan="bsp:0.001%,asp", units=UNITS, workers=2, planted=planted) as job:
        job.until(lambda: len(job.events("phase_entered")) > 1, "the servers had their state", secs=240.0)
        job.until_phase("asp")
        job.send(signal.SIGTERM)
        assert job.wait() == 75, job.output + job.logs()
        units = job.summary()["units"]
        assert units["issued"] == units["applied"] + units["outstanding"] and units["rolled_back"] == 0
        assert [event for event in job.events("role_lost") if event["role"] == "server"] == []
        asp = job.events("phase_entered")[1]
        ended = job.events("phase_ended")[0]
        taken = asp["t"] - ended["t"]
        print(f"the hand-over took {taken:.1f} s, {secs:.0f} s on each link")
        assert secs < taken < 1.8 * secs, "one after the other"
        assert job.output.count("servers [0, 1] are fetching it") >= 2
