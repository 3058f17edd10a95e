"""Every shipped configuration builds a task and an optimizer that agree on one unit's gradient."""

import jax
import numpy as np
import pytest

from configs import cifar_resnet8, digits_async_hurts, digits_mlp, synthetic, text_lm
from hybridsync.config import apply_overrides
from hybridsync.core.errors import ConfigError, DataError
from hybridsync.data.cifar import CIFAR10, CIFAR100
from hybridsync.training.compiled_programs import Parameters, Programs


def gradient_shapes(module, *overrides):
    config = apply_overrides(module.config(), overrides)
    task = module.task(config)
    programs = Programs(
        task,
        module.optimizer(config),
        unit_size=config.unit_size,
        workload=config.workload,
        seed=config.seed,
        donate_parameters=False,
    )
    params, model_state = jax.eval_shape(task.init, jax.random.key(0))
    batch = programs.batch(0)
    assert {len(array) for array in batch.values()} == {config.unit_size}
    contribution = jax.eval_shape(
        programs.unit_gradient, Parameters(params, model_state), batch, np.int32(0), jax.random.key(0)
    )
    assert jax.tree.structure(contribution["floats"]["grads"]) == jax.tree.structure(params)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_digits_trains_an_mlp():
    assert gradient_shapes(digits_mlp) == 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10


def test_the_job_that_asynchrony_hurts_trains_the_same_mlp():
    assert gradient_shapes(digits_async_hurts) == gradient_shapes(digits_mlp)


def test_the_job_that_asynchrony_hurts_keeps_a_lock_step_update_and_the_work_of_a_worker_whatever_their_number():
    eight, many = digits_async_hurts.config(), digits_async_hurts.config(32)
    assert (eight.workers, many.workers) == (8, 32)
    assert eight.optimizer.learning_rate * 8 == pytest.approx(many.optimizer.learning_rate * 32)
    assert eight.workload / 8 == many.workload / 32


def test_text_trains_a_decoder_on_a_text_that_comes_with_python():
    assert gradient_shapes(text_lm) > 100_000


def test_synthetic_reaches_25_million_parameters():
    assert 24e6 < gradient_shapes(synthetic, "model.hidden=4096,3072") < 26e6


@pytest.mark.parametrize(("layout", "classes"), [(CIFAR10, 10), (CIFAR100, 100)], ids=["cifar10", "cifar100"])
def test_cifar_trains_a_resnet(tmp_path, layout, classes):
    for name in (*layout.train_files, layout.test_file):
        np.zeros((10, layout.record_bytes), np.uint8).tofile(tmp_path / name)
    num_train = 10 * len(layout.train_files)
    overrides = [f"data.folder={tmp_path}", f"data.variant={layout.name}", f"data.num_train={num_train}"]
    found = gradient_shapes(cifar_resnet8, *overrides, "data.num_test=10")
    assert found == 74_640 + 65 * classes


def test_a_missing_cifar_folder_says_what_to_set(tmp_path):
    config = apply_overrides(cifar_resnet8.config(), [f"data.folder={tmp_path}"])
    with pytest.raises(DataError, match=r"data_batch_1\.bin cannot be read .* set the data folder"):
        cifar_resnet8.task(config)


def test_an_impossible_depth_is_refused_as_configuration(tmp_path):
    for name in (*CIFAR10.train_files, CIFAR10.test_file):
        np.zeros((10, CIFAR10.record_bytes), np.uint8).tofile(tmp_path / name)
    overrides = [f"data.folder={tmp_path}", "data.num_train=50", "data.num_test=10", "model.depth=9"]
    with pytest.raises(ConfigError, match="not 9: choose 8, 20, 32"):
        cifar_resnet8.task(apply_overrides(cifar_resnet8.config(), overrides))
