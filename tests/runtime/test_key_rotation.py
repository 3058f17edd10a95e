"""The head's user is told of certificates that end soon."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from hybridsync.runtime.key_rotation import rotate_if_due
from hybridsync.runtime.run_keys import HeadFolder, RunKeys
from hybridsync.security.certificates import Authority


def test_a_head_with_a_certificate_for_hours_says_so_once(tmp_path: Path) -> None:
    folder, said = tmp_path / "head", list[str]()
    Authority.create(folder).issue("head", 0, datetime.timedelta(hours=3)).write(folder, "head")
    keys = RunKeys(HeadFolder(folder, said.append))
    unused: Any = None  # no keys are due, and nobody was revoked
    for _ in range(2):
        rotate_if_due(keys, unused, {}, unused, said.append)
    (line,) = said
    assert line.startswith("the certificate of the head is good until ")
