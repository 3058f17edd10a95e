"""What a worker compiles before it trains."""

from __future__ import annotations

import jax
import numpy as np

from hybridsync.runtime.role.worker_main import warm_up
from hybridsync.training.compiled_programs import Parameters
from tests.compilations import count_compilations
from tests.roles import WORKLOAD, plain_sgd, programs_of, tally_task


def test_one_compiled_gradient_takes_a_replicas_parameters_and_a_servers_reply() -> None:
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("jaxpr_to_mlir_module_duration"):  # also where the machine code was compiled before
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    programs = programs_of(tally_task(WORKLOAD), plain_sgd(1.0), unit_size=1, workload=WORKLOAD)
    warm_up(programs, several=True)
    assert compiled, "nothing was compiled: this test proves nothing"
    compiled.clear()
    held = Parameters(programs.state.params, programs.state.model_state)
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), held)
    total = jax.device_get(programs.gradient(zeros, 1))
    programs.gradient(jax.device_put(zeros), 2)
    state = jax.device_put(jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), programs.state))
    for _ in range(2):  # what an update returns is taken by the next one
        state = programs.update(state, total, units=1, factor=1.0, blend=1.0)
        own = [programs.gradient(Parameters(state.params, state.model_state), unit) for unit in (3, 4, 5)]
        programs.sum(own)
    assert compiled == []


def test_a_workers_own_steps_are_compiled_before_the_first_phase_that_has_them() -> None:
    programs = programs_of(tally_task(WORKLOAD), plain_sgd(1.0), unit_size=1, workload=WORKLOAD)
    warm_up(programs, local_updates={False})
    with count_compilations() as compiled:
        state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), programs.state)
        reply = Parameters(state.params, state.model_state)
        gradient = programs.gradient(reply, 1)
        first = programs.local_step(reply, state.opt_state, None, gradient, at=1, factor=4.0)
        _, _, moved = programs.local_step(*first, gradient, at=2, factor=4.0)
        programs.combine(reply, programs.difference(gradient, moved), 0.25, replaces=False)
    assert compiled == []
