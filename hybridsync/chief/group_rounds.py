"""One group phase at the chief: who averages with whom, what every replica has applied, who is waited for. Pure.

The generator's groups get their numbers here, in one order for all members, along with the units that their members
have reported: at a full synchronisation every member has reported all its units, so the units of the one state are
known.
"""

from __future__ import annotations

from dataclasses import replace

from hybridsync.core.units import UnitSet
from hybridsync.interfaces.messages import AppliedUnit, GroupReply, GroupRequest, GroupUpdate
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.group_generators import Group, GroupRule


class GroupRounds:
    """The group rounds of one phase.

    Args:
      phase: the phase; its protocol averages replicas in groups.
      rule: the group generator of the phase's protocol.
    """

    def __init__(self, phase: Phase, rule: GroupRule) -> None:
        self._rule = rule
        for worker in phase.members:  # all of them come, or the phase breaks
            rule.on_join(worker)
        self._slots = {worker: slot for slot, worker in enumerate(phase.members)}
        self._applied, self._dropped = UnitSet(phase.applied), UnitSet(phase.dropped)
        self._num_averaged = len(self._applied)  # without those of workers that still wait or serve
        self._sequence = phase.sequence
        self._arrived: dict[int, GroupRequest] = {}
        self._serving: dict[int, GroupRequest] = {}
        self._answers: dict[int, tuple[int, GroupReply]] = {}
        self._served: dict[int, tuple[tuple[int, int], GroupReply]] = {}
        self._told: dict[int, list[AppliedUnit]] = {}  # since the worker's last group started
        self._updates: list[GroupUpdate] = []
        self._averaging: set[int] = set()
        self._wanted = False

    @classmethod
    def of(cls, phase: Phase) -> GroupRounds | None:
        """Return the group rounds of `phase`; None where its mode has none."""
        if not phase.mode.has_group_rounds:
            return None
        return cls(phase, phase.protocol.group_rule(phase.members, phase.id.number))

    # --- what workers do; each method returns whether a waiting worker may have an answer now ---

    def join_group(self, request: GroupRequest, now: float) -> bool:
        """Take in a worker that has come to a group round, or serves until then; a repeat changes nothing."""
        worker, rule = request.worker, self._rule
        self._averaging.discard(worker)
        if self._is_known(request):
            return self._start(rule.on_time(now))
        self._take_units(request)
        if request.serves:
            self._serving[worker] = request
            return self._start(rule.on_serving(worker, now))
        self._arrived[worker] = request
        served = self._serving.pop(worker, None) is not None
        started = rule.on_arrival(worker, now, last=request.last, average_secs=request.average_secs)
        return self._start(started) or served

    def answer(self, request: GroupRequest) -> GroupReply | None:
        """Return the worker's group, None while it has to wait."""
        if request.serves:
            served, reply = self._served.get(request.worker, ((0, 0), None))
            if served == (request.number, request.serves):
                return reply
            return GroupReply((), over=True) if self._has_come(request) else None
        number, reply = self._answers.get(request.worker, (0, None))
        return reply if number == request.number else None

    def waiting(self, worker: int) -> GroupReply:
        """Return what a worker is told that has to wait longer."""
        return GroupReply((), self._rule.waits_for().get(worker, ()))

    def excuse_worker(self, worker: int, now: float) -> bool:
        """Let nobody wait for a worker that has no unit and gets none."""
        self._averaging.discard(worker)
        return self._start(self._rule.on_idle(worker, now))

    def end_average(self, worker: int) -> None:
        """Note that a worker speaks, so its last average is behind it."""
        self._averaging.discard(worker)

    @property
    def due(self) -> float:
        """Time at which somebody who waits is to ask again, clock seconds; infinite where nothing starts by itself."""
        return self._rule.due

    # --- full synchronisations ---

    def synchronise(self, now: float) -> bool:
        """Call everybody to the next group round."""
        self._wanted = True
        return self._start(self._rule.synchronise(now))

    @property
    def calls_everybody(self) -> bool:
        """Return whether workers without units have to come, too."""
        return self._rule.calls_everybody

    def is_synchronised(self, worker: int) -> bool:
        """Return whether the synchronisation that was asked for has been, and `worker` has gone on from it."""
        return not self._wanted and worker not in self._averaging

    # --- inside ---

    def _has_come(self, request: GroupRequest) -> bool:
        """Return whether the worker has come itself to the group round of that number, or to a later one."""
        arrived = self._arrived.get(request.worker)
        newest = arrived.number if arrived else self._answers.get(request.worker, (0, None))[0]
        return newest >= request.number

    def _is_known(self, request: GroupRequest) -> bool:
        worker, (served, _) = request.worker, self._served.get(request.worker, ((0, 0), None))
        if not request.serves:
            return worker in self._arrived or self._has_come(request)
        serving = self._serving.get(worker)
        newest = (serving.number, serving.serves) if serving else served
        return self._has_come(request) or (request.number, request.serves) <= newest

    def _take_units(self, request: GroupRequest) -> None:
        """Note a worker's report; the worker repeats what it is not sure to have reported."""
        news = [applied for applied in request.applied if applied.unit not in self._applied]
        self._told.setdefault(request.worker, []).extend(news)
        self._applied.update((unit, unit + 1) for unit, _ in news)
        self._dropped.update((unit, unit + 1) for unit, _ in request.dropped)

    def _start(self, groups: list[Group]) -> bool:
        for group in groups:
            self._sequence += 1
            requests = [
                self._arrived.pop(worker) if worker in self._arrived else self._serving.pop(worker)
                for worker in group.members
            ]
            told = {worker: self._told.pop(worker, []) for worker in group.members}
            self._num_averaged += sum(map(len, told.values()))
            optimizer = (group.is_full_sync or self._rule.averages_optimizer) and len(group.members) > 1
            if any(request.logs for request in requests):
                self._updates.append(self._update(told, optimizer))
            reply = GroupReply(group.members, (), self._sequence, self._num_averaged, optimizer)
            if group.is_full_sync:
                reply = self._full_sync(reply)
            for request in requests:
                worker, own = request.worker, replace(reply, again=True) if request.worker in group.again else reply
                if request.serves:
                    self._served[worker] = (request.number, request.serves), own
                else:
                    self._answers[worker] = request.number, own
        return bool(groups)

    def _full_sync(self, reply: GroupReply) -> GroupReply:
        self._wanted, self._averaging = False, set(reply.members)
        updates, self._updates = tuple(self._updates), []
        applied, dropped = self._applied.ranges(), self._dropped.ranges()
        return GroupReply(
            reply.members,
            (),
            reply.sequence,
            units=reply.units,
            optimizer=reply.optimizer,
            is_full_sync=True,
            applied=applied,
            dropped=dropped,
            updates=updates,
        )

    def _update(self, told: dict[int, list[AppliedUnit]], optimizer: bool) -> GroupUpdate:
        own = [
            (self._slots[worker], *applied)
            for worker in sorted(told, key=self._slots.__getitem__)
            for applied in told[worker]
        ]
        slots, units, bases = (tuple(each) for each in zip(*own, strict=True)) if own else ((), (), ())
        return GroupUpdate(
            self._sequence,
            units,
            slots,
            bases=bases,
            group=tuple(self._slots[worker] for worker in told),
            optimizer=optimizer,
        )
