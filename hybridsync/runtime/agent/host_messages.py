"""Orders that the supervisor gives a host's agent, and events that it tells, as values and as lines of text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hybridsync.core.errors import InvalidMessage, printable
from hybridsync.runtime.role.role_pipe import RoleKeys, RoleSpec
from hybridsync.security.identity import MOST_ID

Key = tuple[str, int]
"""A role and its number among its kind."""


@dataclass(frozen=True)
class StartRole:
    """Orders that a role is started, and why; an order for a role that still waits to be started replaces the former.

    The agent fills in what its host alone knows: where the role serves, and the folder of compiled programs.
    """

    spec: RoleSpec
    reason: str

    @property
    def key(self) -> Key:
        """The role and its number."""
        return self.spec.role, self.spec.role_id


@dataclass(frozen=True)
class KillRole:
    """Orders that a process is killed, unless another one has its place already."""

    role: str
    role_id: int
    pid: int


@dataclass(frozen=True)
class GiveKeys:
    """Says what a role proves itself with from now on, whether it runs or still waits to be started."""

    role: str
    role_id: int
    keys: RoleKeys

    @property
    def key(self) -> Key:
        """The role and its number."""
        return self.role, self.role_id


@dataclass(frozen=True)
class ChiefServes:
    """Says where the chief serves, to all roles that are there and to those that come."""

    address: str


@dataclass(frozen=True)
class AwaitEnd:
    """Says that the run is being saved and ends then: an agent that a signal asks to leave stays until `EndRun`."""


@dataclass(frozen=True)
class EndRun:
    """Says that the run has ended, with this exit code: the agent ends what is left of it, and itself."""

    exit_code: int


@dataclass(frozen=True)
class Started:
    """Tells of a process that was started."""

    role: str
    role_id: int
    restart_count: int
    pid: int
    reason: str


@dataclass(frozen=True)
class Reported:
    """Tells what a role reported on its pipe (see `role_pipe`)."""

    role: str
    role_id: int
    pid: int
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """Tells of a process that ended.

    Attributes:
      code: exit code of the process, negative for a signal.
      lived_secs: seconds from the order to start it until its end.
      unit: unit that a worker was computing; -1 for none.
    """

    role: str
    role_id: int
    pid: int
    code: int
    lived_secs: float
    unit: int = -1


@dataclass(frozen=True)
class NotStarted:
    """Tells of a role that could not be started.

    Attributes:
      hopeless: it would not help to try again.
    """

    role: str
    role_id: int
    message: str
    hopeless: bool = False


@dataclass(frozen=True)
class Leaving:
    """Tells that the agent has ended all that ran on its host, and goes."""

    reason: str


Order = StartRole | KillRole | GiveKeys | ChiefServes | AwaitEnd | EndRun
Event = Started | Reported | Ended | NotStarted | Leaving

MOST_TEXT_CHARS = 4000
"""Characters of an event's text that are kept: the head shows it."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("role", "reason", "message"), str),
    **dict.fromkeys(("role_id", "restart_count", "pid", "code", "unit"), int),
    "hopeless": bool,
    "lived_secs": (int, float),
    "fields": dict,
}
_RANGES: dict[str, tuple[float, float]] = {
    "role_id": (0, MOST_ID),
    "restart_count": (0, 1 << 31),
    "pid": (1, 1 << 31),
    "code": (-31, 255),  # signals that have a name are negative
    "unit": (-1, 1 << 62),
    "lived_secs": (0.0, 1e12),
}
_REPORT_TYPES: dict[str, type] = {"error": str, "exit_code": int, "joined": str}
"""What roles of further hosts report; a role has its error and its exit code in one report."""

_ORDERS = {kind.__name__: kind for kind in (KillRole, ChiefServes, AwaitEnd, EndRun)}
_EVENTS = {kind.__name__: kind for kind in (Started, Reported, Ended, NotStarted, Leaving)}


def to_line(message: Order | Event) -> str:
    """Write an order, or an event, as a JSON object on one line."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)})


def order_of(line: str) -> Order:
    """Read an order.

    Raises:
      InvalidMessage: the line is not an order.
    """
    return _read(line, "order", _ORDERS | {"StartRole": _start_role, "GiveKeys": _give_keys})


def event_of(line: str) -> Event:
    """Read an event. Its texts come without control characters, which could drive the head's terminal.

    Raises:
      InvalidMessage: the line is not an event, or a value of it is one that no agent sends.
    """
    event = _read(line, "event", _EVENTS)
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    wrong = [name for name, value in values.items() if not _is_right(name, value)]
    if wrong:
        raise InvalidMessage(f"this is no event of a host's agent: {line[:100]!r} ({', '.join(wrong)})")
    plain: dict[str, Any] = {name: _plain(value) for name, value in values.items() if name in ("reason", "message")}
    if "error" in values.get("fields", {}):
        plain["fields"] = {**values["fields"], "error": _plain(values["fields"]["error"])}
    return replace(event, **plain)


def _is_right(name: str, value: Any) -> bool:
    """Return whether a value of an event has its type, and is one that an agent may send."""
    if not isinstance(value, _TYPES[name]):
        return False
    if name == "fields":
        known = {key: kind for key, kind in _REPORT_TYPES.items() if key in value}
        return ("error" in value) == ("exit_code" in value) and all(isinstance(value[key], known[key]) for key in known)
    least, most = _RANGES.get(name, (value, value))
    return least <= value <= most


def _plain(text: str) -> str:
    return "\n".join(map(printable, text[:MOST_TEXT_CHARS].splitlines()))


def _start_role(spec: dict[str, Any], reason: str) -> StartRole:
    return StartRole(RoleSpec.of_json(spec), reason)


def _give_keys(role: str, role_id: int, keys: dict[str, Any]) -> GiveKeys:
    return GiveKeys(role, role_id, RoleKeys(**keys))


def _read(line: str, what: str, kinds: dict[str, Any]) -> Any:
    try:
        told = json.loads(line)
        return kinds[told.pop("kind")](**told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidMessage(
            f"this is no {what} of a host's agent: {line[:100]!r} ({type(error).__name__}: {error}); do both hosts run "
            "the same version?"
        ) from error
