"""The plan's grammar, as a table."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hybridsync.core.errors import PlanError
from hybridsync.core.plan import NO_PHASE, PhaseId, Plan

GOOD = [
    # text, workload, ends
    ("bsp", 10, (10,)),
    ("bsp:100%", 10, (10,)),
    (" bsp : 50% , asp ", 10, (5, 10)),
    ("bsp:12.5%,asp", 4000, (500, 4000)),
    ("bsp:6.25%,asp:93.75%", 1600, (100, 1600)),
    ("bsp:10%,asp:40%,bsp:10%,asp", 1000, (100, 500, 600, 1000)),
    ("asp,bsp:10%", 100, (90, 100)),
    ("bsp:30%,asp,bsp:30%", 10, (3, 7, 10)),
    ("bsp:33.3%,asp:33.3%,bsp:33.4%", 1000, (333, 666, 1000)),
    ("ssp(staleness=3):50%,asp", 10, (5, 10)),
    ("ssp( staleness = 3 , rule=dc ):50%,asp", 10, (5, 10)),
    ("gba(size=4.5)", 10, (10,)),
    ("bsp():50%,asp()", 10, (5, 10)),
    ("bsp:0.1%,asp", 6000, (6, 6000)),
    ("bsp:3200u,asp", 16_000, (3200, 16_000)),
    ("asp,bsp:1u", 100, (99, 100)),
    ("bsp:40u,ssp:25%,asp", 200, (40, 90, 200)),
    ("bsp:40u,asp:60u", 100, (40, 100)),
    ("bsp:40u,asp:60%", 100, (40, 100)),
]

BAD = [
    # text, what the message names
    ("", "empty"),
    ("   ", "empty"),
    (",", "cannot read"),
    ("bsp,", "cannot read"),
    ("bsp,asp", "'bsp' and 'asp'"),
    ("bsp:50%", "50 %"),
    ("bsp:50%,asp:40%", "90 %"),
    ("bsp:60%,asp:50%", "110 %"),
    ("bsp:100%,asp", "'asp'"),
    ("bsp:60%,asp:60%,bsp", "'bsp'"),
    ("bsp:0%,asp", "0 %"),
    ("bsp:120%,asp", "120 %"),
    ("bsp:-5%,asp", "'bsp:-5%'"),
    ("bsp:5,asp", "'bsp:5'"),
    ("bsp:%,asp", "'bsp:%'"),
    ("BSP", "'BSP'"),
    ("bsp 50%,asp", "'bsp 50%'"),
    ("ssp(staleness)", "'staleness'"),
    ("ssp(staleness=)", "'staleness='"),
    ("ssp(s=1,s=2)", "'s'"),
    ("ssp(s=1", "cannot read"),
    ("ssp s=1)", "cannot read"),
    ("ssp(s=(1))", "cannot read"),
    ("bsp:1e1%,asp", "cannot read"),
    ("bsp;asp", "cannot read"),
    ("bsp:0u,asp", "0u; it must be whole and above 0"),
    ("bsp:1.5u,asp", "1.5u; it must be whole and above 0"),
    ("bsp:0passes,asp", "0passes; it must be above 0"),
    ("bsp:3pass,asp", "cannot read"),
]


@pytest.mark.parametrize(("text", "workload", "ends"), GOOD)
def test_a_good_plan_ends_its_stages_at_the_rounded_shares(text, workload, ends):
    plan = Plan.parse(text)
    assert plan.ends(workload) == ends
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(("text", "named"), BAD)
def test_a_bad_plan_is_refused_with_what_is_wrong_in_it(text, named):
    with pytest.raises(PlanError) as refusal:
        Plan.parse(text)
    assert named in str(refusal.value)
    assert refusal.value.exit_code == 1


@pytest.mark.parametrize(
    ("text", "taken"),
    [("bsp:101u,asp", "101"), ("bsp:60u,asp:50%", "110"), ("bsp:60u,asp:30u", "90"), ("bsp:60u,ssp:50%,asp", "110")],
)
def test_lengths_that_do_not_make_up_the_workload_are_refused_with_both(text, taken):
    with pytest.raises(PlanError, match=f"its stages make up {taken} units, the workload is 100; change a length"):
        Plan.parse(text).ends(100)


@pytest.mark.parametrize(
    ("text", "in_units"),
    [
        ("bsp:10passes,asp", "bsp:1250u,asp"),
        ("bsp:0.5passes,ssp(staleness=2):30%,asp", "bsp:62u,ssp(staleness=2):30%,asp"),
        ("bsp:0.0001passes,asp", "bsp:1u,asp"),
        ("bsp:7u,asp", "bsp:7u,asp"),
    ],
)
def test_passes_become_units_of_the_data(text, in_units):
    plan = Plan.parse(text)
    assert str(Plan.parse(str(plan))) == str(plan)
    assert str(plan.in_units(Fraction(1000, 8))) == in_units
    if plan.has_passes:
        with pytest.raises(PlanError, match="passes are as long as the data"):
            plan.ends(10_000)


def test_arguments_keep_their_order_and_text():
    (stage,) = Plan.parse("gba( size=4.5 , rule=dc_adaptive )").stages
    assert stage.arguments == (("size", "4.5"), ("rule", "dc_adaptive"))
    assert stage.spec == "gba(size=4.5,rule=dc_adaptive)"


def test_a_newer_phase_is_the_larger_one_whatever_its_nonce():
    assert max(PhaseId(2, 5), PhaseId(1, 2**63)) == PhaseId(2, 5)
    assert PhaseId(1, 0) > NO_PHASE
    assert PhaseId(2, 5) != PhaseId(2, 6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("asp," * 2000, "has 8000 characters, above the 4096 that are read; shorten it"),
        ("asp(" + "a" * 300 + "=1)", "has a stage of 307 characters, above the 224 that are read; shorten it"),
    ],
)
def test_a_plan_that_is_too_long_is_refused_before_it_is_read(text, told):
    with pytest.raises(PlanError, match=told):
        Plan.parse(text)
