"""`python -m launch.tune` is `hybridsync tune`, from a checkout."""

from hybridsync.cli import tune
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(tune)
