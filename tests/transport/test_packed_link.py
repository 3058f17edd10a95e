"""A push that was prepared while a device was busy is the push that it would have been anyway."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.config import EmulationConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import SchemaMismatch
from hybridsync.emulation.device import Emulation
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Parameters
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.requests import ComputeUnit
from hybridsync.worker.server_runner import carriers_of
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import gradient_of, phase_of, tally_programs, tally_state
from tests.transport.slab_primary import SlabPrimary, only


def test_what_was_prepared_is_pushed(served: SlabPrimary, monkeypatch: pytest.MonkeyPatch) -> None:
    link, contribution, looked_into = served.link(), gradient_of(1), list[Layout]()
    original = Layout.arrays_of
    monkeypatch.setattr(Layout, "arrays_of", lambda self, tree: looked_into.append(self) or original(self, tree))
    link.pull(served.push())
    link.prepare(contribution)
    of_contributions = looked_into.pop()
    link.push_pull(served.push(1), contribution)
    assert of_contributions not in looked_into and looked_into, "the server has packed its parameters"
    assert served.applied() == only(1)


def test_a_push_of_another_contribution_than_was_prepared_pushes_its_own(served: SlabPrimary) -> None:
    link = served.link()
    link.pull(served.push())
    link.prepare(gradient_of(1))
    link.push_pull(served.push(2), gradient_of(2))
    assert served.applied() == only(2)
    link.push_pull(served.push(3), gradient_of(3))
    assert served.applied() == only(2, 3)


def test_the_numbers_are_read_at_the_push(served: SlabPrimary) -> None:
    """A device may compute them until then."""
    link = served.link()
    link.pull(served.push())
    contribution = jax.tree.map(np.array, gradient_of(1))
    link.prepare(contribution)
    for leaf, final in zip(jax.tree.leaves(contribution), jax.tree.leaves(gradient_of(2)), strict=True):
        leaf[...] = final
    link.push_pull(served.push(2), contribution)
    assert served.applied() == only(2)


def test_what_no_server_takes_is_refused_when_it_is_prepared(served: SlabPrimary) -> None:
    with pytest.raises(SchemaMismatch, match="cannot pack"):
        served.link().prepare({"another": np.zeros(3, np.float32)})


class Noting:
    """A link that notes what is prepared, on the time of an emulated device."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def prepare(self, contribution: Any) -> None:
        self.seen.append("prepared")


@pytest.mark.parametrize(
    ("spec", "seen"), [("asp", ["prepared", "waited"]), ("bsp_server", ["prepared", "waited"]), ("psplus", ["waited"])]
)
def test_a_push_is_prepared_while_the_emulated_device_is_busy(spec: str, seen: list[str]) -> None:
    """Not with local updates: what is computed there is not what is pushed."""
    link = Noting()
    emulation = Emulation(EmulationConfig(compute_secs=0.001), 8, wait=lambda secs: link.seen.append("waited"))
    recorder = WorkerRecorder(0, SYSTEM_CLOCK, keep_spans=False)
    context = WorkerContext(0, None, tally_programs(), recorder, emulation)  # pyright: ignore[reportArgumentType]
    carriers = carriers_of(context, [link], phase_of(spec=spec).protocol)  # pyright: ignore[reportArgumentType]
    state = tally_state()
    carriers[ComputeUnit](ComputeUnit(3, Parameters(state.params, state.model_state)))
    assert link.seen == seen
