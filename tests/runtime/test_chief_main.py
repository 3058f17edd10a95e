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
from hybridsync.runtime import chief_main
from hybridsync.runtime.control_file import CONTROL_FILE
from hybridsync.runtime.processes import Launch
from hybridsync.security.keyring import Keyring

FILE = Path("configs/tally.py")


def test_a_chief_that_cannot_serve_its_metrics_leaves_no_token(tmp_path: Path) -> None:
    run, reports = Launch(load_config(FILE), FILE, tmp_path / "run").run(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=rf"--metrics_port={port} cannot be served on"):
            chief_main.run_chief(
                run,
                resume="never",
                init_from=None,
                allowed={"convert_units": False, "accept_changes": False},
                address=at_socket(Path(folder) / "chief"),
                keys=Keyring("the run's token"),
                user_keys=Keyring("the run's token"),
                restarted=False,
                coordinator="",
                collective="shm",
                link="grpc",
                num_devices=1,
                num_threads=None,
                metrics=("127.0.0.1", port),
                report=reports.append,
                watchdog=UNWATCHED,
            )
    assert "address" in reports[0], "it failed before it served"
    assert not (tmp_path / "run" / CONTROL_FILE).exists()
