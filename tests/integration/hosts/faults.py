"""Faults of hosts, and how long a run takes to go on. Each hurts one host of a run that counts its units, and mends it.

The seconds that are returned:

- `lost_secs`: from the fault until the head counts the host as lost; absent where it never does.
- `stall_secs`: the longest time without a unit applied, from the fault until the end of the account.
- `back_secs`: from the mend until every worker of the host has computed a unit again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.storage.jsonl import read_lines
from tests.integration.hosts.hosts import PRIVATE, Hosts
from tests.integration.hosts.network import Network
from tests.multiprocess.job import assert_exactly_once

NUM_HOSTS, NUM_WORKERS = 3, 4
UNIT_SECS, FAULT_SECS = 0.1, 30.0
"""How long a worker takes for a unit, and a run at most for a fault."""
SLOW_BYTES_PER_SEC = 2_000_000
FLAPS, FLAP_SECS = 5, 3.0
"""A flap is shorter than the lease: the host is not lost by it."""
FROZEN_SECS = 20.0
"""Longer than the lease: what the host does afterwards is refused."""


Fault = Callable[[Hosts, int], dict[str, float]]


def start(
    network: Network,
    folder: Path,
    plan: str,
    *more: str,
    units: int,
    unit_secs: float = UNIT_SECS,
    absent: Collection[int] = (),
) -> Hosts:
    """Start, or resume, a tally run on all hosts but the absent ones, whose workers take `unit_secs` a unit."""
    flags = (f"--workers={NUM_WORKERS}", f"--plan={plan}", f"--compute_secs={unit_secs}", PRIVATE, *more)
    settings = (f"--set=workload={units}", "--set=telemetry.log_secs=0.1", "--set=telemetry.timeline=false")
    return Hosts(network, folder, "configs/tally.py", *flags, *settings, absent=absent)


def workers_of(host: int, num_workers: int = NUM_WORKERS) -> list[int]:
    """Return the workers whose home is a host."""
    home = RoleAssignment(NUM_HOSTS, num_workers).home
    return [worker for worker in range(num_workers) if home("worker", worker) == host]


def lines_after(hosts: Hosts, t: float) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl behind a time of the run."""
    path = hosts.workdir / "metrics.jsonl"
    return [line for line in read_lines(path) if line["t"] > t] if path.exists() else []


def now_of(hosts: Hosts) -> float:
    """Return the time of the run of the newest line of metrics.jsonl."""
    lines = lines_after(hosts, -1.0)
    return lines[-1]["t"] if lines else 0.0


def until_working(hosts: Hosts, workers: list[int]) -> float:
    """Wait until each of these workers has computed a unit that begins now, or later; returns the seconds."""
    t, missing = now_of(hosts), set(workers)

    def all_work() -> bool:
        for line in lines_after(hosts, t):
            missing.difference_update(int(worker) for worker, secs in line.get("compute_secs", {}).items() if secs > 0)
        return not missing

    return hosts.until(all_work, f"workers {workers} computed a unit")


def until_everybody_works(hosts: Hosts) -> float:
    """Wait until all workers of the run have computed a unit; returns the seconds."""
    return until_working(hosts, list(range(NUM_WORKERS)))


def longest_stall(hosts: Hosts, since: float) -> float:
    """Return the longest time since then without a unit applied, by metrics.jsonl."""
    grown = [since]
    lines = lines_after(hosts, since - 1.0)
    grown += [line["t"] for before, line in pairwise(lines) if line["units"] > before["units"] and line["t"] > since]
    return max((after - before for before, after in pairwise([*grown, now_of(hosts)])), default=0.0)


def _losses(hosts: Hosts, host: int) -> int:
    return hosts.screen(0).count(f"host {host} is lost")


