"""A line for the user's terminal, and the rule for which way a line takes.

- What happens in a command, a supervisor or an agent, an error included: `say`, on standard error. Whoever may also run
  in a test or in a user's own program has `say` as an argument.
- What a command was called for, which a script may read: `print`, on standard output.
- What happens in a run: `show_line` of its progress (`telemetry/progress.py`), which knows what the terminal shows.
- What only somebody who looks into a role's log, or the log of the user's own program, is to see: `absl.logging`.
"""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Show a line to the user on standard error, and at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
