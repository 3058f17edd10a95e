"""Checks a message to a parameter server by itself: before any of it reaches the rule or the state. Pure.

>>> from hybridsync.core.plan import PhaseId
>>> served(Phase(PhaseId(3, 7), "asp", (0, 1), 0, 10, (), (), 0, "", 1, "", (), "start")).name
'asp'
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridsync.core.errors import InvalidMessage, PlanError, StaleIncarnation, StalePhase, UnknownRole
from hybridsync.core.plan import MOST_ENTRIES, NO_PHASE, PhaseId
from hybridsync.core.units import MOST_UNITS
from hybridsync.interfaces.messages import Push, Update
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.base import Protocol
from hybridsync.protocols.modes import SERVER

MOST_FACTOR = 1e30
"""Above every rate and weight: in single precision a product of two gradients with it is still finite."""


def served(phase: Phase, workload: int = MOST_UNITS) -> Protocol:
    """Return the protocol of a phase that a server of a run with this workload can serve.

    Raises:
      PlanError: its protocol is unknown or has no server rule.
      InvalidMessage: it has no members, or no phase of such a run can be so (see `Phase.check`).
    """
    protocol = phase.protocol
    if not protocol.mode.is_served:
        raise PlanError(
            f"phase {phase.id} runs {phase.spec!r} in the mode {protocol.mode.name!r}, this is a role of the "
            f"mode {SERVER.name!r}; enter it at the workers"
        )
    if not phase.members:
        raise InvalidMessage(f"phase {phase.id} runs {phase.spec!r} with 0 members; it needs at least 1")
    phase.check(workload)
    return protocol


def check_block(push: Push, phase: Phase, limit: int) -> None:
    """Refuse a part of a contribution that no worker of the phase can stage at a server that is not the primary.

    Args:
      push: push to which the part belongs.
      phase: phase that is served.
      limit: upper bound of the units that the run may issue; only the primary knows more.

    Raises:
      UnknownRole: the worker takes no part in the phase.
      InvalidMessage: the push names no unit, one twice, or one that the run does not have.
    """
    check_member(push, phase)
    if not push.units or len(set(push.units)) < len(push.units) or not 0 <= min(push.units) <= max(push.units) < limit:
        raise InvalidMessage(
            f"worker {push.worker} stages a part of a push with {len(push.units)} units {push.units[:9]}; push at "
            f"least 1, each once, from 0 to {limit - 1}"
        )


def check_updates(updates: Sequence[Update], sequence: int) -> tuple[Update, ...]:
    """Return the updates that a server at `sequence` has not applied yet; all of them can be.

    Raises:
      InvalidMessage: one has no push, the same push as another, a rate or weights that are none.
    """
    news = tuple(update for update in updates if update.sequence > sequence)
    pushes = [push for update in news for push in update.pushes]
    if len(set(pushes)) < len(pushes):
        raise InvalidMessage(f"{len(pushes)} pushes are to be applied, {len(pushes) - len(set(pushes))} of them twice")
    for update in news:
        if not update.pushes or len(update.weights) not in (0, len(update.pushes)):
            raise InvalidMessage(
                f"update {update.sequence} has {len(update.pushes)} pushes and {len(update.weights)} weights; give at "
                "least 1 push, and a weight for each or none"
            )
        numbers = (update.rate, *update.weights)
        if not all(0 <= number <= MOST_FACTOR for number in numbers) or (update.weights and not sum(update.weights)):
            raise InvalidMessage(
                f"update {update.sequence} has the rate {update.rate:g} and the weights {update.weights[:9]}; give "
                f"numbers from 0 to {MOST_FACTOR:g}, and not all weights 0"
            )
    return news


def check_place(worker: int) -> None:
    """Refuse a worker's number that no run has: what is kept of workers is kept by number.

    Raises:
      UnknownRole: no run has such a number.
    """
    if not 0 <= worker < MOST_ENTRIES:
        raise UnknownRole(f"there is no worker {worker}: workers are numbered from 0 to {MOST_ENTRIES - 1}")


def check_member(push: Push, phase: Phase) -> None:
    """Refuse a worker that has no place in the phase.

    Raises:
      UnknownRole: the worker is not among the members.
    """
    if push.worker not in phase.members:
        raise UnknownRole(
            f"worker {push.worker} takes no part in phase {phase.id}, its members are "
            f"{', '.join(map(str, sorted(phase.members)))}; register with the chief first"
        )


def check_push(push: Push, phase: Phase, sequence: int, num_dropped: int) -> None:
    """Refuse a push that no worker can have been asked for.

    Args:
      push: the push, as it arrived.
      phase: phase that is served.
      sequence: sequence of the newest parameters.
      num_dropped: units finally dropped in the whole run: as many fresh ones may follow the phase's last.

    Raises:
      InvalidMessage: it names no unit, one twice or one that the phase cannot issue, or parameters that do not exist.
    """
    units, limit = push.units, phase.end_units + num_dropped
    if not units:
        raise InvalidMessage(f"worker {push.worker} pushes 0 units; a push offers the gradient of at least 1")
    if len(units) > 1 and len(set(units)) < len(units):
        twice = next(unit for unit in units if units.count(unit) > 1)
        raise InvalidMessage(
            f"worker {push.worker} pushes unit {twice} in {units.count(twice)} places at once; a push is a set: "
            "name each unit once"
        )
    for unit in units:
        if not 0 <= unit < limit:
            raise InvalidMessage(
                f"worker {push.worker} pushes unit {unit}, but phase {phase.id} issues units 0 to {limit - 1}; "
                "push leased units only"
            )
    if not 0 <= push.base <= sequence:
        raise InvalidMessage(
            f"worker {push.worker} pushes a gradient on sequence {push.base}, but this server has sequences 0 to "
            f"{sequence}; name the one that was pulled"
        )
    if not 0 <= push.newest <= sequence:
        raise InvalidMessage(
            f"worker {push.worker} pushes knowing sequence {push.newest}, but this server has sequences 0 to "
            f"{sequence}; name the newest one that was pulled"
        )


def check_phase_id(phase_id: PhaseId, phase: Phase | None) -> Phase:
    """Return the phase that a server is in, if that is `phase_id`.

    Raises:
      StalePhase: the server is in a different phase, or in none.
    """
    if phase is None or phase.id != phase_id:
        named, held = phase_id.beside(phase.id if phase else NO_PHASE)
        raise StalePhase(f"phase {named} was named, but the server is in phase {held}; ask the chief again")
    return phase


def check_current(push: Push, is_open: bool, newest: int) -> None:
    """Refuse a push that comes too late, or from a process whose place was taken.

    Args:
      push: push of the phase that the server is in.
      is_open: whether that phase still takes pushes.
      newest: lowest incarnation of the worker whose calls are accepted.

    Raises:
      StalePhase, StaleIncarnation: the caller is out of date.
    """
    if not is_open:
        raise StalePhase(f"phase {push.phase_id} has ended; ask the chief for the next phase")
    if push.incarnation < newest:
        raise StaleIncarnation(
            f"worker {push.worker} speaks as incarnation {push.incarnation}, but {newest} or later is expected; "
            "this process ends"
        )
