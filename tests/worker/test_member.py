"""One way to run every worker program."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.core.errors import PhaseRevoked, StaleIncarnation, StalePhase
from hybridsync.protocols.base import Compute, Lease, Pull
from hybridsync.worker.member import run_program
from tests.worker.scripted import Script


def program_of(trace: list, *, catches: bool = False):
    try:
        trace.append((yield Pull()))
        while (units := (yield Lease())) is not None:
            trace.append((yield Compute(units)))
    except PhaseRevoked as revoked:
        trace.append(str(revoked))
        if not catches:
            raise
        yield Pull()
    finally:
        trace.append("closed")


def effects_with(**changes):
    stream = [(1,), (2,), None]
    answers = {
        "pull": lambda effect: "parameters",
        "lease": lambda effect: stream.pop(0),
        "compute": lambda effect: ("gradient", effect.units),
        **changes,
    }
    return {Pull: answers["pull"], Lease: answers["lease"], Compute: answers["compute"]}


def raising(error):
    def answer(effect):
        raise error

    return answer


def run(program, effects) -> None:
    Script(lambda request: request).drive(run_program(program, effects))


def test_effects_are_carried_out_and_their_results_come_back():
    trace: list = []
    run(program_of(trace), effects_with())
    assert trace == ["parameters", ("gradient", (1,)), ("gradient", (2,)), "closed"]


def test_what_an_effect_requests_is_the_drivers_to_carry_out():
    def pull(effect: Pull):
        return (yield "request"), (yield "another")

    trace: list = []
    run(program_of(trace), {**effects_with(), Pull: pull})
    assert trace[0] == ("request", "another")


@pytest.mark.parametrize("error", [StalePhase("phase 1 has ended"), PhaseRevoked("a member is gone")])
@pytest.mark.parametrize("effect", ["pull", "lease", "compute"])
def test_a_revocation_at_any_effect_is_thrown_into_the_program_and_told(effect, error):
    trace: list = []
    with pytest.raises(PhaseRevoked, match=str(error)):
        run(program_of(trace), effects_with(**{effect: raising(error)}))
    assert trace[-2:] == [str(error), "closed"]


def test_a_program_that_survives_its_revocation_is_our_fault():
    trace: list = []
    with pytest.raises(AssertionError, match="not to be caught"):
        run(program_of(trace, catches=True), effects_with(lease=raising(StalePhase("over"))))
    assert trace[-1] == "closed"


@pytest.mark.parametrize("error", [StaleIncarnation("replaced"), ZeroDivisionError("the task's own")])
def test_any_other_error_closes_the_program_and_goes_on(error):
    trace: list = []
    with pytest.raises(type(error)):
        run(program_of(trace), effects_with(compute=raising(error)))
    assert trace == ["parameters", "closed"]


def test_an_engine_that_is_closed_closes_its_program_without_another_request():
    def pull(effect: Pull):
        yield "request"

    trace: list = []
    io = run_program(program_of(trace), {**effects_with(), Pull: pull})
    assert io.send(None) == "request"
    io.close()
    assert trace == ["closed"]


def test_an_effect_of_another_mode_is_our_fault():
    effects: dict[type, Any] = effects_with()
    del effects[Compute]
    with pytest.raises(AssertionError, match="Compute is not an effect of this mode"):
        run(program_of([]), effects)
