"""A line for the user's terminal, and the rule for which way a line takes.

- `say`, on standard error: events of a command, a supervisor or an agent, errors included. Code that also runs in a
  test or in a user's own program takes `say` as an argument.
- `print`, on standard output: the result of a command, which a script may read.
- `show_line` of a run's progress (`telemetry/progress.py`), which knows the state of the terminal: events of a run.
- `absl.logging`: details for a reader of a role's log, or of the log of the user's own program.
"""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Show a line to the user on standard error, and at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
