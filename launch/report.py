"""`python -m launch.report` is `hybridsync report`, from a checkout."""

from hybridsync.cli import report
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(report)
