"""Other systems on the same work as ours, in turns.

    python -m benchmarks.peers setup [NAME ...]
    python -m benchmarks.peers run [--rounds=5] [--only=WORK,...] [--systems=NAME,...] [--out=FILE]
    python -m benchmarks.peers page [FILE]

`setup` makes an environment for each system, from `benchmarks/peers/requirements`. `run` measures ours and the peers
by turns and writes the results, JSON. `page` makes the figures of `docs/performance.md` and its plots from them.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.peers import environments, measure, page
from benchmarks.peers.figures import Results
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.work import ALL

RESULTS = ROOT / "docs" / "performance" / "results.json"


def chosen(given: str, known: Collection[str]) -> list[str]:
    """Return the known names that begin with one of those given, separated by commas; all of them for "".

    Raises:
      ValueError: a given name begins none.

    >>> chosen("a,c", ["ab", "ac", "b", "c"])
    ['ab', 'ac', 'c']
    """
    wanted = given.split(",") if given else [""]
    if wrong := [name for name in wanted if not any(each.startswith(name) for each in known)]:
        raise ValueError(f"{', '.join(wrong)}: there is no such name; take the beginning of one of {', '.join(known)}")
    return [each for each in known if any(each.startswith(name) for name in wanted)]


def set_up(name: str) -> bool:
    """Make an environment; returns whether it is there, and says why not."""
    try:
        environments.set_up(name)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    return True


def main() -> None:
    """Set up, measure or write the page."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="make the environments")
    setup.add_argument("names", nargs="*", metavar="NAME", help=", ".join(environments.ENVIRONMENTS))
    run = commands.add_parser("run", help="measure")
    run.add_argument("--rounds", type=int, default=5)
    run.add_argument("--only", default="", help=f"beginnings of works: {', '.join(work.name for work in ALL)}")
    run.add_argument("--systems", default="", help=f"beginnings of systems: {', '.join(SYSTEMS)}")
    run.add_argument("--out", type=Path, default=RESULTS)
    write = commands.add_parser("page", help="write docs/performance.md and its plots")
    write.add_argument("results", nargs="?", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.command == "setup":
        failed = [name for name in options.names or environments.ENVIRONMENTS if not set_up(name)]
        if failed:
            sys.exit(f"not set up: {', '.join(failed)}; what has an environment can be measured")
    elif options.command == "run":
        works = {work.name: work for work in ALL}
        try:
            asked = [works[name] for name in chosen(options.only, works)]
            systems = chosen(options.systems, SYSTEMS)
        except ValueError as error:
            parser.error(str(error))
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
        measure.run(asked, systems, options.rounds, options.out)
        print(f"{options.out}; python -m benchmarks.peers page {options.out} writes the page")
    else:
        page.write(Results.read(options.results))


if __name__ == "__main__":
    main()
