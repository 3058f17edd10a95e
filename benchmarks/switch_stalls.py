"""Print what each switch of a run cost: `python -m benchmarks.switch_stalls RUN [RUN ...]`."""

import sys
from collections.abc import Sequence

from hybridsync.errors import HybridSyncError
from hybridsync.telemetry.stalls import SwitchStall, percentile, read_stalls


def main(arguments: Sequence[str]) -> int:
    """Print the switches of the runs in the given workdirs; return the exit code."""
    if not arguments:
        print("name a run's workdir: python -m benchmarks.switch_stalls RUN [RUN ...]", file=sys.stderr)
        return 1
    try:
        stalls = [stall for workdir in arguments for stall in read_stalls(workdir)]
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{'epoch':>5}  {'switch':<16} {'stall':>9} {'by chief':>9} {'compile':>9} {'unit':>9}   [ms]")
    for stall in stalls:
        print(_row(stall))
    directions = sorted({(stall.before, stall.after) for stall in stalls})
    for before, after in directions:
        _print_percentiles(
            f"{before}->{after}", [s for s in stalls if (s.before, s.after) == (before, after)]
        )
    _print_percentiles("all", stalls)
    return 0


def _row(stall: SwitchStall) -> str:
    cells = (stall.stall_secs, stall.event_stall_secs, stall.compile_secs, stall.unit_secs)
    numbers = " ".join(f"{'-' if cell is None else format(cell * 1e3, '.1f'):>9}" for cell in cells)
    return f"{stall.epoch:>5}  {stall.before + '->' + stall.after:<16} {numbers}"


def _print_percentiles(name: str, stalls: Sequence[SwitchStall]) -> None:
    if stalls:
        secs = [stall.stall_secs for stall in stalls]
        p50, p95 = percentile(secs, 0.5), percentile(secs, 0.95)
        print(f"{name}: {len(secs)} switches, stall p50 {p50 * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms")
    else:
        print(f"{name}: no switches")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
