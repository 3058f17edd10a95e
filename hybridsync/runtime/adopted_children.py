"""Children that a process has adopted as the nearest ancestor that takes in orphans (PR_SET_CHILD_SUBREAPER)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path


def reap_adopted(own: Collection[int]) -> int:
    """Collect every ended child of another session that is not in `own`; returns how many there were.

    A role begins a session, so what a role leaves behind is never of this process's session, and what this process has
    started itself, beside its roles, usually is: the code that started it waits for it.

    Args:
      own: children that somebody waits for by their ids.
    """
    count, session = 0, os.getsid(0)
    for pid in _children().difference(own):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # collected meanwhile, by another thread
            if os.getsid(pid) != session:
                count += os.waitpid(pid, os.WNOHANG)[0] == pid
    return count


def _children() -> set[int]:
    """Return the children of all threads of this process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended, or a kernel that does not list children
            found.update(map(int, (task / "children").read_text().split()))
    return found
