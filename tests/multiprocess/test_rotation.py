"""Certificates and the run's token are exchanged in a running job on several hosts, and nothing is lost by it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from pathlib import Path

import pytest

from hybridsync.core.errors import EXIT_PREEMPTED, EXIT_REFUSED, HandshakeRefused
from hybridsync.runtime.control_file import read_control
from hybridsync.security.authority_exchange import STEPS
from hybridsync.security.certificates import Authority
from hybridsync.security.cluster_certificates import issue, revoke, rotate
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.chief import ChiefClient
from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.several_hosts import SeveralHosts

# Jobs of three hosts each, for a minute.
pytestmark = [pytest.mark.timeout(600), pytest.mark.integration, pytest.mark.xdist_group("hosts")]


class RotatingJob(SeveralHosts):
    """A job whose certificates are exchanged."""

    def folder(self, index: int) -> Path:
        """Return the folder of a host's certificate."""
        return self._certificates / str(index)

    def token(self) -> str:
        return read_control(self.workdir).token

    def rotate(self, step: str | None = None) -> None:
        """Give the head, every host and every role other certificates, and the run another token."""
        former, rotations = self.token(), self.screen().count("were given a new token")
        rotate(self.folder(0), 30, step)
        self.until(
            lambda: self.screen().count("were given a new token") > rotations, "the head gave its roles new keys"
        )
        self.until(lambda: self.token() != former, "the chief has the new token")
        for index in (1, 2):
            told = self.agent_screen(index).count("has another certificate")
            issue(self.folder(0), index, self.folder(index), 30, replace=True)
            self.until(
                lambda index=index, told=told: self.agent_screen(index).count("has another certificate") > told,
                f"host {index} took up its certificate",
            )


@pytest.mark.parametrize("link", ["tcp", "grpc"])
def test_two_rotations_in_every_mode_lose_no_unit_and_no_role(tmp_path: Path, link: str) -> None:
    flags = ["--workers=3", "--plan=asp:50%,bsp", "--compute_secs=0.02", "--set=workload=6000", f"--link={link}"]
    port = 4731 if link == "tcp" else 4732
    with RotatingJob(tmp_path / "run", "configs/tally.py", *flags, num_hosts=3, port=port) as job:
        for protocol in ("asp", "bsp"):
            job.until_phase(protocol)
            job.rotate()
            job.until_units(job.units() + 60)
        assert job.wait() == 0, job.output + job.logs()
        assert job.wait_agents() == {1: 0, 2: 0}
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert job.events("role_lost") == []
        assert len(job.events("role_started")) == 6  # the supervisor, the chief, the server and three workers
        assert job.tracebacks() == []


def test_a_revoked_host_is_out_until_it_has_another_certificate_and_the_run_goes_on(tmp_path: Path) -> None:
    flags = ["--workers=3", "--plan=asp", "--compute_secs=0.02", "--set=workload=100000"]
    with RotatingJob(tmp_path / "run", "configs/tally.py", *flags, num_hosts=3, port=4733) as job:
        job.until_phase("asp")
        former = job.token()
        revoke(job.folder(0), 2)
        assert job.wait_agent(2) == EXIT_REFUSED
        assert "the certificate of host 2 was revoked" in job.agent_screen(2)
        (lost,) = job.until(lambda: job.events("role_lost"), "the head lost the roles of host 2")
        assert (lost["role"], lost["id"]) == ("worker", 2) and "the certificate of host 2 was revoked" in lost["reason"]
        job.until(lambda: job.token() != former, "the run has another token")
        job.start_agent(2)
        assert job.wait_agent(2) == EXIT_REFUSED, "it attached with the revoked certificate"
        issue(job.folder(0), 2, job.folder(2), 30, replace=True)
        job.start_agent(2)
        again = job.until(
            lambda: [e for e in job.events("role_started") if (e["role"], e["id"]) == ("worker", 2)][1:], "it is back"
        )
        assert again[0]["address"].startswith("127.0.0.3:")
        job.until_units(job.units() + 60)
        job.send(signal.SIGTERM)
        assert job.wait() == EXIT_PREEMPTED, job.output + job.logs()
        assert job.summary()["units"]["rolled_back"] == 0


def test_the_authority_is_exchanged_and_nothing_of_the_former_one_is_good(tmp_path: Path) -> None:
    flags = ["--workers=3", "--plan=asp", "--compute_secs=0.02", "--set=workload=100000"]
    with RotatingJob(tmp_path / "run", "configs/tally.py", *flags, num_hosts=3, port=4734) as job:
        job.until_phase("asp")
        former = Authority.load(job.folder(0))
        for step in STEPS:
            job.rotate(step)
            job.until_units(job.units() + 30)
        present = Authority.load(job.folder(0))
        assert former.certificate not in present.certificate
        address, token = read_control(job.workdir).address, job.token()
        for authority, is_let_in in ((former, False), (present, True)):
            user = authority.issue("user")
            keys = Keyring(token, dataclasses.replace(user, authority=present.certificate))
            with contextlib.closing(ChiefClient(address, 10.0, keys)) as client:
                if is_let_in:
                    assert client.status().workload == 100000
                else:
                    with pytest.raises(HandshakeRefused):
                        client.status()
        assert job.events("role_lost") == [] and len(job.events("role_started")) == 6
        job.send(signal.SIGTERM)
        assert job.wait() == EXIT_PREEMPTED, job.output + job.logs()
        assert job.wait_agents() == {1: EXIT_PREEMPTED, 2: EXIT_PREEMPTED}
        account = job.summary()["units"]
        assert account["issued"] == account["applied"] + account["dropped"] + account["outstanding"]
        assert account["rolled_back"] == 0
