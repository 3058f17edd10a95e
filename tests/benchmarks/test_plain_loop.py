"""The benchmark beside a plain loop: where keys play no part, both come to the same figure."""

from __future__ import annotations

import argparse

import numpy as np
import optax
import pytest

from benchmarks.plain_loop import Job, bare, framework
from tests.tasks import mlp_task


def test_lock_step_learns_what_the_plain_loop_learns() -> None:
    job = Job(mlp_task(), optax.sgd, 0.05, 8, figure="loss", unit="nats", scale=1.0, target=0.01)
    options = argparse.Namespace(units=24, workers=2, seed=3)
    start = argparse.Namespace(units=0, workers=2, seed=3)
    (loss,), (untrained,) = bare(job, options, keys=[3]), bare(job, start, keys=[3])
    assert loss < untrained - 0.05, "something is learnt"
    assert framework(job, "bsp", options) == pytest.approx(loss, abs=1e-5)
    assert np.isfinite(framework(job, "asp", options))
