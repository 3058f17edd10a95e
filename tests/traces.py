"""What traces of JAX's profiler hold."""

from __future__ import annotations

from pathlib import Path

import jax


def units_of(folder: Path) -> set[int]:
    """Return the units that have a mark in the one trace in a folder."""
    (file,) = folder.rglob("*.xplane.pb")
    trace = jax.profiler.ProfileData.from_file(str(file))
    marks = (event for plane in trace.planes for line in plane.lines for event in line.events if event.name == "unit")
    return {int(dict(mark.stats)["step_num"]) for mark in marks}
