"""Faults on every role at drawn moments: `python -m tests.multiprocess.random_faults PLAN SERVERS SEED` runs one.

The moments are places in the workload, so that every fault lands before the run is through, however fast the machine
is; some follow the fault before within a second, whatever the run is doing then.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import SOON, gone, tally

KINDS = {"worker": 5, "stop": 2, "server": 2, "chief": 2}
"""How often each kind of fault is drawn; a stop is a worker's."""
WORKERS_ONLY = {"worker": 2, "stop": 1}
WORKERS = 4
FIRST_UNITS = 50
LAST_SHARE = 0.85
"""Where in the workload the last fault lands at the latest, if nobody has to be waited for."""
CLOSE_SHARE = 0.3
CLOSE_SECS = 1.0
"""That share of the faults comes within this time of the one before."""
SUCCESSOR_SECS = 120.0


class Victims:
    """Whom a fault may hit: the processes that have registered, live, and were not hit already.

    Args:
      job: to be hurt.
      kinds: of faults, with how often each is drawn.
      servers: of the job.
    """

    def __init__(self, job: Job, kinds: Mapping[str, int], servers: int = 1) -> None:
        self._job, self._kinds = job, kinds
        counts = {"chief": 1, "server": servers, "worker": WORKERS}
        self._places = [(role, role_id) for role, count in counts.items() for role_id in range(count)]
        self.hit: set[int] = set()
        self._ends: list[int] = []

    def present(self) -> dict[tuple[str, int], int]:
        """Return (role, id) -> process, of the places that are not waiting for a new one to register."""
        newest = {(event["role"], event["id"]): event["pid"] for event in self._job.events("role_started")}
        found = {place: newest[place] for place in self._places if place in newest}
        return {place: pid for place, pid in found.items() if pid not in self.hit and not gone(pid, secs=0.0)}

    def missing(self) -> str:
        """Return the places that wait for a new process, for a message."""
        present = self.present()
        return ", ".join(f"{role} {role_id}" for role, role_id in self._places if (role, role_id) not in present)

    def by_kind(self) -> dict[str, list[int]]:
        """Return the kinds of faults that can be dealt now -> whom they may hit."""
        present = self.present()
        found = {kind: [pid for (role, _), pid in present.items() if role == role_of(kind)] for kind in self._kinds}
        return {kind: pids for kind, pids in found.items() if pids}

    def hurt(self, rng: random.Random) -> str:
        """Deal a drawn fault to a drawn process, and return its kind; waits where everybody is being replaced."""
        pids = self._job.until(self.by_kind, "a process that can be hit had registered", SUCCESSOR_SECS)
        kind = rng.choices([*pids], [self._kinds[kind] for kind in pids])[0]
        pid = rng.choice(pids[kind])
        end = os.pidfd_open(pid)  # many processes come and go: the number may be another's by the end of the run
        self._ends.append(end)
        signal.pidfd_send_signal(end, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        self.hit.add(pid)
        return kind

    def all_gone(self) -> bool:
        """Return whether every process that was hit has ended; to be asked once, when the job is over."""
        ended, _, _ = select.select(self._ends, [], [], 0.0)
        for end in self._ends:
            os.close(end)
        return len(ended) == len(self._ends)


def role_of(kind: str) -> str:
    """Return the role that a kind of fault hits."""
    return "worker" if kind == "stop" else kind


def unexplained(job: Job, hit: Iterable[int]) -> list[str]:
    """Return the losses that no fault explains, of roles that went by themselves or were given up."""
    lost = (event for event in job.events("role_lost") if event["pid"] not in hit)
    return [f"{event['role']} {event['id']}: {event['reason']}" for event in lost]


def everybody_is_hurt_at_random(
    workdir: Path, *, plan: str, faults: int, seed: int, servers: int = 1, units: int = 20000, unit_secs: float = 0.02
) -> Counter[str]:
    """Workers killed and stopped, servers and the chief killed: the run ends by itself; returns how often each was."""
    rng = random.Random(seed)
    hurt: Counter[str] = Counter()
    more = (*SOON, f"--servers={servers}", "--set=model.copies=4", "--checkpoint_secs=2")
    with tally(workdir, *more, plan=plan, units=units, workers=WORKERS, unit_secs=unit_secs) as job:
        victims = Victims(job, KINDS, servers)
        job.until_units(FIRST_UNITS)
        for index in range(faults):
            close = index > 0 and rng.random() < CLOSE_SHARE
            before, left = job.units(), faults - index
            # Planned anew each time: units that were applied while the chief was away are told of all at once.
            share = rng.uniform(0.5, 1.5) if left > 1 else rng.random()
            at = before + round(share * max(0.0, LAST_SHARE * units - before) / left)
            try:
                job.pause(rng.uniform(0.0, CLOSE_SECS)) if close else job.until_units(at)
                hurt[victims.hurt(rng)] += 1
            except AssertionError as error:
                raise AssertionError(
                    f"after {index} of {faults} faults ({dict(hurt)}) no further one could land; who has no "
                    f"process now: {victims.missing() or 'nobody'}; lost beside the faults: "
                    f"{unexplained(job, victims.hit)}"
                ) from error
        assert job.wait(secs=900.0) == 0, job.output + job.logs()
        assert sum(hurt.values()) == len(victims.hit) == faults
        assert_exactly_once(job.summary())
        phase_numbers = [event["phase"] for event in job.events("phase_entered")]
        assert phase_numbers == sorted(set(phase_numbers)), f"a phase was handed out twice: {phase_numbers}"
        assert victims.all_gone(), "a process that was hit outlived the run"
        assert job.tracebacks() == []
        print(f"lost beside the faults: {unexplained(job, victims.hit)}")
    return hurt


def main(plan: str, servers: str = "1", seed: str = "40", faults: str = "40", units: str = "20000") -> None:
    """Run one, and print what landed and what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        started = SYSTEM_CLOCK.monotonic()
        hurt = everybody_is_hurt_at_random(
            Path(folder) / "run", plan=plan, faults=int(faults), seed=int(seed), servers=int(servers), units=int(units)
        )
        print(f"{plan}, {servers} server(s), seed {seed}: {dict(hurt)}, {SYSTEM_CLOCK.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
