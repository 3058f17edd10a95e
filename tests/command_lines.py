"""Command lines answered by forks of one process: what a subcommand imports is imported once for a file of tests.

`python -m tests.command_lines tune MODULE ...` is that process. Each line of its input is a JSON list: the call's
number, its arguments, and the files for what it prints. It answers with the number and the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tests.multiprocess.job import ROOT, users_environment


class CommandLines:
    """One subcommand, ready to be called again and again; each call is a process of its own.

    A fork differs from a program that was just started in what it has imported. So a test of what is imported, or of
    how long that takes, needs a program of its own.
    """

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._folder = server, folder
        self._calls = 0

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the subcommand to its end with these arguments, from the checkout's root."""
        self._calls += 1
        out, err = (self._folder / f"{name}{self._calls}" for name in ("stdout", "stderr"))
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([self._calls, arguments, str(out), str(err)]) + "\n")
        self._server.stdin.flush()
        number = code = 0
        while number != self._calls:  # a call before this one may have been given up by its test
            number, code = map(int, self._server.stdout.readline().split())
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


@contextmanager
def command_lines(folder: Path, name: str, *imported: str, cwd: Path = ROOT) -> Iterator[CommandLines]:
    """Have a subcommand ready.

    Args:
      folder: for what a call prints.
      name: of the subcommand.
      imported: modules that its calls import and that are imported here once. None may start a thread or a backend.
      cwd: folder in which the calls run.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.command_lines", name, *imported],
        cwd=cwd,
        env=users_environment() | {"PYTHONPATH": os.fspath(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield CommandLines(server, folder)
        finally:
            assert server.stdin is not None
            server.stdin.close()


def _answer(module: ModuleType, program: str, arguments: list[str], out: str, err: str) -> None:
    """Run a subcommand in this process and end it."""
    from hybridsync.cli import command

    code: object = None
    try:
        for number, path in enumerate((os.devnull, out, err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = [program, *arguments]
        command.run(module)
    except SystemExit as end:
        code = end.code or 0
    finally:
        if code is None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 70)


def _serve(name: str, *imported: str) -> None:
    """Answer the lines of stdin, each by a fork."""
    module = importlib.import_module(f"hybridsync.cli.{name}")
    for other in imported:
        importlib.import_module(other)
    for line in sys.stdin:
        number, *asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _answer(module, f"hybridsync {name}", *asked)
        print(number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