def _lost_and_back(hosts: Hosts, host: int, hurt: Callable[[], Any], mend: Callable[[], Any]) -> dict[str, float]:
    since, losses = now_of(hosts), _losses(hosts, host)
    hurt()
    lost_secs = hosts.until_said(f"host {host} is lost", losses + 1)
    assert not (running := hosts.roles_on(host)), f"host {host} counts as lost, and {running} still run there"
    mend()
    back_secs = until_working(hosts, workers_of(host))
    return {"lost_secs": lost_secs, "stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def agent_is_killed(hosts: Hosts, host: int) -> dict[str, float]:
    """Kill the agent; its roles die with it, and another one is started at once, which takes its place."""
    since, losses = now_of(hosts), _losses(hosts, host)
    hosts.kill_agent(host)
    hosts.until(lambda: not hosts.roles_on(host), f"the roles of host {host} died with its agent")
    hosts.start_agent(host)
    lost_secs = hosts.until_said(f"host {host} is lost", losses + 1)
    back_secs = lost_secs + until_working(hosts, workers_of(host))
    return {"lost_secs": lost_secs, "stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def host_is_killed(hosts: Hosts, host: int) -> dict[str, float]:
    """Kill everything on a host, and start its program again when the head has noticed."""
    return _lost_and_back(hosts, host, lambda: hosts.kill_host(host), lambda: hosts.start_agent(host))


def agent_is_told_to_leave(hosts: Hosts, host: int) -> dict[str, float]:
    """End the agent by SIGTERM, and start another one."""

    def leave() -> None:
        assert hosts.kill_agent(host, signal.SIGTERM) == 75

    return _lost_and_back(hosts, host, leave, lambda: hosts.start_agent(host))


def cut_one_way(hosts: Hosts, host: int) -> dict[str, float]:
    """Let nothing reach the host until it is lost; what it sends arrives."""
    network = hosts.network
    return _lost_and_back(hosts, host, lambda: network.cut(host, out_of=False), lambda: network.heal(host))


def cut_the_other_way(hosts: Hosts, host: int) -> dict[str, float]:
    """Let nothing of what the host sends arrive, until it is lost."""
    network = hosts.network
    return _lost_and_back(hosts, host, lambda: network.cut(host, into=False), lambda: network.heal(host))


def cut_both_ways(hosts: Hosts, host: int) -> dict[str, float]:
    """Cut the host off until it is lost."""
    return _lost_and_back(hosts, host, lambda: hosts.network.cut(host), lambda: hosts.network.heal(host))


def flapping(hosts: Hosts, host: int) -> dict[str, float]:
    """Cut the host off five times, each time for less than the lease."""
    since, losses = now_of(hosts), _losses(hosts, host)
    for _ in range(FLAPS):
        hosts.network.cut(host)
        hosts.head.pause(FLAP_SECS)
        hosts.network.heal(host)
        hosts.head.pause(FLAP_SECS)
    back_secs = until_working(hosts, workers_of(host))
    assert _losses(hosts, host) == losses, "the host was lost by cuts that are shorter than its lease"
    return {"stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def frozen(hosts: Hosts, host: int) -> dict[str, float]:
    """Stop all processes of the host for longer than the lease, and let them go on as if nothing had happened."""
    since, losses = now_of(hosts), _losses(hosts, host)
    hosts.network.send_all(host, signal.SIGSTOP)
    lost_secs = hosts.until_said(f"host {host} is lost", losses + 1)
    hosts.head.pause(max(0.0, FROZEN_SECS - lost_secs))
    hosts.network.send_all(host, signal.SIGCONT)
    back_secs = until_working(hosts, workers_of(host))
    return {"lost_secs": lost_secs, "stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def slow_link(hosts: Hosts, host: int) -> dict[str, float]:
    """Let the host send and receive 2 MB/s for a while; nobody is lost."""
    since, losses = now_of(hosts), _losses(hosts, host)
    hosts.network.slow_link(host, SLOW_BYTES_PER_SEC)
    hosts.head.pause(5.0)
    until_working(hosts, workers_of(host))
    hosts.network.heal(host)
    back_secs = until_working(hosts, workers_of(host))
    assert _losses(hosts, host) == losses, "the host was lost by a slow link"
    return {"stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def head_is_killed(hosts: Hosts, host: int) -> dict[str, float]:
    """Kill everything on the head's host, and start its program again; the agents attach to the new one."""
    del host
    hosts.kill_host(0)
    begun = SYSTEM_CLOCK.monotonic()
    hosts.start_head()
    until_everybody_works(hosts)
    return {"back_secs": SYSTEM_CLOCK.monotonic() - begun}


def head_is_cut_off(hosts: Hosts, host: int) -> dict[str, float]:
    """Cut the head's host off until it has lost all others; its own roles go on."""
    del host
    since, begun = now_of(hosts), SYSTEM_CLOCK.monotonic()
    losses = {other: _losses(hosts, other) for other in range(1, NUM_HOSTS)}
    hosts.network.cut(0)
    for other, before in losses.items():
        hosts.until_said(f"host {other} is lost", before + 1)
    lost_secs = SYSTEM_CLOCK.monotonic() - begun
    hosts.network.heal(0)
    back_secs = until_everybody_works(hosts)
    return {"lost_secs": lost_secs, "stall_secs": longest_stall(hosts, since), "back_secs": back_secs}


def host_stays_away(hosts: Hosts, host: int) -> dict[str, float]:
    """Kill everything on a host until others have its roles; it comes back with nothing to do (last fault of a run)."""
    since, losses = now_of(hosts), _losses(hosts, host)
    hosts.kill_host(host)
    lost_secs = hosts.until_said(f"host {host} is lost", losses + 1)
    back_secs = until_working(hosts, workers_of(host))
    stall_secs = longest_stall(hosts, since)
    hosts.start_agent(host)
    hosts.until_said("attached to the head", hosts.screen(host).count("attached to the head") + 1, host)
    until_everybody_works(hosts)
    assert not (running := hosts.roles_on(host)), f"{running} run twice"
    return {"lost_secs": lost_secs, "stall_secs": stall_secs, "back_secs": back_secs}


FAULTS = (
    agent_is_killed,
    host_is_killed,
    agent_is_told_to_leave,
    cut_one_way,
    cut_the_other_way,
    cut_both_ways,
    flapping,
    frozen,
    slow_link,
    head_is_cut_off,
    head_is_killed,
)


@dataclass(frozen=True)
class FaultedRun:
    """Tells what faults did to a run.

    Attributes:
      start_secs: until every worker had computed a unit.
      faults: name and seconds of each, in order.
      summary: of the completed run.
    """

    start_secs: float
    faults: list[tuple[str, dict[str, float]]]
    summary: dict[str, Any]


def run_with_faults(
    network: Network, folder: Path, plan: str, faults: Sequence[Fault], *more: str, say: Callable[[str], None] = print
) -> FaultedRun:
    """Run with one fault after the other, at host 1 and host 2 in turn; then save, resume, and check the account.

    Raises:
      AssertionError: the run did not go on, a role outlived its session, or a unit was lost or applied twice.
    """
    units = round((len(faults) + 1) * FAULT_SECS * NUM_WORKERS / UNIT_SECS)
    done = []
    with start(network, folder, plan, *more, units=units) as hosts:
        start_secs = until_everybody_works(hosts)
        for number, fault in enumerate(faults):
            done.append((fault.__name__, fault(hosts, 1 + number % (NUM_HOSTS - 1))))
            say(f"{plan} {fault.__name__}: " + ", ".join(f"{name} {secs:.1f}" for name, secs in done[-1][1].items()))
        save(hosts)
    return FaultedRun(start_secs, done, completed(network, folder, plan, *more, units=units))


def save(hosts: Hosts) -> None:
    """Have a run saved by SIGTERM on the head."""
    hosts.head.send(signal.SIGTERM)
    assert hosts.wait() == [75] * NUM_HOSTS, hosts.screens() + hosts.head.logs()


def completed(network: Network, folder: Path, plan: str, *more: str, units: int) -> dict[str, Any]:
    """Resume a run that was saved, and check its account; returns its summary."""
    with start(network, folder, plan, *more, units=units, unit_secs=0.0) as hosts:
        assert hosts.wait() == [0] * NUM_HOSTS, hosts.screens() + hosts.head.logs()
        assert_exactly_once(hosts.head.summary())
        assert hosts.head.tracebacks() == []
        return hosts.head.summary()


def run_with_a_late_host(
    network: Network, folder: Path, plan: str, say: Callable[[str], None] = print
) -> tuple[dict[str, float], dict[str, Any]]:
    """Begin without host 2, have it join, and host 1 leave; then save, resume, and check the account.

    Returns:
      seconds, and the summary of the completed run: `first_unit_secs` from the command on host 2 until its worker has
      computed a unit, `joined_stall_secs` and `left_stall_secs` the longest times without a unit applied meanwhile.

    Raises:
      AssertionError: the run did not go on, or a unit was lost or applied twice.
    """
    late, units = 2, round(8 * FAULT_SECS * NUM_WORKERS / UNIT_SECS)
    fewest = f"--workers={NUM_WORKERS - 1}..{NUM_WORKERS}"
    with start(network, folder, plan, fewest, units=units, absent=(late,)) as hosts:
        until_working(hosts, [0, 1, 2])
        since, begun = now_of(hosts), SYSTEM_CLOCK.monotonic()
        hosts.start_agent(late)
        until_working(hosts, workers_of(late))
        secs = {"first_unit_secs": SYSTEM_CLOCK.monotonic() - begun, "joined_stall_secs": longest_stall(hosts, since)}
        since = now_of(hosts)
        assert hosts.kill_agent(1, signal.SIGTERM) == 75
        hosts.until_said("host 1 is lost")
        until_working(hosts, [*workers_of(0), *workers_of(late)])
        secs["left_stall_secs"] = longest_stall(hosts, since)
        say(f"{plan}: " + ", ".join(f"{name} {each:.1f}" for name, each in secs.items()))
        save(hosts)
    return secs, completed(network, folder, plan, fewest, units=units)
