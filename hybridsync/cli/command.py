"""Run a subcommand as the program: read its flags with absl, in the forms that users of configurations expect.

`--config.PATH=VALUE` and `--set A=1 B=2` are rewritten to one `--set=PATH=VALUE` each before absl reads them, because
absl knows no flag with a dot in its name and one value a flag.
"""

from __future__ import annotations

import errno
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

from absl import app, flags, logging

from hybridsync.cli.standard_streams import OutputLost
from hybridsync.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, HybridSyncError
from hybridsync.runtime.user_output import say

_CONFIG_VALUE = "--config."
_SET = "--set"
_MACHINES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Refusals that no other path of the user's would mend."""


def with_single_values(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments in which every configuration value is a `--set=PATH=VALUE` of its own.

    >>> with_single_values(["--config=a.py", "--config.optimizer.learning_rate=0.1", "--set", "a=1", "b=2", "--seed=3"])
    ['--config=a.py', '--set=optimizer.learning_rate=0.1', '--set=a=1', '--set=b=2', '--seed=3']
    """
    found: list[str] = []
    setting = False
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="-"):
        is_flag = argument.startswith("-")
        if argument.startswith(_CONFIG_VALUE) and "=" in argument:
            found.append(f"{_SET}={argument.removeprefix(_CONFIG_VALUE)}")
        elif setting and not is_flag and "=" in argument:
            found.append(f"{_SET}={argument}")
        elif argument != _SET or following.startswith("-"):  # absl reports that a value is missing
            found.append(argument)
        setting = argument == _SET or argument.startswith(f"{_SET}=") or (setting and not is_flag)
    return found


def reports_errors(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Let a command end with one line and an exit code where its input or a file that it was given is refused."""

    @functools.wraps(main)
    def guarded(argv: list[str]) -> int:
        try:
            return main(argv)
        except HybridSyncError as error:
            say(f"error: {error}")
            return error.exit_code
        except OutputLost:
            raise
        except OSError as error:
            what = f"cannot use {error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}"
            if error.errno in _MACHINES:
                say(f"error: {what}; free space, or mend the machine")
                return EXIT_FAILED
            say(f"error: {what}; name another path, or give yourself access to it")
            return EXIT_REFUSED

    return guarded


def run(module: ModuleType) -> NoReturn:
    """Run `module.main` with the process's arguments and exit with what it returns.

    Args:
      module: a subcommand: its docstring is the help text, its absl flags, and those that it adopts, are the program's.
    """
    for flag in flags.FLAGS.get_key_flags_for_module(module.__name__):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # --help lists the key flags of the program
    sys.modules["__main__"].__doc__ = module.__doc__
    try:
        app.run(module.main, flags_parser=_parse)
    except KeyboardInterrupt:  # a command that has something to lose handles it itself
        say("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    raise AssertionError("app.run exits")


def _parse(argv: list[str]) -> list[str]:
    rest = app.parse_flags_with_usage([argv[0], *with_single_values(argv[1:])])
    for flag in flags.FLAGS.flags_by_module_dict().get(logging.__name__, ()):
        if flag.present:  # defined with the import of absl.logging, and nothing here reads it
            what = f"--{flag.name} has no effect; leave it out (a run's logs are in WORKDIR/logs)"
            say(f"error: {what}")
            sys.exit(EXIT_REFUSED)
    return rest
