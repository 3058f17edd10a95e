"""Checks a message to the chief by itself: before it is let in and before the ledger hears of it. Pure.

>>> check_role("worker", 4, num_workers=4, num_servers=1)
Traceback (most recent call last):
...
hybridsync.core.errors.UnknownRole: there is no worker 4 in this run: its workers are 0 to 3; start it with
one of these numbers
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hybridsync import __version__
from hybridsync.core.errors import InvalidMessage, SchemaMismatch, UnknownRole, VersionMismatch
from hybridsync.core.plan import MOST_UPDATES, most_issued
from hybridsync.interfaces.messages import GroupRequest, Hello, LeaseRequest, PhaseRequest, RoleEvent, RoleState
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report

MOST_BYTES = 2**44
"""Above what a role can move between two heartbeats; the sum of a run's is a number of 64 bits."""
MOST_HOLD_SECS = 60.0
"""How long a heartbeat may let its answer wait: each occupies a thread of the chief."""


def check_role(role: str, role_id: int, num_workers: int, num_servers: int) -> None:
    """Refuse a role that the run has no place for.

    Raises:
      UnknownRole: another kind of role, or a number outside the run's.
    """
    places = {"worker": num_workers, "server": num_servers}
    if role not in places:
        raise UnknownRole(f"there is no role {role!r}: a chief takes in {' and '.join(map(repr, places))}; name one")
    if not 0 <= role_id < places[role]:
        raise UnknownRole(
            f"there is no {role} {role_id} in this run: its {role}s are 0 to {places[role] - 1}; start it with one of "
            "these numbers"
        )


def check_hello(hello: Hello, num_workers: int, num_servers: int, schema: str, workload: int) -> None:
    """Refuse a process that cannot take part.

    Raises:
      UnknownRole: the run has no place for it.
      VersionMismatch: its package is of another minor series.
      SchemaMismatch: it was built for another training state.
      InvalidMessage: its restart count is out of range.
      PlanError, InvalidMessage: it stands in a phase that no run like this one has (see `check_role_state`).
    """
    check_role(hello.role, hello.id, num_workers, num_servers)
    check_version(f"{hello.role} {hello.id}", hello.version)
    if hello.schema != schema:
        raise SchemaMismatch(
            f"{hello.role} {hello.id} was built for the state schema {hello.schema}, the chief for {schema}; start "
            "every role with the same configuration and version"
        )
    if not 0 <= hello.restart_count < MOST_UPDATES:
        raise InvalidMessage(f"{hello.role} {hello.id} has the restart count {hello.restart_count}; count from 0")
    if hello.role_state is not None:
        check_role_state(f"{hello.role} {hello.id}", hello.role_state, num_workers, workload)


def check_frozen(worker: int, theirs: tuple[str, ...], ours: Mapping[str, str]) -> None:
    """Refuse a worker whose leaves that are not trained differ from the chief's: it would train another model.

    Args:
      worker: number of the worker.
      theirs: digest of each of its leaves, in the order of their paths.
      ours: digest of each leaf of the chief by its path.

    Raises:
      SchemaMismatch: the number of leaves or a digest differs.
    """
    same = "make them from the run's seed, or give each host the same weights and versions"
    if len(theirs) != len(ours):
        raise SchemaMismatch(
            f"worker {worker} has {len(theirs)} leaves that are not trained, the chief {len(ours)}; {same}"
        )
    for (path, digest), other in zip(sorted(ours.items()), theirs, strict=True):
        if other != digest:
            raise SchemaMismatch(
                f"the frozen leaf {path} of worker {worker} has the digest {other}, the chief's {digest}; {same}"
            )


def check_role_state(who: str, role_state: RoleState, num_workers: int, workload: int) -> None:
    """Refuse a place in a run that this run does not have: a restarted chief goes on from what it is told here.

    Raises:
      PlanError: the phase's protocol is unknown.
      InvalidMessage: its members are not workers of the run, each once, its shares do not fit them, more units are
        done than were leased, or no phase of the run has its units (see `Phase.check`).
    """
    phase = role_state.phase
    _ = phase.protocol  # raises here
    members, shares = list(phase.members), list(phase.shares)
    if not members or len(set(members)) < len(members) or not 0 <= min(members) <= max(members) < num_workers:
        raise InvalidMessage(
            f"{who} stands in phase {phase.id} with the members {members}, but this run's workers are 0 to "
            f"{num_workers - 1}, each once; it serves another run: stop it"
        )
    if shares and (len(shares) != len(members) or min(shares) < 0 or not sum(shares)):
        raise InvalidMessage(
            f"{who} stands in phase {phase.id} with the shares {shares} for the members {members}; give each of "
            "them its units of a step, 0 or more and not all 0, or no shares at all"
        )
    phase.check(workload)
    last, limit = max((stop for _, stop in role_state.stream), default=0), most_issued(workload)
    if last > limit:
        raise InvalidMessage(
            f"{who} says that unit {last - 1} was leased to it, but this run's units are below {limit}; it serves "
            "another run: stop it"
        )
    leased = sum(stop - start for start, stop in role_state.stream)
    if not 0 <= role_state.completed <= leased:
        raise InvalidMessage(
            f"{who} says that {role_state.completed} of {leased} units received in phase {phase.id} are done; count "
            "both from 0"
        )


def check_lease(request: LeaseRequest) -> None:
    """Refuse a position that no worker can be at.

    Raises:
      InvalidMessage: more units are done than were received, or a number is negative.
    """
    if not 0 <= request.completed <= request.known:
        raise InvalidMessage(
            f"worker {request.worker} says that {request.completed} of {request.known} units received in phase "
            f"{request.phase_id} are done; count both from 0"
        )
    if request.wanted < 1:
        raise InvalidMessage(
            f"worker {request.worker} takes {request.wanted} units at a time in phase {request.phase_id}; take 1 or "
            "more"
        )


