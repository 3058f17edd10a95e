"""One driver for every worker program."""

from __future__ import annotations

import pytest

from hybridsync.errors import PhaseRevoked, StaleEpoch, StaleIncarnation
from hybridsync.paths.driver import drive
from hybridsync.protocols.base import Compute, Lease, Pull


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


def handlers_with(**changes):
    stream = [(1,), (2,), None]
    handlers = {
        "pull": lambda effect: "parameters",
        "lease": lambda effect: stream.pop(0),
        "compute": lambda effect: ("gradient", effect.units),
        **changes,
    }
    return {Pull: handlers["pull"], Lease: handlers["lease"], Compute: handlers["compute"]}


def raising(error):
    def handler(effect):
        raise error

    return handler


def test_effects_are_carried_out_and_their_results_come_back():
    trace: list = []
    drive(program_of(trace), handlers_with())
    assert trace == ["parameters", ("gradient", (1,)), ("gradient", (2,)), "closed"]


@pytest.mark.parametrize("error", [StaleEpoch("epoch 1 has ended"), PhaseRevoked("a member is gone")])
@pytest.mark.parametrize("effect", ["pull", "lease", "compute"])
def test_a_revocation_at_any_effect_is_thrown_into_the_program_and_told(effect, error):
    trace: list = []
    with pytest.raises(PhaseRevoked, match=str(error)):
        drive(program_of(trace), handlers_with(**{effect: raising(error)}))
    assert trace[-2:] == [str(error), "closed"]


def test_a_program_that_survives_its_revocation_is_our_fault():
    trace: list = []
    with pytest.raises(AssertionError, match="not to be caught"):
        drive(program_of(trace, catches=True), handlers_with(lease=raising(StaleEpoch("over"))))
    assert trace[-1] == "closed"


@pytest.mark.parametrize("error", [StaleIncarnation("replaced"), ZeroDivisionError("the task's own")])
def test_any_other_error_closes_the_program_and_goes_on(error):
    trace: list = []
    with pytest.raises(type(error)):
        drive(program_of(trace), handlers_with(compute=raising(error)))
    assert trace == ["parameters", "closed"]


def test_an_iterator_that_runs_dry_in_a_task_does_not_look_like_the_end():
    with pytest.raises(StopIteration):
        drive(program_of([]), handlers_with(compute=raising(StopIteration())))


def test_an_effect_of_another_path_is_our_fault():
    handlers = handlers_with()
    del handlers[Compute]
    with pytest.raises(AssertionError, match="Compute is not an effect of this path"):
        drive(program_of([]), handlers)
