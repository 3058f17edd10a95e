"""The schedules are shown able to find bugs: each one planted here is found within a budget of seeds."""

from __future__ import annotations

import re

import pytest

from hybridsync.chief.leases import Leases
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.membership import Membership
from hybridsync.chief.run_state import RunState
from hybridsync.core.errors import StalePhase
from hybridsync.core.units import UnitSet
from hybridsync.lab.simulator.fake_io import Workdir
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulated_snapshots import SimulatedSnapshots
from hybridsync.lab.testing.schedules import PLANS, plans_of
from hybridsync.phases.recovery import Recovery
from hybridsync.protocols import REGISTRY
from hybridsync.protocols import asp as asp_module
from hybridsync.protocols.base import Apply, Release
from hybridsync.protocols.modes import SERVER
from hybridsync.protocols.ssp import Gate
from hybridsync.protocols.staleness import Bounded
from hybridsync.server import sequencer as sequencer_module
from hybridsync.server.sequencer import Sequencer
from hybridsync.server.unit_counts import Count, UnitOutcomes
from hybridsync.workdir.opening import PhaseIdsInMemory
from hybridsync.worker.local_engine import LocalEngine
from tests.lab.testing.drawn_schedules import try_seed

BUDGET = 200
"""Seeds in which a planted bug has to be found: about four seconds."""


def drops_the_applied_set_from_a_snapshot(patch):
    """A server takes over a state, and not which units are in it."""
    original = Sequencer.enter

    def enter(self, phase):
        original(self, phase)
        self.count.ends = UnitOutcomes(phase.end_units + len(self.count.dropped), (), phase.dropped)

    patch.setattr(Sequencer, "enter", enter)


def acknowledges_before_it_applies(patch):
    """The reply goes out; the update follows with the next push."""
    waiting = []

    def on_push(self, arrival):
        late = [Apply((push_id,), lr_factor=1.0) for push_id in waiting]
        waiting[:] = [arrival.push_id]
        return [*late, Release(arrival.push_id)]

    patch.setattr(asp_module._ApplyOnArrival, "__init__", lambda self: waiting.clear(), raising=False)
    patch.setattr(asp_module._ApplyOnArrival, "on_push", on_push)


def skips_the_phase_check(patch):
    """The server admits every phase."""
    patch.setattr(sequencer_module, "check_phase_id", lambda phase_id, phase: phase)


def forgets_the_fence(patch):
    """A lost process may still push."""
    patch.setattr(Sequencer, "fence", lambda self, worker, incarnation: iter(()))


def looks_at_no_incarnation_at_the_server(patch):
    """A push is taken whichever process of a worker it comes from."""

    def check_current(push, is_open, newest):
        if not is_open:
            raise StalePhase("closed")

    patch.setattr(sequencer_module, "check_current", check_current)


def looks_at_no_incarnation_at_the_chief(patch):
    """A process whose place was taken speaks for its successor."""
    original = Membership.beat

    def beat(self, role_id, incarnation, now):
        member = self._members.get(role_id)
        return original(self, role_id, member.incarnation if member else incarnation, now)

    patch.setattr(Membership, "beat", beat)


def reuses_a_lease(patch):
    """Units go out twice, and who pushes them second is not recognised."""
    original, given = Ledger.lease, {}

    def lease(self, holder, count, limit, had):
        earlier = given.pop(id(self), None)
        ranges = earlier if earlier and count else original(self, holder, count, limit, had)
        if not earlier and ranges:
            given[id(self)] = ranges
        return ranges

    patch.setattr(Ledger, "lease", lease)
    applies_a_duplicate(patch)


def releases_leases_twice(patch):
    """What a holder gave back is given back once more."""
    original, gone = Ledger.release, {}

    def release(self, holder):
        for start, stop in gone.pop((id(self), holder), ()):
            self._waiting.add_range(start, stop)
        gone[id(self), holder] = tuple(
            (start, stop)
            for start, stop, who in zip(self._leased._starts, self._leased._stops, self._leased._owners, strict=True)
            if who == holder
        )
        return original(self, holder)

    patch.setattr(Ledger, "release", release)


def reuses_a_phase_number(patch):
    """Numbers are not durable: a chief that follows another one counts from the last commit's."""
    original = Workdir.open

    def open_again(self, *args, **options):
        self.phase_ids = PhaseIdsInMemory()
        return original(self, *args, **options)

    patch.setattr(Workdir, "open", open_again)


def applies_a_duplicate(patch):
    """A repeated push is applied again."""
    patch.setattr(Count, "is_settled", lambda self, unit: False)


def loses_rolled_back_units(patch):
    """What was lost with a state is written off."""
    original = Ledger.restore

    def restore(self, applied, dropped):
        lost = self._applied.difference(UnitSet(applied)).difference(UnitSet(dropped))
        told = original(self, applied, dropped)
        for unit in lost:
            self.record_dropped(unit)
        return told

    patch.setattr(Ledger, "restore", restore)


def counts_what_was_lost_as_applied(patch):
    """The run goes on from an older state, and the ledger does not hear of it."""
    patch.setattr(RunState, "restore", lambda self, snapshot, rolled_back: 0)


def says_nothing_of_what_was_rolled_back(patch):
    """Units are done again, and the accounting does not tell."""
    original = RunState.restore
    patch.setattr(RunState, "restore", lambda self, snapshot, rolled_back: original(self, snapshot, rolled_back=False))


def goes_on_from_the_last_commit(patch):
    """Nobody is asked for the newest state."""
    patch.setattr(Recovery, "_from_servers", lambda self, phase: None)
    patch.setattr(Recovery, "_from_workers", lambda self, *args: None)


