"""`python -m launch.status` is `hybridsync status`, from a checkout."""

from hybridsync.cli import status
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(status)
