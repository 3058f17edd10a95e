"""`python -m launch.train` is `hybridsync train`, from a checkout."""

from hybridsync.cli import train
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(train)