def hands_over_another_state_unchecked(patch):
    """A holder answers with the state it captured before, and nobody compares fingerprints."""
    original = SimulatedSnapshots.store

    def keep(self, state, phase_id, account):
        before = self._kept
        snapshot = original(self, state, phase_id, account)
        if before is not None:
            self._kept = snapshot, before[1]
        return snapshot

    patch.setattr(SimulatedSnapshots, "store", keep)
    patch.setattr(SimulatedCluster, "fetch", lambda self, phase: self.holder(phase.source).read(phase.snapshot_id))


def keeps_a_dead_workers_units(patch):
    """The ledger does not take back what a lost worker had."""
    patch.setattr(Leases, "release_worker", lambda self, worker: self._streams.pop(f"worker {worker}", None))


def leases_beyond_the_workload(patch):
    """More units go out than may end up applied."""
    original = Ledger.room
    patch.setattr(Ledger, "room", lambda self, limit: original(self, limit + 3))


def stays_open_after_the_final_capture(patch):
    """Pushes that come behind a final snapshot are applied: they are lost with the next phase."""
    patch.setattr(Sequencer, "close", lambda self: None)


def commits_the_wrong_ledger(patch):
    """A commit says that fewer units were applied than its state holds."""
    original = Ledger.to_json

    def to_json(self, applied, dropped):
        told = original(self, applied, dropped)
        told["applied"] = told["applied"][:-1]
        return told

    patch.setattr(Ledger, "to_json", to_json)


BUGS = [
    # bug, what finds it
    (drops_the_applied_set_from_a_snapshot, "lacks"),
    (acknowledges_before_it_applies, "acknowledged, but nobody applied it"),
    (skips_the_phase_check, "answers worker . of phase"),
    (forgets_the_fence, "is fenced"),
    (looks_at_no_incarnation_at_the_server, "is fenced"),
    (looks_at_no_incarnation_at_the_chief, "has taken its place|or later is expected"),
    (reuses_a_lease, "in that state already"),
    (applies_a_duplicate, "in that state already"),
    (releases_leases_twice, r"ledger: issued \d+ !="),
    (keeps_a_dead_workers_units, "but are gone"),
    (leases_beyond_the_workload, "units were applied, the workload is"),
    (reuses_a_phase_number, "another phase's|already in use"),
    (loses_rolled_back_units, "nothing is wrong with them"),
    (counts_what_was_lost_as_applied, "has not ended|the ledger counts"),
    (says_nothing_of_what_was_rolled_back, "are said to have been rolled back"),
    (goes_on_from_the_last_commit, "begins without units"),
    (hands_over_another_state_unchecked, "is said to hold|applied other than once"),
    (stays_open_after_the_final_capture, "was stopped without units"),
    (commits_the_wrong_ledger, "is said to hold"),
]


SELDOM = {forgets_the_fence: ("asp",)}
"""Bugs that are seldom met where plans are drawn, and the plans in which they are looked for."""


def takes_a_push_however_stale(patch):
    """Nobody counts the updates since a gradient's parameters."""
    patch.setattr(Bounded, "on_push", lambda self, arrival: self._rule.on_push(arrival))


def waits_for_nobody(patch):
    """Who is ahead goes on, and what that makes of its pushes is not looked at."""
    patch.setattr(Gate, "may_go_on", lambda self, worker, slowest: True)
    takes_a_push_however_stale(patch)


def goes_on_after_idleness(patch):
    """Who was idle computes on what it had before, and nobody looks at what that makes of its push."""

    def tell_idle(self):
        yield from real(self)
        self._was_idle = False

    real = LocalEngine._tell_idle
    patch.setattr(LocalEngine, "_tell_idle", tell_idle)
    takes_a_push_however_stale(patch)


TOO_STALE = [
    *((takes_a_push_however_stale, spec, 0) for spec in ("backup", "bsp_server", "gba")),
    (takes_a_push_however_stale, "hsp(stale=1)", 100),  # seldom
    *((goes_on_after_idleness, spec, 0) for spec in ("localsgd", "diloco")),
    (takes_a_push_however_stale, "asp(staleness_rule=cut)", 0),
    *((waits_for_nobody, spec, 0) for spec in ("ssp(staleness=0)", "dssp(lower=0,range=1)", "psplus(staleness=0)")),
]


def find(bug, plans=PLANS, first=0):
    """Return the first seed, from `first` on, in which a planted bug is found, and what found it."""
    for seed in range(first, first + BUDGET):
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            try:
                try_seed(seed, plans)
            except AssertionError as violation:
                print(f"{bug.__name__}: seed {seed}: {violation}")
                return seed, str(violation)
    pytest.fail(f"{bug.__name__} was not found in {BUDGET} seeds")


@pytest.mark.parametrize(("bug", "finding"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_bug_is_found_within_the_budget(bug, finding):
    plans = SELDOM.get(bug, PLANS)
    seed, found = find(bug, plans)
    assert re.search(finding, found), found
    try_seed(seed, plans)


@pytest.mark.parametrize(("bug", "spec", "first"), TOO_STALE)
def test_every_bound_on_staleness_is_looked_at(bug, spec, first):
    plans = plans_of(spec)
    seed, found = find(bug, plans, first)
    assert re.search(r"at staleness \d+; .* allows \d+", found), found
    try_seed(seed, plans)


def test_no_protocol_with_a_bound_on_staleness_is_left_out():
    served = {name for name, cls in REGISTRY.items() if cls.mode is SERVER}
    assert {spec.partition("(")[0] for _, spec, _ in TOO_STALE} == served
