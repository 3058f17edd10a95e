"""What a chief's process leaves when it fails before its run begins."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hybridsync import Trainer
from hybridsync.config.loading import load_config
from hybridsync.core.addresses import at_socket
from hybridsync.core.errors import AddressError
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.phases.controller import Controller
from hybridsync.runtime.control_file import CONTROL_FILE
from hybridsync.runtime.processes import Launch
from hybridsync.runtime.role import chief_main
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.security.keyring import Keyring
from hybridsync.workdir.resuming import Allowed
from tests.trainers import fit_and_stop

FILE, SLOWLY = Path("configs/tally.py"), ["emulation.compute_secs=0.01"]
ALLOWED: Allowed = {"convert_units": False, "accept_changes": False}


class ReachedError(Exception):
    """The chief has come as far as its phases."""


def run_without_its_metrics(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first chief of a launch up to its phases, while another program has its port of metrics."""

    def reached(self: Controller) -> None:
        raise ReachedError

    monkeypatch.setattr(Controller, "run", reached)
    run, reports = Launch(load_config(FILE, SLOWLY), FILE, workdir).run(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        role = RoleSpec(
            "chief",
            0,
            0,
            coordinator="",
            workdir=str(workdir),
            num_workers=1,
            num_servers=1,
            host="",
            collective="shm",
            num_devices=1,
            listen=at_socket(Path(folder) / "chief"),
        )
        spec = chief_main.ChiefSpec(role, "auto", None, allowed=ALLOWED, metrics=("127.0.0.1", port))
        keys = Keyring("the run's token")
        try:
            chief_main.run_chief(run, spec, keys=keys, user_keys=keys, report=reports.append, watchdog=UNWATCHED)
        finally:
            assert "address" in reports[0], "it failed before it served"


def test_a_run_that_begins_is_refused_without_its_metrics_and_leaves_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AddressError, match=r"--metrics_port=\d+ cannot be served on"):
        run_without_its_metrics(tmp_path / "run", monkeypatch)
    assert not (tmp_path / "run" / CONTROL_FILE).exists()


def test_a_run_that_goes_on_does_so_without_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that restarts at a switch: the first chief of its second session is no replacement."""
    fit_and_stop(Trainer.from_config(FILE, SLOWLY, workdir=tmp_path / "run", progress=False), 8)
    with pytest.raises(ReachedError):
        run_without_its_metrics(tmp_path / "run", monkeypatch)
