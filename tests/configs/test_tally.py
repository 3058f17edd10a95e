import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tally
from hybridsync.core.units import UnitSet

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def task():
    return tally.task(tally.config())


def test_the_gradient_of_a_unit_is_one_hot(task):
    params, state = task.init(KEY)
    assert params["tally"].shape == (12_000,)
    batch = {"unit": jnp.asarray(task.source.batch(11_999, unit_size=1, seed=0)["unit"])}
    gradient = jax.grad(task.loss, has_aux=True)(params, state, batch, KEY)[0]["tally"]
    assert np.flatnonzero(gradient).tolist() == [11_999]
    assert float(gradient[11_999]) == 1.0


def counted(*units):
    counts = np.zeros(20, np.float32)
    np.subtract.at(counts, list(units), 1)
    return {"tally": counts + np.float32(0.01)}


@pytest.mark.parametrize(
    ("units", "applied", "expected"),
    [
        ((0, 1, 2), [(0, 3)], (1, 1, 0)),
        ((0, 2), [(0, 3)], (0, 1, 0)),
        ((0, 1, 1, 2), [(0, 3)], (1, 2, 0)),
        ((0, 1, 12), [(0, 2), (12, 13)], (1, 1, 0)),
        ((0, 1, 5, 5), [(0, 2)], (1, 1, 2)),
        ((), [], (0, 0, 0)),
    ],
    ids=["exact", "lost", "twice", "replaced", "stray", "nothing"],
)
def test_the_summary_tells_lost_doubled_and_stray_units(units, applied, expected):
    found = tally.summarize(counted(*units), {}, UnitSet(applied))
    assert (found["min_count"], found["max_count"], found["stray"]) == expected
