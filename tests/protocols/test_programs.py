"""What each protocol does, as golden transcripts: a worker's effects, and the rule's actions."""

from __future__ import annotations

import pytest

from hybridsync import protocols
from hybridsync.errors import PhaseRevoked
from hybridsync.protocols.base import (
    Arrival,
    Average,
    Compute,
    Lease,
    LocalUpdate,
    Meet,
    Mix,
    Path,
    Pull,
    PushPull,
)

STREAM = [(7,), (8,), ()]  # a last short step leaves one member idle
ARRIVALS = [(0, (7,), 0), (1, (8,), 1), (0, (9,), 1), (2, (10,), 3)]
RESULTS = {
    Pull: "parameters",
    Compute: "gradient",
    Average: "mean",
    LocalUpdate: None,
    PushPull: "parameters",
    Meet: "group",
    Mix: None,
}
ENGINE_EFFECTS = {
    Path.SYNC: {Lease, Compute, Average, LocalUpdate},
    Path.SERVER: {Lease, Pull, Compute, PushPull},
    Path.GROUP: {Lease, Compute, LocalUpdate, Meet, Mix},
}


def stream_of(protocol):
    return STREAM[:2] if protocol.path is Path.SERVER else STREAM


def play(protocol, events: int | None = None):
    """Yield each effect of a worker's program; the program is revoked after `events` of them."""
    program = protocol.worker_program(4)
    stream, result, count = list(stream_of(protocol)), None, 0
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
            result = stream.pop(0) if stream else None
        else:
            handle = RESULTS[type(effect)]
            result = f"{handle} {count}" if handle else None


def meetings(rule):
    """Yield what happens to four workers, and the groups that start by it."""
    for worker in range(4):
        rule.on_join(worker)
    for at, worker in enumerate((0, 1, 2, 3, 1, 0)):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets", rule.on_meet(worker, float(at))
    yield "worker 3 is idle", rule.on_idle(3, 6.0)
    yield "all are called", rule.synchronise(7.0)
    for worker in range(4):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets", rule.on_meet(worker, 8.0)
    yield "worker 2 meets", rule.on_meet(2, 9.0)
    for worker in (0, 1):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets for the last time", rule.on_meet(worker, 10.0, last=True)
    yield "worker 3 leaves", rule.on_leave(3, 11.0)
    for worker in (0, 1, 2):
        if worker not in rule.waits_for():
            yield f"worker {worker} meets for the last time", rule.on_meet(worker, 12.0, last=True)


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
def test_a_protocol_plays_as_in_its_golden_transcript(name, golden):
    protocol = protocols.parse(name)
    lines = [f"# {name}: a worker of four, with units 7 and 8"] + [str(effect) for effect in play(protocol)]
    if protocol.path is Path.SERVER:
        rule = protocol.server_rule((0, 1, 2, 3))
        lines.append(f"# {name}: the server's rule")
        for number, (worker, units, staleness) in enumerate(ARRIVALS, start=1):
            arrival = Arrival(number, worker, units, staleness)
            lines.append(f"{arrival} -> {rule.on_push(arrival)}")
        lines.append(f"worker 3 leaves -> {rule.on_leave(3)}")
        lines.append(f"worker 4 joins -> {rule.on_join(4)}")
    if protocol.path is Path.GROUP:
        lines.append(f"# {name}: the group generator")
        lines += [f"{what} -> {started}" for what, started in meetings(protocol.group_rule((0, 1, 2, 3), 0))]
    golden(f"protocol_{name}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
def test_a_program_speaks_its_paths_vocabulary_only(name):
    protocol = protocols.parse(name)
    assert {type(effect) for effect in play(protocol)} <= ENGINE_EFFECTS[protocol.path]


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
def test_a_revocation_at_any_yield_ends_the_program_uncaught(name):
    protocol = protocols.parse(name)
    total = len(list(play(protocol)))
    assert total > 4
    for events in range(1, total + 1):
        assert len(list(play(protocol, events))) == events
