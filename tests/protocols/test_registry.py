"""Protocols by name, with arguments typed by their dataclass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest

from hybridsync import protocols
from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.core.plan import Plan
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import Protocol, ServerRule
from hybridsync.protocols.bsp import Bsp
from hybridsync.protocols.modes import SERVER, SyncMode


@dataclass(frozen=True)
class Bounded(Protocol):
    """A stand-in with arguments."""

    staleness: int = 3
    weight: float = 0.5
    rule: str = "rate"
    strict: bool = True
    name: ClassVar[str] = "bounded"
    mode: ClassVar[SyncMode] = SERVER

    def worker_program(self, num_workers):
        yield from ()

    def units_per_update(self, num_workers):
        return 1

    def lr_factor(self, num_units, num_workers):
        return 1.0


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    monkeypatch.setitem(protocols.REGISTRY, "bounded", Bounded)


def test_every_protocol_is_registered_under_its_own_name_and_is_a_frozen_value():
    for name, cls in protocols.REGISTRY.items():
        assert cls.name == name
        assert protocols.parse(name) == cls()
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls().name = "other"  # pyright: ignore[reportAttributeAccessIssue]: the assignment is what is tested


def test_arguments_are_typed_by_their_defaults():
    assert protocols.parse("bounded(staleness=5,weight=2,rule=dc)") == Bounded(5, 2.0, "dc")
    assert protocols.resolve(Plan.parse("bsp:50%,bounded(staleness=0)").stages[1]) == Bounded(0)


@pytest.mark.parametrize(("text", "value"), [("false", False), ("true", True), ("False", False)])
def test_a_switch_is_read_as_what_it_says(text, value):
    assert protocols.parse(f"bounded(strict={text})") == Bounded(strict=value)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("bps", "did you mean 'bsp'"),
        ("nothing_like_it", "known: adpsgd, asp, backup, bounded, bsp, bsp_server"),
        ("bounded(stalenes=3)", "did you mean 'staleness'"),
        ("bounded(staleness=three)", "'three' is not a int"),
        ("bounded(staleness=1.5)", "'1.5'"),
        ("bounded(strict=no)", "'no' is not a bool"),
        ("bsp(n=4)", "no argument 'n'"),
        ("asp(staleness_rule=cutt)", "known: none, rate, cut, dc, dc_adaptive"),
        ("asp(max_delay=3)", "max_delay of 1 or more with staleness_rule=cut"),
        ("ssp(staleness_rule=cut,max_delay=-1)", "max_delay=-1"),
        ("gba(compensation=2)", "a positive one with staleness_rule=dc or dc_adaptive"),
    ],
)
def test_what_no_protocol_understands_is_refused_by_name(spec, named):
    with pytest.raises(PlanError) as refusal:
        protocols.parse(spec)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("backup(m=5)", "an m from 1 to 4, or 0 for 3"),
        ("backup(m=-1)", "m=-1"),
        ("ssp(staleness=-1)", "a staleness of 0 or more"),
        ("dssp(range=-2)", "a range of 0 or more"),
        ("gba(batch=-1)", "a batch of 0 or more"),
        ("hsp(stale=-1)", "a stale of 0 or more"),
        ("hsp(rho=nan)", "rho=nan"),
    ],
)
def test_what_would_wait_for_ever_is_refused_before_anything_starts(spec, named):
    with pytest.raises(ConfigError) as refusal:
        protocols.parse(spec).server_rule((0, 1, 2, 3))
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        *(("asp", None), ("bsp_server", 0), ("backup", 0), ("ssp", 21), ("ssp(staleness=0)", 3), ("dssp", 93)),
        *(("gba", 4), ("hsp", 0), ("hsp(stale=1)", 1), ("asp(staleness_rule=cut)", 3)),
        *(("asp(staleness_rule=rate)", None), ("ssp(staleness_rule=cut,max_delay=2)", 1)),
        ("gba(staleness_rule=cut,max_delay=9)", 4),
    ],
)
def test_staleness_is_bounded_by_the_rule_or_by_the_cut_whichever_is_less(spec, bound):
    assert protocols.parse(spec).staleness_bound(4) == bound


@pytest.mark.parametrize(("protocol", "units", "rate"), [(Bsp(), 4, 4.0), (Asp(), 1, 1.0)])
def test_the_rate_follows_the_units_of_an_update(protocol, units, rate):
    assert protocol.units_per_update(4) == units
    assert protocol.lr_factor(units, 4) == rate


def test_a_short_lock_step_update_has_the_rate_of_its_units():
    assert Bsp().lr_factor(3, 4) == 3.0


def test_a_lock_step_protocol_has_no_server_rule():
    with pytest.raises(AssertionError, match="bsp has no server rule"):
        Bsp().server_rule((0, 1))
    assert isinstance(Asp().server_rule((0, 1)), ServerRule)
