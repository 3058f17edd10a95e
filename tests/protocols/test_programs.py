"""What each protocol does, as golden transcripts: a worker's effects, and the rule's actions."""

from __future__ import annotations

import pytest

from hybridsync import protocols
from hybridsync.core.errors import PhaseRevoked
from hybridsync.protocols.base import (
    Apply,
    Arrival,
    Average,
    Await,
    Begin,
    Combine,
    Compute,
    Difference,
    Grant,
    JoinRound,
    Lease,
    Pull,
    PushPull,
    Ready,
    Release,
    Step,
    Version,
)
from hybridsync.protocols.modes import GROUP, SERVER

STREAM = [(7,), (8,), ()]  # a last short step leaves one member idle
STORY = "0 1 2 3 0 1 2 0 1 0 1 0 1 0 1 0 0 3 leave:3 0 0 1 join:3 2 3 idle:1 0 2 3 0 last"
RESULTS = {  # of the others None
    Pull: "version",
    Compute: "gradient",
    Average: "mean",
    PushPull: "version",
    Step: "stepped",
    Difference: "difference",
    Combine: "combined",
    Begin: "begun",
    Await: "version",
    JoinRound: "group",
}
READS_VERSIONS = ("hsp",)


def leased(protocol, number, count):
    """Return what the lease of that number gives."""
    if protocol.mode is not SERVER:
        return STREAM[number] if number < len(STREAM) else None
    units = sum(STREAM, ())
    return units[number * count : (number + 1) * count] or None


def play(protocol, events: int | None = None):
    """Yield each effect of a worker's program; the program is revoked after `events` of them."""
    program = protocol.worker_program(4)
    leases, result, count = 0, None, 0
    while True:
        try:
            effect = program.send(result)
        except StopIteration:
            return
        yield effect
        count += 1
        if count == events:
            with pytest.raises(PhaseRevoked, match="switch"):
                program.throw(PhaseRevoked("switch"))
            assert list(program) == []
            return
        if isinstance(effect, Lease):
            result = leased(protocol, leases, effect.count)
            leases += 1
        else:
            handle = RESULTS.get(type(effect))
            result = f"{handle} {count}" if handle else None
            if (protocol.local_updates or protocol.name in READS_VERSIONS) and handle == "version":
                # what is read of it: others were twice as fast
                result = Version(3 * count, result, own=count, fastest=2 * count)


class Transcript:
    """What a rule does in the course of a story; a worker that is not answered does not push again."""

    def __init__(self, protocol):
        self.rule, self.asks = protocol.server_rule((0, 1, 2, 3)), any(type(e) is Ready for e in play(protocol))
        self.version, self.bases, self.waiting, self.owners = 0, dict.fromkeys(range(4), 0), set(), {}
        self.told = dict.fromkeys(range(4), 0)
        self.lines = []

    def tell(self):
        for number, event in enumerate(STORY.split(), start=1):
            what, _, worker = event.partition(":")
            if what.isdigit():
                if int(what) not in self.waiting:
                    self.waiting.add(int(what))
                    self.push(int(what), number)
            elif worker:
                self.bases[int(worker)] = self.version
                self.waiting.discard(int(worker))
                self.carry_out(f"{what} of worker {worker}", getattr(self.rule, f"on_{what}")(int(worker)), number)
            else:
                self.carry_out("no other push can come", self.rule.on_last(), number)
        return self.lines

    def push(self, worker, number):
        if self.asks:
            self.carry_out(f"worker {worker} is ready", self.rule.on_ready(worker, number / 10), number)
        else:
            self.transfer(worker, number, number / 10)

    def transfer(self, worker, number, at):
        arrival = Arrival(len(self.owners) + 1, worker, (number,), self.version - self.bases[worker], at)
        self.owners[arrival.push_id] = worker
        what = f"worker {worker} pushes {arrival.push_id}, {arrival.staleness} updates old"
        self.carry_out(what, self.rule.on_push(arrival), number)

    def carry_out(self, what, actions, number):
        self.lines.append(f"{what} -> {', '.join(map(str, actions)) or 'nothing'}")
        for action in actions:
            self.version += isinstance(action, Apply)
            if isinstance(action, Release):
                self.bases[self.owners[action.push]] = self.version
                self.waiting.discard(self.owners[action.push])
        for action in actions:
            if isinstance(action, Grant):
                self.transfer(action.worker, number, number / 10 + 0.05)
            elif isinstance(action, Release) and self.asks and self.told[self.owners[action.push]] < self.version:
                worker = self.owners[action.push]
                self.told[worker] = self.version
                received = self.rule.on_received(worker, number / 10 + 0.02)
                self.carry_out(f"worker {worker} has received", received, number)


def group_rounds(rule):
    """Yield what happens to four workers, and the groups that start by it."""
    for worker in range(4):
        rule.on_join(worker)
    for at, worker in enumerate((0, 1, 2, 3, 1, 0)):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets", rule.on_arrival(worker, float(at))
    yield "worker 3 is idle", rule.on_idle(3, 6.0)
    yield "all are called", rule.synchronise(7.0)
    for worker in range(4):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets", rule.on_arrival(worker, 8.0)
    yield "worker 2 meets", rule.on_arrival(2, 9.0)
    for worker in (0, 1):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets for the last time", rule.on_arrival(worker, 10.0, last=True)
    yield "worker 3 leaves", rule.on_leave(3, 11.0)
    for worker in (0, 1, 2):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets for the last time", rule.on_arrival(worker, 12.0, last=True)


@pytest.mark.parametrize("name", [*sorted(protocols.REGISTRY), "hsp(stale=1)"])
def test_a_protocol_plays_as_in_its_golden_transcript(name, golden):
    protocol = protocols.parse(name)
    lines = [f"# {name}: a worker of four, with units 7 and 8"] + [str(effect) for effect in play(protocol)]
    if protocol.mode is SERVER:
        lines.append(f"# {name}: the server's rule, a push or an event each tenth of a second")
        lines += Transcript(protocol).tell()
    if protocol.mode is GROUP:
        lines.append(f"# {name}: the group generator")
        lines += [f"{what} -> {started}" for what, started in group_rounds(protocol.group_rule((0, 1, 2, 3), 0))]
    golden(f"protocol_{name}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
def test_a_revocation_at_any_yield_ends_the_program_uncaught(name):
    protocol = protocols.parse(name)
    total = len(list(play(protocol)))
    assert total > 4
    for events in range(1, total + 1):
        assert len(list(play(protocol, events))) == events


def test_a_worker_meets_its_group_every_so_many_units_and_wherever_everybody_is_called():
    """Two units, then a lease that is empty because everybody is called."""
    effects = [type(effect).__name__ for effect in play(protocols.parse("preduce(every=3)"))]
    unit, group_round = ["Lease", "Compute", "LocalUpdate"], ["JoinRound", "AverageReplicas"]
    assert effects == [*unit, *unit, "Lease", *group_round, "Lease", *group_round]
    effects = [type(effect).__name__ for effect in play(protocols.parse("preduce(every=2)"))]
    assert effects == [*unit, *unit, *group_round, "Lease", *group_round, "Lease", *group_round]
