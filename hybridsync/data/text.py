"""A text file as next-byte prediction: windows of bytes, the last part of the file held out."""

from __future__ import annotations

import pathlib

import jax.numpy as jnp
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.arrays import ArraySource
from hybridsync.data.source import DeviceBatch, require_hash

NUM_TOKENS = 256
"""Every byte value is a token: no vocabulary to build, store or mismatch."""


class TextSource(ArraySource):
    """Serve windows of a file: each `length` bytes to read and, shifted by one, `length` bytes to predict.

    Fields: `tokens` (length + 1,), raw uint8 and decoded int32. Windows follow each other without gap; the
    last byte of one is the first of the next, so every byte but the file's first is predicted once a pass.

    Args:
      path: the file, read as bytes.
      length: bytes predicted in one window.
      test_share: share of the windows, at the file's end, that is held out.
      expected_hash: sha256 the source must have (`describe()["hash"]`); empty accepts any.

    Raises:
      DataError: the file is absent, shorter than two windows, or has another hash.
    """

    def __init__(
        self,
        path: pathlib.Path | str,
        length: int = 128,
        *,
        test_share: float = 0.1,
        expected_hash: str = "",
    ) -> None:
        path = pathlib.Path(path)
        if length < 1 or not 0 < test_share < 1:
            raise DataError(
                f"windows of {length} bytes with {test_share} of them held out cannot be cut: "
                "length must be at least 1 and test_share between 0 and 1."
            )
        try:
            text = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): name a text file.") from error
        num_windows = (len(text) - 1) // length
        if num_windows < 2:
            raise DataError(
                f"{path} holds {len(text)} bytes, two windows of {length} need {2 * length + 1}: "
                "name a longer file or lower the length."
            )
        windows = np.lib.stride_tricks.sliding_window_view(text, length + 1)[::length]
        num_test = min(max(1, round(num_windows * test_share)), num_windows - 1)
        train, test = windows[: num_windows - num_test], windows[num_windows - num_test :]
        super().__init__("text", {"tokens": train}, {"tokens": test})
        if expected_hash:
            remedy = "Fetch the file again, or change the expected hash."
            require_hash(self.content_hash, expected_hash, what=str(path), remedy=remedy)

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Widen bytes to token numbers; see `UnitSource.prepare`."""
        return {"tokens": batch["tokens"].astype(jnp.int32)}
