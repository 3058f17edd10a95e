"""Rows of results, a JSON file each: what is there already is not measured again.

A measurement that was cut off leaves no row, and a later call goes on with it.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK


@dataclass(frozen=True)
class Row:
    """What one measurement found.

    Args:
      name: command and case, such as "shared/resnet32/bsp".
      figures: name with its unit -> value.
      machine: device and versions that it was made on.
      at: date.
      error: why there are no figures; "" where there are.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    error: str = ""


class Rows:
    """The rows in a folder.

    Args:
      folder: it is made.
      machine: device and versions of what is measured now.
      show: shows a line.
    """

    def __init__(self, folder: Path, machine: dict[str, Any], show: Callable[[str], None] = print) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._machine, self._show = folder, machine, show

    def measure(self, name: str, measured: Callable[[], dict[str, Any]]) -> Row:
        """Return a row, measured where it is not there or failed before; a failure becomes a row that says why."""
        path = self._folder / f"{name.replace('/', '-')}.json"
        if path.exists() and not (row := Row(**json.loads(path.read_text()))).error:
            return row
        try:
            figures, error = measured(), ""
        except Exception as failure:  # noqa: BLE001 the other measurements have their time, too
            traceback.print_exc()
            figures, error = {}, f"{type(failure).__name__}: {failure}"[-2000:]
        row = Row(name, figures, self._machine, f"{datetime.fromtimestamp(SYSTEM_CLOCK.wall(), UTC):%Y-%m-%d}", error)
        path.write_text(json.dumps(asdict(row), indent=1) + "\n")
        self._show(f"{name}: {error or json.dumps(figures)}")
        return row


def read(folder: Path) -> list[Row]:
    """Return the rows in a folder, by their names."""
    return sorted((Row(**json.loads(path.read_text())) for path in folder.glob("*.json")), key=lambda row: row.name)
