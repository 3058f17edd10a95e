"""`python -m launch.switch` is `hybridsync switch`, from a checkout."""

from hybridsync.cli import switch
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(switch)
