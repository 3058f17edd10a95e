import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data.cifar import CIFAR10, CIFAR100, CifarSource, crop_and_mirror


def write(folder, layout, num_train=50, num_test=10):
    """Write an excerpt of random images in `layout`; return every training record."""
    rng = np.random.RandomState(0)

    def records(count):
        made = rng.randint(0, 256, (count, layout.record_bytes)).astype(np.uint8)
        made[:, layout.label_bytes - 1] = np.arange(count) % layout.num_classes
        return made

    train = records(num_train)
    for name, part in zip(layout.train_files, np.split(train, len(layout.train_files)), strict=True):
        part.tofile(folder / name)
    records(num_test).tofile(folder / layout.test_file)
    return train


def read(folder, layout=CIFAR10, **kwargs):
    return CifarSource(folder, layout, num_train=50, num_test=10, **kwargs)


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
def test_units_hold_the_files_records(tmp_path, layout):
    records = write(tmp_path, layout)
    source = read(tmp_path, layout)
    batch = source.batch(0, unit_size=50, seed=3)
    got = sorted((int(y), x.tobytes()) for x, y in zip(batch["image"], batch["label"], strict=True))
    wanted = sorted((int(r[layout.label_bytes - 1]), r[layout.label_bytes :].tobytes()) for r in records)
    assert got == wanted
    assert source.describe()["num_examples"] == 50
    assert sum(len(b["label"]) for b in source.test_batches(4)) == 10


def test_decoding_puts_channels_last_and_normalises_each(tmp_path):
    write(tmp_path, CIFAR10)
    source = read(tmp_path)
    raw = source.batch(0, unit_size=4, seed=0)
    image = source.prepare({k: jnp.asarray(v) for k, v in raw.items()})["image"]
    assert image.shape == (4, 32, 32, 3)
    wanted = (raw["image"][1, 2, 5, 7] / 255 - CIFAR10.mean[2]) / CIFAR10.std[2]
    assert float(image[1, 5, 7, 2]) == pytest.approx(wanted, abs=1e-5)


def test_augmentation_is_a_function_of_the_key(tmp_path):
    write(tmp_path, CIFAR10)
    source = read(tmp_path)
    batch = {k: jnp.asarray(v) for k, v in source.batch(0, unit_size=8, seed=0).items()}
    augment = jax.jit(source.augment)
    one, again, other = (augment(batch, jax.random.key(k))["image"] for k in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.array_equal(augment(batch, jax.random.key(0))["label"], batch["label"])


def test_every_augmented_image_is_a_shift_of_itself_or_its_mirror():
    image = np.random.RandomState(1).randint(1, 256, (64, 3, 32, 32)).astype(np.uint8)
    made = np.asarray(crop_and_mirror(jnp.asarray(image), jax.random.key(5)))
    padded = np.pad(image, ((0, 0), (0, 0), (4, 4), (4, 4)))
    seen = set()
    for index in range(64):
        crops = {
            (top, left, mirrored): padded[index, :, top : top + 32, left : left + 32][..., :: -1 if mirrored else 1]
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
        }
        matches = [where for where, crop in crops.items() if np.array_equal(crop, made[index])]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {mirrored for _, _, mirrored in seen} == {False, True}
    assert len({top for top, _, _ in seen}) == len({left for _, left, _ in seen}) == 9


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def mislabel(path):
    data = bytearray(path.read_bytes())
    data[2 * CIFAR10.record_bytes] = 10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data_batch_3.bin", cut, "has 30729 bytes, expected 30730"),
        ("test_batch.bin", mislabel, "label 10 in record 2, cifar10 has the classes 0 to 9"),
        ("data_batch_5.bin", lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_remedy(tmp_path, name, damage, message):
    write(tmp_path, CIFAR10)
    damage(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "etch" in str(caught.value)


def test_other_bytes_than_expected_are_refused_with_both_hashes(tmp_path):
    write(tmp_path, CIFAR10)
    found = read(tmp_path).describe()["hash"]
    read(tmp_path, expected_hash=found)
    with pytest.raises(DataError, match=f"sha256 is {found}, expected 00ff"):
        read(tmp_path, expected_hash="00ff")


if CIFAR10_FOLDER := os.environ.get("HYBRIDSYNC_CIFAR10"):

    def test_the_published_files_are_read_whole(folder: str = CIFAR10_FOLDER):
        source = CifarSource(folder)
        labels = np.concatenate([source.batch(u, unit_size=10_000, seed=0)["label"] for u in range(5)])
        assert np.bincount(labels).tolist() == [5000] * 10
