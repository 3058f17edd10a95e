"""`python -m launch.logs` is `hybridsync logs`, from a checkout."""

from hybridsync.cli import logs
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(logs)
