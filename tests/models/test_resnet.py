import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync.core.errors import TaskError
from hybridsync.models import resnet

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def num_parameters(depth, num_classes=10):
    model = nnx.eval_shape(lambda: resnet(depth, num_classes, rngs=nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(("depth", "parameters"), [(8, 75_290), (20, 269_722), (32, 464_154), (50, 23_520_842)])
def test_the_number_of_parameters_is_the_papers(depth, parameters):
    assert num_parameters(depth) == parameters


def test_the_classes_set_the_last_layer():
    assert num_parameters(8, 100) == 75_290 + 65 * 90


@pytest.mark.parametrize("depth", [2, 9, 51])
def test_a_depth_of_no_whole_number_of_blocks_is_refused(depth):
    with pytest.raises(TaskError, match=f"6m\\+2 layers of basic blocks, not {depth}"):
        resnet(depth, 10, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("depth", [8, 50])
def test_an_image_becomes_scores(depth):
    scores = nnx.eval_shape(lambda: resnet(depth, 7, rngs=nnx.Rngs(0))(jnp.ones((2, 32, 32, 3))))
    assert scores.shape == (2, 7)


def test_a_shortcut_takes_every_second_pixel_and_pads_channels_in_the_middle():
    from hybridsync.models.resnet import BasicBlock

    block = BasicBlock(2, 4, 2, rngs=nnx.Rngs(0))
    scale = block.norm2.scale
    assert scale is not None
    scale[...] = jnp.zeros(4)
    x = jnp.arange(1.0, 33.0).reshape(1, 4, 4, 2)
    made = block(x)
    np.testing.assert_array_equal(made[..., 1:3], x[:, ::2, ::2])
    np.testing.assert_array_equal(made[..., [0, 3]], 0)
