"""`python -m launch.certs` is `hybridsync certs`, from a checkout."""

from hybridsync.cli import certs
from hybridsync.cli.command import run

if __name__ == "__main__":
    run(certs)
