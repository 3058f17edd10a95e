"""What a task's functions measure, and what of it is numbers."""

from __future__ import annotations

import dataclasses
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.core.errors import TaskError, WaitTimeout
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.commands import Evaluation
from hybridsync.interfaces.messages import EvaluationRequest
from hybridsync.training import evaluation
from hybridsync.training.evaluation import Evaluator, StateEvaluator, numbers
from hybridsync.training.state import initial_state
from tests.tasks import mlp_task, plain_sgd

leaked: list[Any] = []
jax.jit(lambda x: leaked.append(x) or x)(1.0)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *[(3, 3), (0.5, 0.5), (True, 1), (np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), 1.0)],
        *[(jnp.float32(0.5), 0.5), (jnp.int32(3), 3), (jnp.bfloat16(0.5), 0.5), (np.array(0.5), 0.5)],
        *[(Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (float("inf"), float("inf"))],
    ],
    ids=repr,
)
def test_scalars_of_every_library_are_numbers(value: Any, number: float) -> None:
    figures, wrong = numbers({"figure": value})
    assert figures == {"figure": number} and wrong == []
    assert type(figures["figure"]) in (int, float)


def test_what_is_not_a_number_is_still_a_number() -> None:
    figures, wrong = numbers({"loss": float("nan"), "other": jnp.nan})
    assert all(np.isnan(value) for value in figures.values()) and len(figures) == 2 and wrong == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *[(None, "None"), ("0.5", "a str"), (b"1", "a bytes"), ({"top1": 0.5}, "a dict"), ([0.5], "a list")],
        *[(np.ones(3), "an array of shape (3,)"), (jnp.ones((2, 2)), "an array of shape (2, 2)"), (1j, "a complex")],
        *[(10**400, "an int"), (object(), "an object"), (leaked[0], "DynamicJaxprTracer"), ([[1], [2, 3]], "a list")],
    ],
    ids=["none", "text", "bytes", "dict", "list", "array", "matrix", "complex", "huge", "object", "tracer", "ragged"],
)
def test_anything_else_is_left_out_and_named(value: Any, kind: str) -> None:
    figures, (wrong,) = numbers({"figure": value, "loss": 2.0})
    assert figures == {"loss": 2.0}
    assert wrong.startswith("'figure' is ") and kind in wrong


def test_a_name_is_a_text() -> None:
    assert numbers({3: 0.5}) == ({}, ["a name is an int, not a text"])


def measured(**parts: Any) -> Any:
    task = dataclasses.replace(mlp_task(), **parts)
    state = initial_state(task, plain_sgd(), 0)
    return Evaluator(task).evaluate(state, UnitSet(()))


def test_sums_over_the_held_out_batches_become_means() -> None:
    found = measured(evaluate=lambda params, state, batch: {"count": jnp.float32(4), "loss": 6.0, "correct": 2})
    assert found == {"loss": 1.5, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"evaluate": lambda params, state, batch: 0.5}, "Task.evaluate returned an array|Task.evaluate returned a"),
        ({"evaluate": lambda params, state, batch: {"loss": 1.0}}, "without 'count'"),
        ({"evaluate": lambda params, state, batch: {"count": 1, "loss": jnp.ones(3)}}, r"'loss' is an array of shape"),
        ({"summarize": lambda params, state, applied: None}, "Task.summarize returned None"),
        ({"summarize": lambda params, state, applied: 0.5}, "Task.summarize returned a float"),
    ],
)
def test_what_a_task_does_not_promise_is_named(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(TaskError, match=named):
        measured(**parts)


def test_an_evaluation_that_hangs_has_the_next_one_refused_and_the_one_after_it_ended_is_measured(monkeypatch) -> None:
    began, ends = threading.Event(), threading.Event()

    class Hanging:
        def measured(self, state: Any) -> Evaluation:
            began.set()
            assert ends.wait(60.0)
            return Evaluation(4, ())

    monkeypatch.setattr(evaluation, "fetch", lambda *values: None)
    measures = StateEvaluator(Hanging(), None, None)  # pyright: ignore[reportArgumentType]
    request = EvaluationRequest("holder", 1, "c0ffee")
    first = threading.Thread(target=measures.evaluate, args=(request,))
    first.start()
    assert began.wait(60.0)
    monkeypatch.setattr(evaluation, "BUSY_SECS", 0.01)
    with pytest.raises(WaitTimeout, match=r"has not ended within 0\.01 s here; measure elsewhere"):
        measures.evaluate(request)
    ends.set()
    first.join()
    assert measures.evaluate(request) == Evaluation(4, ())
