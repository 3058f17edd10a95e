"""Where a plan goes over to asynchrony, what share of the momentum its updates have, and how the rate scales."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync import protocols
from hybridsync.config.policy_config import MomentumVariant, PolicyConfig
from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import Plan
from hybridsync.policies.momentum import MomentumHandling, is_asynchronous, momentum_handling
from hybridsync.protocols.base import Apply, Arrival

VARIANTS: tuple[Any, ...] = get_args(MomentumVariant)


def handling(variant: Any, text: str, workload: int = 1000, workers: int = 8, ramp: float = 0.1) -> MomentumHandling:
    plan = Plan.parse(text)
    asynchronous = [is_asynchronous(protocols.resolve(stage), workers) for stage in plan.stages]
    return momentum_handling(variant, ramp, workers, plan.ends(workload), asynchronous)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:50%,gba", "bsp:50%,bsp_server:20%,backup", "asp:50%,bsp"])
def test_nothing_is_handled_where_no_lock_step_goes_over_to_smaller_stale_updates(variant: Any, plan: str) -> None:
    found = handling(variant, plan)
    assert (found.zero_at, found.segments) == ((), ())


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_worker_is_never_asynchronous(variant: Any) -> None:
    found = handling(variant, "bsp:50%,asp", workers=1)
    assert (found.zero_at, found.segments) == ((), ())


@pytest.mark.parametrize("spec", ["asp", "ssp", "dssp", "psplus", "asp(staleness_rule=rate)", "gba(batch=2)"])
def test_the_slots_are_zeroed_at_the_switch_to_any_asynchronous_protocol(spec: str) -> None:
    assert handling("zero", f"bsp:25%,{spec}").zero_at == (250,)


def test_a_stretch_of_asynchronous_stages_is_one_and_another_one_begins_behind_lock_step() -> None:
    plan = "bsp:10%,asp:20%,ssp:20%,bsp:10%,asp"
    assert handling("zero", plan).zero_at == (100, 600)
    scaled = handling("scaled", plan)
    shares = {units: scaled.factor_at(units) for units in (99, 100, 499, 500, 599, 600, 999)}
    assert shares == {99: 1, 100: 1 / 8, 499: 1 / 8, 500: 1, 599: 1, 600: 1 / 8, 999: 1 / 8}


def test_a_linear_ramp_goes_by_units_from_one_nth_to_the_whole() -> None:
    ramp = handling("ramp_linear", "bsp:25%,asp")
    shares = [ramp.factor_at(units) for units in (249, 250, 300, 349, 350)]
    assert shares == pytest.approx([1.0, 1 / 8, (1 / 8 + 1) / 2, 1 / 8 + 7 / 8 * 0.99, 1.0])


def test_a_ramp_of_steps_doubles_the_share_in_equal_stretches() -> None:
    ramp = handling("ramp_steps", "bsp:25%,asp", ramp=0.3)
    assert [ramp.factor_at(units) for units in (250, 349, 350, 449, 450, 549, 550)] == [
        *(1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1.0)
    ]


def test_a_ramp_of_stages_rises_by_as_much_in_each_of_eight_whatever_the_number_of_workers() -> None:
    ramp = handling("ramp_stages", "bsp:20%,asp", ramp=0.4)
    assert [ramp.factor_at(200 + 50 * stage) for stage in range(9)] == pytest.approx(
        [1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1.0, 1.0]
    )
    of_two = handling("ramp_stages", "bsp:20%,asp", ramp=0.4, workers=2)
    assert [of_two.factor_at(units) for units in (200, 249, 250, 549)] == pytest.approx([1 / 2, 1 / 2, 4 / 7, 13 / 14])


def test_the_authors_lengths_of_64_000_steps_can_be_said() -> None:
    stages = handling("ramp_stages", "bsp:25%,asp", workload=64_000, ramp=PolicyConfig().ramp)
    assert [segment.end - segment.begin for segment in stages.segments] == [2_000] * 8
    increments = handling("ramp_steps", "bsp:25%,asp", workload=64_000, ramp=0.3)
    assert [segment.end - segment.begin for segment in increments.segments] == [6_400] * 3


@given(
    variant=st.sampled_from(["scaled", "ramp_linear", "ramp_steps", "ramp_stages"]),
    workers=st.integers(2, 33),
    ramp=st.floats(0.001, 1.0),
    begin=st.integers(1, 99),
)
def test_the_share_lies_between_one_nth_and_the_whole_and_never_falls_while_asynchronous(
    variant: Any, workers: int, ramp: float, begin: int
) -> None:
    found = handling(variant, f"bsp:{begin}%,asp", workers=workers, ramp=ramp)
    shares = [found.factor_at(units) for units in range(begin * 10, 1000)]
    assert 1 / workers <= shares[0] and shares == sorted(shares) and shares[-1] <= 1.0
    assert all(found.factor_at(units) == 1.0 for units in range(begin * 10))


# --- the rate ---


def spec_of(text: str, scaling: str = "sqrt") -> str:
    return str(protocols.with_scaling(Plan.parse(text), scaling, 4))


def test_the_configuration_scales_the_stages_that_do_not_say_it_themselves_and_matter() -> None:
    assert spec_of("bsp:20%,gba(batch=3):30%,asp") == "bsp(scaling=sqrt):20%,gba(batch=3,scaling=sqrt):30%,asp"
    assert spec_of("bsp(scaling=linear)") == "bsp(scaling=linear)"
    assert spec_of("bsp:20%,preduce", "linear") == "bsp:20%,preduce"
    assert spec_of("psplus:50%,diloco") == "psplus:50%,diloco"


@pytest.mark.parametrize("name", ["preduce", "adpsgd", "localsgd"])
def test_a_protocol_whose_workers_step_by_themselves_n_fold_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy.rate=sqrt.*{name}.*4 times"):
        spec_of(f"bsp:20%,{name}")


def test_a_scaling_that_is_none_is_refused_with_those_there_are() -> None:
    for name in ("bsp", "backup"):
        with pytest.raises(ConfigError, match=rf"{name}\(scaling=cubic\).*linear, sqrt"):
            protocols.parse(f"{name}(scaling=cubic)")


@pytest.mark.parametrize("name", ["bsp", "bsp_server", "backup", "gba", "hsp"])
def test_the_rate_is_the_root_of_the_units_under_every_protocol_with_a_batch(name: str) -> None:
    protocol = protocols.parse(f"{name}(scaling=sqrt)")
    assert [protocol.lr_factor(units, 4) for units in (1, 3, 4)] == [1.0, math.sqrt(3), 2.0]
    assert [protocols.parse(name).lr_factor(units, 4) for units in (1, 3, 4)] == [1.0, 3.0, 4.0]


def test_a_servers_update_has_the_rate_that_its_protocol_states() -> None:
    rule = protocols.parse("bsp_server(scaling=sqrt)").server_rule((0, 1, 2, 3))
    actions = [action for worker in range(4) for action in rule.on_push(Arrival(worker, worker, (worker,), 0))]
    assert [action.lr_factor for action in actions if isinstance(action, Apply)] == [2.0]


def test_a_stale_push_is_damped_from_the_scaled_rate() -> None:
    rule = protocols.parse("gba(batch=2,scaling=sqrt,staleness_rule=rate)").server_rule((0, 1))
    actions = [action for push in range(2) for action in rule.on_push(Arrival(push, push, (push,), 0))]
    assert [action.lr_factor for action in actions if isinstance(action, Apply)] == [math.sqrt(2)]
