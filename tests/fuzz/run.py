"""Fuzzes every handler for as long as you like: `python -m tests.fuzz.run --secs=3600 --seed=1`.

Prints what was seen, and ends with 1 where there was a fault.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=3600.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tests.fuzz.fuzzer import Fuzzer

    found = Fuzzer(given.seed).run(secs=given.secs)
    print(found.report())
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
