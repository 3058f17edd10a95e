"""`python -m launch.stop` is `hybridsync stop`, from a checkout."""

from hybridsync.cli import stop
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(stop)
