import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync.models import MLP

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def test_examples_are_flattened_and_scored():
    model = MLP((64, 32, 10), rngs=nnx.Rngs(0))
    assert model(jnp.ones((5, 8, 8, 1))).shape == (5, 10)


def test_the_last_layer_is_linear():
    model = MLP((4, 4), rngs=nnx.Rngs(0))
    x = jnp.arange(4.0)[None]
    np.testing.assert_allclose(model(-x), -model(x), rtol=1e-6)


def test_dropout_acts_in_training_only():
    model = MLP((16, 64, 4), rngs=nnx.Rngs(0), dropout=0.5)
    x = jnp.ones((2, 16))
    model.train()
    assert not np.array_equal(model(x), model(x))
    model.eval()
    assert np.array_equal(model(x), model(x))
