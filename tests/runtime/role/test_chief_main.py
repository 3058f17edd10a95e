"""What a chief's process leaves when it fails before its run begins."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hybridsync.config.loading import load_config
from hybridsync.core.addresses import at_socket
from hybridsync.core.errors import AddressError
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.runtime.control_file import CONTROL_FILE
from hybridsync.runtime.processes import Launch
from hybridsync.runtime.role import chief_main
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.security.keyring import Keyring
from hybridsync.workdir.resuming import Allowed

FILE = Path("configs/tally.py")


def test_a_chief_that_cannot_serve_its_metrics_leaves_no_token(tmp_path: Path) -> None:
    run, reports = Launch(load_config(FILE), FILE, tmp_path / "run").run(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        role = RoleSpec(
            "chief",
            0,
            0,
            coordinator="",
            workdir=str(tmp_path / "run"),
            num_workers=1,
            num_servers=1,
            host="",
            collective="shm",
            num_devices=1,
            listen=at_socket(Path(folder) / "chief"),
        )
        allowed: Allowed = {"convert_units": False, "accept_changes": False}
        spec = chief_main.ChiefSpec(role, "never", None, allowed=allowed, metrics=("127.0.0.1", port))
        keys = Keyring("the run's token")
        with pytest.raises(AddressError, match=rf"--metrics_port={port} cannot be served on"):
            chief_main.run_chief(run, spec, keys=keys, user_keys=keys, report=reports.append, watchdog=UNWATCHED)
    assert "address" in reports[0], "it failed before it served"
    assert not (tmp_path / "run" / CONTROL_FILE).exists()
