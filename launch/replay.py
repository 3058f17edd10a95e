"""`python -m launch.replay` is `hybridsync replay`, from a checkout."""

from hybridsync.cli import replay
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(replay)
