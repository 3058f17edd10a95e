"""`python -m hybridsync COMMAND` is `hybridsync COMMAND`."""

from hybridsync.cli import main

if __name__ == "__main__":
    main()
