"""Take a process its access to a folder, root's too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def no_access(folder: Path) -> Iterator[None]:
    """Let this process, which may be root's, not look into `folder`; what is to run has to be imported before."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)
