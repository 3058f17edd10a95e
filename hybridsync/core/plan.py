"""Defines a run's plan, which is a sequence of stages, and the fencing tokens of the phases that it becomes.

>>> plan = Plan.parse("bsp:12.5%,asp")
>>> plan.ends(4000)
(500, 4000)
>>> Plan.parse("bsp:320u,ssp(staleness=3):25%,asp").ends(4000)
(320, 1320, 4000)
>>> str(Plan.parse("bsp:2.5passes,asp").in_units(units_per_pass=128))
'bsp:320u,asp'
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, cast

from hybridsync.core.errors import PlanError
from hybridsync.core.units import MOST_UNITS


class PhaseId(NamedTuple):
    """The fencing token of a phase: a number that is handed out once ever, and a random nonce.

    Phases compare by number first, so `max` of two is the newer one.
    """

    number: int
    nonce: int

    def __str__(self) -> str:
        return str(self.number)

    def beside(self, other: PhaseId) -> tuple[str, str]:
        """Return both as a message tells them apart: by number, or where that is the same, by nonce too.

        >>> PhaseId(3, 255).beside(PhaseId(4, 1)), PhaseId(3, 255).beside(PhaseId(3, 1))[0]
        (('3', '4'), '3 (nonce 00000000000000ff)')
        """
        if self.number != other.number:
            return str(self), str(other)
        return f"{self} (nonce {self.nonce:016x})", f"{other} (nonce {other.nonce:016x})"


MOST_ENTRIES = 10_000
"""Most entries in one list of a message. The account of a whole state may have more (`transport/grpc/codec.py`)."""

MOST_UPDATES = 2**62
"""Above every phase's number and every update's, so that one may be added to either."""


def most_issued(workload: int) -> int:
    """Return a bound on the units that a run issues; a message that names a unit from there on is refused.

    A fresh unit is issued for each dropped one, so a run issues more than its workload: how many more is known only at
    its end. The bound leaves room for fifteen dropped units for each applied one, and for 1,024 more in a short run.
    Without it a wrong message could make a role keep an account of any size.

    >>> most_issued(1000)
    17024
    """
    return min(16 * workload + 1024, MOST_UNITS)


NO_PHASE = PhaseId(0, 0)
"""Before the first phase; real phases count from 1."""


Measure = Literal["%", "u", "passes"]


@dataclass(frozen=True)
class Stage:
    """One entry of a plan.

    Args:
      protocol: registered name of the protocol.
      arguments: (key, value) texts as written in the parentheses; the protocol's factory types them.
      length: length in `measure`; None takes what the others leave.
      measure: "%" of the workload, "u" for units, or "passes" over the training data.
    """

    protocol: str
    arguments: tuple[tuple[str, str], ...] = ()
    length: Fraction | None = None
    measure: Measure = "%"

    @classmethod
    def parse(cls, text: str) -> Stage:
        """Parse one stage without a length, of up to `STAGE_CHARS` characters.

        Raises:
          PlanError: the text does not follow the grammar, is too long, or is a plan.
        """
        parts = _split(text[: STAGE_CHARS + 1])
        stage = _parse_stage(parts[0], text[: STAGE_CHARS + 1])
        if len(text) > STAGE_CHARS:
            raise PlanError(f"the protocol {text[:40]!r}... has more than {STAGE_CHARS} characters; shorten it")
        if len(parts) > 1 or stage.length is not None:
            raise PlanError(f"{text!r} is a plan; name one protocol without a length, for example {stage.spec!r}")
        return stage

    @property
    def spec(self) -> str:
        """The stage without its length, as written in a plan: `ssp(staleness=3)`."""
        inside = ",".join(f"{key}={value}" for key, value in self.arguments)
        return f"{self.protocol}({inside})" if inside else self.protocol


PLAN_CHARS, STAGE_CHARS, SPEC_CHARS = 4096, 224, 256
"""Longest plan, longest stage of it, and longest stage that travels: the run may add an argument to what was given."""

# No two repeats of white space stand side by side: on a text that does not match they would be tried in every split.
_STAGE = re.compile(
    r"([a-z][a-z0-9_]*)\s*(?:\(([^()]*)\)\s*)?"
    r"(?::\s*([0-9]{1,9}(?:\.[0-9]{1,18})?)\s*(%|u|passes))?"
)
_ARGUMENT = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*([A-Za-z0-9_.+-]+)\s*")
GRAMMAR = (
    "name[(key=value,...)][:length], separated by commas; for example bsp:12.5%,asp, bsp:3200u,asp or bsp:10passes,asp"
)


@dataclass(frozen=True)
class Plan:
    """A sequence of stages whose lengths make up the whole workload."""

    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, text: str, stage_chars: int = STAGE_CHARS) -> Plan:
        """Parse `name[(key=value,...)][:length]` entries separated by commas, each of up to `stage_chars` characters.

        At most one stage may leave its length out and takes the rest. If none does, shares sum to 100 %.

        Raises:
          PlanError: the text does not follow the grammar, is too long, or the shares do not make up 100 %.
        """
        if len(text) > PLAN_CHARS:
            raise PlanError(
                f"the plan {text[:40]!r}... has {len(text)} characters, above the {PLAN_CHARS} that are read; shorten "
                "it"
            )
        if not text.strip():
            raise PlanError(f"the plan is empty; write {GRAMMAR}")
        parts = _split(text)
        if (longest := max(map(len, parts))) > stage_chars:
            raise PlanError(
                f"the plan {text[:40]!r}... has a stage of {longest} characters, above the {stage_chars} that are "
                "read; shorten it"
            )
        stages = tuple(_parse_stage(part, text) for part in parts)
        open_stages = [stage for stage in stages if stage.length is None]
        total = sum(
            (stage.length for stage in stages if stage.length is not None and stage.measure == "%"), Fraction(0)
        )
        if len(open_stages) > 1:
            names = " and ".join(repr(stage.spec) for stage in open_stages)
            raise PlanError(f"plan {text!r}: {names} both lack a length; give all but one of them a length")
        if open_stages and total >= 100:
            raise PlanError(
                f"plan {text!r}: the shares already sum to {float(total):g} %, which leaves nothing for "
                f"{open_stages[0].spec!r}; lower a share or remove that stage"
            )
        if not open_stages and all(stage.measure == "%" for stage in stages) and total != 100:
            raise PlanError(
                f"plan {text!r}: the shares sum to {float(total):g} %, not 100 %; change a share, or leave "
                "the last one out to take the rest"
            )
        return cls(stages)

    @property
    def has_passes(self) -> bool:
        """Return whether a stage is as long as passes over data, whose number of units is not known here."""
        return any(stage.measure == "passes" for stage in self.stages)

    def in_units(self, units_per_pass: float | Fraction) -> Plan:
        """Return the plan with whole units in place of passes, at least one of them.

        Args:
          units_per_pass: training examples of one pass over the examples of a unit.
        """

        def measured(stage: Stage) -> Stage:
            if stage.length is None or stage.measure != "passes":
                return stage
            units = max(1, round(stage.length * Fraction(units_per_pass)))
            return dataclasses.replace(stage, length=Fraction(units), measure="u")

        return Plan(tuple(map(measured, self.stages)))

    def ends(self, workload: int) -> tuple[int, ...]:
        """Return for each stage the number of applied units at which it ends: the rounded sum of lengths up to there.

        Raises:
          PlanError: the lengths do not make up the workload, or some are passes (see `in_units`).
        """
        if self.has_passes:
            raise PlanError(f"plan {str(self)!r}: passes are as long as the data; write units where there are none")
        lengths = [
            stage.length if stage.length is None or stage.measure == "u" else stage.length * workload / 100
            for stage in self.stages
        ]
        taken = sum((length for length in lengths if length is not None), Fraction(0))
        if taken > workload or (taken < workload and None not in lengths):
            raise PlanError(
                f"plan {str(self)!r}: its stages make up {float(taken):,.12g} units, the workload is {workload:,}; "
                "change a length, or leave the last one out to take the rest"
            )
        total, ends = Fraction(0), []
        for length in lengths:
            total += workload - taken if length is None else length
            ends.append(round(total))
        return tuple(ends)

    def __str__(self) -> str:
        return ",".join(
            stage.spec if stage.length is None else f"{stage.spec}:{float(stage.length):.12g}{stage.measure}"
            for stage in self.stages
        )


def _split(text: str) -> list[str]:
    """Split at the commas that are outside parentheses."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _parse_stage(part: str, text: str) -> Stage:
    match = _STAGE.fullmatch(part.strip())
    if match is None:
        raise PlanError(f"plan {text!r}: cannot read {part.strip()!r}; write {GRAMMAR}")
    name, inside, length_text, measure = match.groups()
    arguments: list[tuple[str, str]] = []
    for argument in (inside or "").split(",") if inside and inside.strip() else ():
        pair = _ARGUMENT.fullmatch(argument)
        if pair is None:
            raise PlanError(f"plan {text!r}: cannot read {argument.strip()!r} in {part.strip()!r}; write key=value")
        if pair.group(1) in dict(arguments):
            raise PlanError(f"plan {text!r}: {pair.group(1)!r} is given twice in {part.strip()!r}; keep one")
        arguments.append((pair.group(1), pair.group(2)))
    if length_text is None:
        return Stage(name, tuple(arguments))
    length = Fraction(length_text)
    if measure == "%" and not 0 < length <= 100:
        raise PlanError(f"plan {text!r}: the share of {name!r} is {length_text} %; it must lie above 0 and up to 100 %")
    if length <= 0 or (measure == "u" and length.denominator != 1):
        whole = "whole and above 0" if measure == "u" else "above 0"
        raise PlanError(f"plan {text!r}: the length of {name!r} is {length_text}{measure}; it must be {whole}")
    return Stage(name, tuple(arguments), length, cast("Measure", measure))
