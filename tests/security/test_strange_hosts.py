"""A host that another authority has certified takes no part in a run, says so, and disturbs nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybridsync.core.errors import EXIT_FAILED
from hybridsync.runtime.control_file import CONTROL_FILE
from hybridsync.security.certificates import Authority
from hybridsync.security.identity import HOST
from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.several_hosts import SeveralHosts
from tests.security.listeners import listeners, processes
from tests.security.roles import dialled, messages, outcome


def assert_nobody_answers_in_plain_text(job: SeveralHosts) -> None:
    """Check that every port of the run's processes, on every host, answers nothing to a call that has the token."""
    token = json.loads((job.workdir / CONTROL_FILE).read_text())["token"]
    pids = [pid for each in (job.process, *job.agents()) for pid in processes(each.pid)]
    places = set().union(*(listeners(pid).tcp for pid in pids))
    assert {host for host, _ in places} == {"127.0.0.1", "127.0.0.2"}, places
    # No phase of the plan sums among workers, so JAX's coordination service, which has no TLS (SECURITY.md), is shut.
    for host, port in places:
        with dialled(f"{host}:{port}", None) as channel:
            for method in ("Chief/Status", "SnapshotSource/TakeSnapshot", "Head/Attach"):
                status, text = outcome(channel, method, messages(method), token)
                assert status == "UNAVAILABLE", (host, port, method, text)


@pytest.mark.timeout(240)
def test_a_host_of_another_cluster_ends_with_a_word_and_the_run_goes_on(tmp_path: Path, stranger: Authority) -> None:
    flags = ["--workers=2", "--plan=asp", "--compute_secs=0.02", "--set=workload=400", "--set=telemetry.log_secs=0.1"]
    with SeveralHosts(tmp_path / "run", "configs/tally.py", *flags, num_hosts=2, port=4731) as job:
        job.until_phase("asp")
        assert_nobody_answers_in_plain_text(job)
        job.kill_agent(1)
        certificates = tmp_path / "run.certificates" / "1"
        own = certificates.rename(tmp_path / "own")
        stranger.issue(HOST, 1).write(certificates, HOST)
        job.start_agent(1)
        assert job.wait_agent(1, secs=90.0) == EXIT_FAILED
        assert "do not agree on TLS for Attach" in job.agent_screen(1)
        shutil.rmtree(certificates)
        own.rename(certificates)
        job.start_agent(1)
        assert job.wait() == 0, job.output + job.logs()
        assert job.wait_agents() == {1: 0}
        assert_exactly_once(job.summary())
        assert job.tracebacks() == []
