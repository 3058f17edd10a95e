"""Change a running run's protocol: `hybridsync switch RUN PROTOCOL [--why=TEXT]`, where RUN is its --workdir.

PROTOCOL is written as in a plan, without a share: bsp, or "ssp(staleness=2)". It takes the place of the plan's protocol
to the end of the current stage; later stages follow the plan. Exit codes: 0 taken, 1 refused and nothing changed, 70
the chief gives no answer.
"""

from __future__ import annotations

import sys

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.reason import checked_reason
from hybridsync.cli.standard_streams import outlast
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError
from hybridsync.core.paths import local_path
from hybridsync.interfaces.commands import SwitchReply, SwitchRequest
from hybridsync.runtime.control_file import command_port, explained, read_control

FLAGS = flags.FLAGS
flags.DEFINE_string("why", "", "why, for the event log")


def told_of(reply: SwitchReply) -> str:
    """Return what the user is told of a switch that was taken."""
    if not reply.changes:
        return f"the run is under {reply.spec} already (phase {reply.phase}), and stays so until the stage ends"
    return (
        f"taken at unit {reply.units:,}: after phase {reply.phase} ({reply.before}) the run goes on under "
        f"{reply.spec}, until the current stage ends"
    )


@reports_errors
def main(argv: list[str]) -> int:
    """Ask the run that the command line names for the protocol that it names."""
    outlast()  # the switch counts, not its display
    if len(argv) != 3:
        raise ConfigError(
            "name one run and one protocol; write hybridsync switch RUN PROTOCOL, where RUN is its --workdir"
        )
    workdir = local_path(argv[1])
    reason, control = checked_reason(FLAGS.why), read_control(workdir)
    with explained(workdir):
        reply = command_port(control).switch(SwitchRequest(argv[2], reason))
    print(told_of(reply))
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
