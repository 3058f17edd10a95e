"""Handwritten digits: the 1,797 images of 8x8 that come with scikit-learn, so nothing is downloaded.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998 (its test part).
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import pathlib

import jax.numpy as jnp
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.arrays import ArraySource
from hybridsync.data.source import DeviceBatch, content_hash, pass_order, require_hash

NUM_EXAMPLES = 1797
NUM_TEST_EXAMPLES = 360
SIDE = 8
MAX_INTENSITY = 16

_CONTENT_HASH = "21c0c3dec7bbbe104f29f62d33ff3c342c8b35080bffcea673564d6d38dd34be"
_SPLIT_SEED = 0


class DigitsSource(ArraySource):
    """Serve the digits: 1,437 training and 360 test images, split the same whatever the run's seed.

    Fields: `image` (8, 8, 1), raw uint8 0..16 and decoded float32 0..1; `label` 0..9.

    Args:
      path: the table to read, gzip-compressed CSV; None reads the one inside the scikit-learn package
        (whose own import would take 1.2 s and 110 MB in every process).

    Raises:
      DataError: the table is absent, unreadable or not the published one.
    """

    def __init__(self, path: pathlib.Path | str | None = None) -> None:
        table = _load(pathlib.Path(path) if path is not None else _bundled_path())
        order = pass_order(NUM_EXAMPLES, _SPLIT_SEED, 0)
        images = table[order, :-1].reshape(-1, SIDE, SIDE, 1)
        labels = table[order, -1]
        test = slice(0, NUM_TEST_EXAMPLES)
        train = slice(NUM_TEST_EXAMPLES, None)
        super().__init__(
            "digits",
            {"image": images[train], "label": labels[train]},
            {"image": images[test], "label": labels[test]},
        )

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Scale intensities to 0..1; see `UnitSource.prepare`."""
        image = batch["image"].astype(jnp.float32) / MAX_INTENSITY
        return {"image": image, "label": batch["label"].astype(jnp.int32)}


def _bundled_path() -> pathlib.Path:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    return pathlib.Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


@functools.lru_cache(maxsize=1)
def _load(path: pathlib.Path) -> np.ndarray:
    remedy = "Install scikit-learn again."
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
        table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.float64).astype(np.uint8)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: the digits' table is missing. {remedy}") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not the digits' table (gzip-compressed CSV): {error}. {remedy}") from error
    expected = (NUM_EXAMPLES, SIDE * SIDE + 1)
    if table.shape != expected:
        raise DataError(f"{path} holds a table of shape {table.shape}, expected {expected}. {remedy}")
    require_hash(content_hash(table), _CONTENT_HASH, what=str(path), remedy=remedy)
    return table
