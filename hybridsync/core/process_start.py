"""Tells a process from another that got its number later, and a start of this machine from all others."""

from __future__ import annotations

from pathlib import Path


def start_of(pid: int) -> int:
    """Return the clock ticks at which a process of this machine started; -1 where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    state, *fields = text.rpartition(")")[2].split()
    return -1 if state in "ZX" else int(fields[18])


def boot_id() -> str:
    """Return what tells this start of this machine from all others: locks are known to it alone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()
