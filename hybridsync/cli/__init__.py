"""The command line, `hybridsync COMMAND`: one module a subcommand."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import ModuleType

from hybridsync import __version__
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_INTERRUPTED, EXIT_REFUSED
from hybridsync.runtime.user_output import say

COMMANDS = {
    "train": "train a configuration, or resume a run",
    "host": "run one host of a run on several: the head, or one that attaches to it",
    "simulate": "simulate a configuration in virtual time",
    "tune": "search for a job's switch point",
    "report": "write one HTML page about one or several runs",
    "export": "write a trained model for other programs",
    "replay": "recompute a recorded run and compare every bit",
    "status": "show the progress of a run",
    "logs": "show a run's logs, or follow them",
    "switch": "change a running run's protocol",
    "stop": "stop a running run with a save",
    "certs": "make the certificates by which hosts authenticate each other",
}
"""Subcommand -> what it does."""


def usage() -> str:
    """Return the text of `hybridsync --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hybridsync COMMAND [--flag=value ...]",
            "",
            *lines,
            "",
            "`hybridsync COMMAND --help` lists a command's flags; `hybridsync --version` prints the version.",
        ]
    )


def _imported(name: str) -> ModuleType:
    """Import a module; Ctrl-C ends the process at once, because an import that is cut short prints a traceback."""

    def leave(number: int, frame: object) -> None:
        os.write(2, b"interrupted\n")
        os._exit(EXIT_INTERRUPTED)

    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:  # and not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, leave)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, previous)


def main() -> None:
    """Run the subcommand that the process's first argument names, and exit with its code.

    Only that subcommand is imported: two of them define flags of the same name, which absl refuses in one process.
    """
    sys.exit(_answer(sys.argv))


@ends_with_its_reader
def _answer(argv: list[str]) -> int:
    name, rest = (argv[1], argv[2:]) if len(argv) > 1 else ("", [])
    if name in ("-h", "--help", "help"):
        print(usage())
        return EXIT_COMPLETED
    if name == "--version":
        print(f"hybridsync {__version__}")
        return EXIT_COMPLETED
    if name not in COMMANDS:
        from hybridsync.config.keywords import did_you_mean

        what = f"there is no command {name!r}" if name else "no command was named"
        say(f"error: {what}; {did_you_mean(name, COMMANDS)}")
        return EXIT_REFUSED
    module, command = _imported(f"hybridsync.cli.{name}"), _imported("hybridsync.cli.command")
    sys.argv = [f"hybridsync {name}", *rest]
    return int(command.run(module))
