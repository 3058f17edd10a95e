"""`python -m launch.simulate` is `hybridsync simulate`, from a checkout."""

from hybridsync.cli import simulate
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(simulate)