def check_event(event: RoleEvent, num_workers: int, num_servers: int, workload: int) -> None:
    """Refuse a process that no supervisor of this run starts.

    Raises:
      UnknownRole: the run has no place for it.
      InvalidMessage: it ended on a unit that the run does not have.
    """
    if event.role not in ("chief", "supervisor"):  # neither is a place of the run
        check_role(event.role, event.id, num_workers, num_servers)
    if event.unit >= most_issued(workload):
        raise InvalidMessage(
            f"{event.role} {event.id} ended on unit {event.unit}, but this run's units are below "
            f"{most_issued(workload)}; it serves another run: stop it"
        )


def check_rest(request: PhaseRequest) -> None:
    """Refuse a rest that no worker can take.

    Raises:
      InvalidMessage: its seconds are negative, or no number.
    """
    if not 0 <= request.rest_secs < math.inf:
        raise InvalidMessage(
            f"worker {request.worker} says that it rests for {request.rest_secs:g} s; rest for 0 s or more"
        )


def check_group(request: GroupRequest, phase: Phase, limit: int) -> None:
    """Refuse a group round that no worker of the phase can come to.

    Raises:
      UnknownRole: the worker takes no part in the phase.
      InvalidMessage: the phase has no groups, a unit is at or above `limit`, or a number is below the first one.
    """
    if not phase.mode.has_group_rounds:
        raise InvalidMessage(
            f"worker {request.worker} comes to a group round in phase {phase.id}, but {phase.spec} has none; ask for "
            "the next phase"
        )
    if request.worker not in phase.members:
        raise UnknownRole(
            f"worker {request.worker} takes no part in phase {phase.id}: its members are {list(phase.members)}; ask "
            "for the next phase"
        )
    if request.number < 1:
        raise InvalidMessage(f"worker {request.worker} comes to group round {request.number}; count from 1")
    if request.serves < 0 or (request.serves and request.last):
        raise InvalidMessage(
            f"worker {request.worker} serves {request.serves} groups of others{' though it is done' * request.last}; "
            "count from 1, and only while it computes"
        )
    if request.average_secs < 0:
        raise InvalidMessage(
            f"worker {request.worker} says that its last average took {request.average_secs:g} s; measure by a "
            "monotonic clock"
        )
    for unit in (*(unit for unit, _ in request.applied), *(unit for unit, _ in request.dropped)):
        if not 0 <= unit < limit:
            raise InvalidMessage(
                f"worker {request.worker} says that it computed unit {unit}, but this run's units are below {limit}; "
                "it serves another run: stop it"
            )


def check_heartbeat(report: Report) -> None:
    """Refuse a heartbeat with numbers that no role has, whatever phase it is of.

    Raises:
      InvalidMessage: it waits for longer than a heartbeat, or a number is negative.
    """
    who = f"{report.role} {report.id}"
    if not 0 <= report.hold_secs <= MOST_HOLD_SECS:
        raise InvalidMessage(
            f"{who} lets the answer wait for {report.hold_secs:g} s, but an answer waits for {MOST_HOLD_SECS:g} s at "
            "most; ask again instead"
        )
    if report.completed < 0:
        raise InvalidMessage(f"{who} says that {report.completed} units of its stream are done; count from 0")
    numbers = report.sequence, report.num_losses, min(report.staleness, default=0)
    if min(numbers) < 0:
        raise InvalidMessage(
            f"{who} reports update {numbers[0]}, {numbers[1]} losses and staleness from {numbers[2]} on; count all of "
            "them from 0"
        )
    for what, count in (("sent", report.sent_bytes), ("received", report.received_bytes)):
        if not 0 <= count < MOST_BYTES:
            raise InvalidMessage(
                f"{who} says that it has {what} {count} bytes since its last heartbeat; count from 0 to "
                f"{MOST_BYTES - 1}"
            )


def check_report(report: Report, limit: int) -> None:
    """Refuse a heartbeat about units that the run does not have.

    Raises:
      InvalidMessage: a unit is at or above `limit`.
    """
    who = f"{report.role} {report.id}"
    if report.completed > limit:
        raise InvalidMessage(
            f"{who} says that {report.completed} units of its stream are done, but this run's units are below {limit}; "
            "it serves another run: stop it"
        )
    ends = [("applied", stop - 1) for _, stop in report.applied] + [("dropped", unit) for unit, _ in report.dropped]
    for end, unit in ends:
        if not 0 <= unit < limit:
            raise InvalidMessage(
                f"{who} says that unit {unit} was {end}, but this run's units are below {limit}; it serves another "
                "run: stop it"
            )


# Package versions. Within a minor series the messages, the layouts and the mathematics of a step stay as they are;
# between two, one of them may have changed without either role noticing.

_SERIES = re.compile(r"(\d{1,9}\.\d{1,9})(?![0-9])")


def series(version: str) -> str:
    """Return the minor series of a version, empty where it is none.

    >>> series("0.3.1.dev0"), series("0.3"), series("garbage")
    ('0.3', '0.3', '')
    """
    match = _SERIES.match(version)
    return match.group(1) if match else ""


def check_version(who: str, theirs: str, ours: str = __version__, whose: str = "the chief") -> None:
    """Refuse a role of another minor series.

    Args:
      who: name of the role, for the message.
      theirs: version of its package.
      ours: version of this package.
      whose: name of the version's owner, for the message.

    Raises:
      VersionMismatch: the two are not of one series.
    """
    if series(theirs) != series(ours):
        raise VersionMismatch(
            f"{who} runs hybridsync {theirs or '(none named)'}, {whose} {ours}; install one version for every role "
            f"of a run, {series(ours)}.*"
        )
