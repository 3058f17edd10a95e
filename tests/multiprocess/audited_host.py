"""`python -m tests.multiprocess.audited_host`: `hybridsync host` whose processes record what makes code of data.

The files of `planted_audit.py` tell of each role, and as `head` and `agent` of the programs that the hosts run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridsync.cli import host, train
from hybridsync.cli.command import run
from hybridsync.runtime import processes
from hybridsync.runtime.agent import fork_server
from hybridsync.runtime.role import role_pipe
from tests.multiprocess.planted_audit import what_makes_code_of_data_is_recorded


def flag(name: str) -> str:
    """Return the value of a flag of this process; the last one counts, as for absl."""
    *_, value = (each.partition("=")[2] for each in sys.argv if each.startswith(f"--{name}="))
    return value


def main() -> None:
    """Be the program, or a role of it."""
    launch_of_flags, play = train.launch_of_flags, train.play

    def launch_of_host(*args: Any, **named: Any) -> processes.Launch:
        workdir = Path(flag("workdir"))
        workdir.mkdir(mode=0o700, exist_ok=True)
        what_makes_code_of_data_is_recorded("agent" if int(flag("index")) else "head", workdir)
        return launch_of_flags(*args, **{**named, "program": "tests.multiprocess.audited_host"})

    def play_audited(role: role_pipe.Child, load: Callable[[], processes.Launch]) -> int:
        what_makes_code_of_data_is_recorded(role.role, Path(flag("workdir")))
        return play(role, load)

    train.play = play_audited
    if not fork_server.is_role():
        train.launch_of_flags = launch_of_host
    run(host)


if __name__ == "__main__":
    main()
