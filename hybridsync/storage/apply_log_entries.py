"""Defines the lines of the apply log: one JSON line for every update, enough to compute the run again, bit for bit.

    {"phase", "sequence", "units", "base", "rate", "weight", "blend"[, "slots"][, "parts"][, "stepped"]}
    {"phase", "sequence", "units", "base", "rate", "weight", "blend", "slots", "group", "bases", "optimizer"}
    {"phase", "sequence", "left"}

`sequence` counts updates, `base` is the sequence of the parameters the gradient was computed on, `rate` the protocol's
factor on the schedule's learning rate, `weight` the units in the update, `blend` the share of the new model statistics.
Under lock-step the units stand in the order of the step's places and `base` is `sequence - 1`; `slots` are the places
that they have, and left out where those are the first ones. The phase's shares say which member a place belongs to (see
`hybridsync.core.step_assignment`); with one unit each it is the member at that place of the mesh. `parts` are the
pushes of an update whose gradients were computed on several versions, or do not weigh the same: [units, base, weight]
of each, in the order of their sum; `base` is the oldest of them then.

If workers make local updates, the content of a push depends on all that its worker has done before. So `stepped`
contains of each of an update's pushes [worker, incarnation, restart count, base, number of units, newest]: an
incarnation begins with the phase's optimizer state, each of its restarts with the worker's own; `newest` is the version
that made the push's rate, where that was not its base, and 0 elsewhere. At the end of such a phase `left` names the
workers, as [worker, incarnation], whose optimizer states were uploaded at its end; their mean is the next one's.

In a group phase an entry is a group round: each unit was applied by the member in its place of `slots` to its own
replica, several of one member in their order, with the gradient on what that was after the group round in its place of
`bases` and the member's units before it; then the members in the places `group` averaged their parameters, in this
order, and their optimizer's state where `optimizer` is true.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from hybridsync.interfaces.messages import GroupUpdate, PushInUpdate

NOT_LOGGED = -1
"""`newest` of a push in a log of an older version, which did not say it."""


class Stepped(NamedTuple):
    """One push of a worker that makes local updates, within an update (see the module's docstring)."""

    worker: int
    incarnation: int
    restart_count: int
    base: int
    num_units: int
    newest: int = NOT_LOGGED


@dataclass(frozen=True)
class Left:
    """Names the workers whose optimizer states a phase left behind (see the module's docstring)."""

    phase: int
    sequence: int
    left: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Entry:
    """One update (see the module's docstring)."""

    phase: int
    sequence: int
    units: tuple[int, ...]
    base: int
    rate: float
    weight: float
    blend: float
    slots: tuple[int, ...] = ()
    parts: tuple[PushInUpdate, ...] = ()
    stepped: tuple[Stepped, ...] = ()
    group: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    optimizer: bool = False

    @classmethod
    def of_groups(cls, phase: int, update: GroupUpdate, rate: float) -> Entry:
        """Return the entry of a group round."""
        return cls(
            phase,
            update.sequence,
            update.units,
            base=update.sequence - 1,
            rate=rate,
            weight=float(len(update.units)),
            blend=1.0,
            slots=update.slots,
            group=update.group,
            bases=update.bases,
            optimizer=update.optimizer,
        )

    @property
    def pushes(self) -> tuple[PushInUpdate, ...]:
        """Pushes of a served update with what each brought, in the order of their sum."""
        if self.stepped:
            stops = itertools.accumulate(push.num_units for push in self.stepped)
            ends = zip(self.stepped, stops, strict=True)
            return tuple(PushInUpdate(self.units[stop - push.num_units : stop], push.base) for push, stop in ends)
        return self.parts or tuple(PushInUpdate((unit,), self.base) for unit in self.units)

    @property
    def versions(self) -> set[int]:
        """Sequences of the parameters that the update's gradients were computed on."""
        return set(self.bases) or {part.base for part in self.stepped or self.parts} or {self.base}

    def by_slot(self) -> dict[int, int]:
        """Return the unit of each place of a step, or of a mesh in groups, that contributed one, in their order."""
        return dict(zip(self.slots or range(len(self.units)), self.units, strict=True))


def line_of(entry: Entry | Left) -> str:
    """Return what stands in the file, with its line break."""
    fields = asdict(entry)
    for optional in ("slots", "parts", "stepped"):
        if not fields.get(optional, True):
            del fields[optional]
    if isinstance(entry, Entry) and not entry.group:
        del fields["group"], fields["bases"], fields["optimizer"]
    return json.dumps(fields, separators=(",", ":")) + "\n"


def place_of(entry: Entry | Left) -> tuple[int, bool]:
    """Return what orders the lines: the end of a phase comes behind its last update."""
    return entry.sequence, isinstance(entry, Left)


def parse(line: str | bytes) -> Entry | Left:
    """Return what a line says.

    Raises:
      ValueError, KeyError, TypeError: the line is not one of an apply log.
    """
    fields = json.loads(line)
    if "left" in fields:
        return Left(**{**fields, "left": tuple(map(tuple, fields["left"]))})
    parts = (PushInUpdate(tuple(units), base, weight) for units, base, weight in fields.get("parts", ()))
    fields["parts"] = tuple(parts)
    fields["stepped"] = tuple(Stepped(*push) for push in fields.get("stepped", ()))
    lists = {name: tuple(fields.get(name, ())) for name in ("units", "slots", "group", "bases")}
    return Entry(**{**fields, **lists})
