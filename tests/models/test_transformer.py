import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync.core.errors import TaskError
from hybridsync.models import DecoderLM

pytestmark = pytest.mark.usefixtures("quickly_compiled")


@functools.cache
def make(**kwargs):
    defaults = {"dim": 16, "num_layers": 2, "num_heads": 2, "max_length": 8}
    return DecoderLM(11, rngs=nnx.Rngs(0), **{**defaults, **kwargs})


def test_every_position_is_scored():
    assert make()(jnp.zeros((3, 8), jnp.int32)).shape == (3, 8, 11)


def test_a_score_depends_on_no_later_token():
    model = make()
    tokens = jnp.arange(8)[None]
    changed = tokens.at[0, 5].set(10)
    before, after = model(tokens)[0], model(changed)[0]
    np.testing.assert_allclose(before[:5], after[:5], atol=1e-6)
    assert float(jnp.abs(before[5:] - after[5:]).max(1).min()) > 1e-4


def test_positions_are_told_apart():
    scores = make()(jnp.zeros((1, 8), jnp.int32))[0]
    assert float(jnp.abs(scores[1:] - scores[:-1]).max(1).min()) > 1e-5


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(TaskError, match="3 heads do not divide the width 16"):
        make(num_heads=3)


def test_a_window_longer_than_the_positions_is_refused():
    with pytest.raises(TaskError, match="9 tokens, the model has 8 positions"):
        make()(jnp.zeros((1, 9), jnp.int32))
