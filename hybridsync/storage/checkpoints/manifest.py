"""Proves what a step holds: `manifest.json` carries a digest of every file, every leaf, every item and itself.

The files' digests find every changed byte, also one that Orbax would never look at. The leaves' and items' digests
are of what was handed in, before Orbax wrote it: they find what went wrong on the way to the files and back.

    format   version of this layout
    units    units applied in the state
    leaves   path -> [type, digest]
    items    name -> digest of the canonical JSON
    files    path below the step -> [bytes, digest]
    step     number of the step, which is its folder's name
    run      identity of the run that saved it
    parent   [step, digest of its manifest] of the step before it
    digest   of all the above, as canonical JSON

Steps of older versions lack `step`, `run` and `parent`: they are taken as they are named.

    >>> manifest = Manifest(7, {"w": ("float32[2]", "1a")}, {"run": "2b"}, {"state/_METADATA": (3, "4c")})
    >>> Manifest.parse(manifest.text().encode(), "step 1") == manifest
    True
    >>> Manifest.parse(manifest.text().replace("float32", "float16").encode(), "step 1")
    Traceback (most recent call last):
    hybridsync.storage.checkpoints.manifest.Damaged: file manifest.json is not what was written: it has another digest
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hybridsync.core.errors import CheckpointError
from hybridsync.storage.durable import open_file
from hybridsync.training.buffer_layout import describe, digest, leaf_bytes

MANIFEST_FILE = "manifest.json"
FORMAT = 3
_CHUNK_BYTES = 1 << 20
_DAMAGE = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EIO, errno.EINVAL, errno.EUCLEAN, errno.EBADMSG),
}


class Damaged(Exception):
    """A step that does not hold what was saved; the message names the file or leaf, and what is wrong with it."""


@dataclass(frozen=True)
class Manifest:
    """Describes what was saved in one step.

    Args:
      units: units applied in the state.
      leaves: each leaf's type, as `float32[2,3]`, and the digest of its bytes, by path.
      items: the digest of each JSON object, by name.
      files: each file's size in bytes and digest, by its path below the step; the manifest itself is not in it.
      step: number of the step; None in the manifest of an older version, as for the two below.
      run: identity of the run that saved it.
      parent: number of the step before it, and the digest of that one's manifest.
    """

    units: int
    leaves: Mapping[str, tuple[str, str]]
    items: Mapping[str, str]
    files: Mapping[str, tuple[int, str]]
    step: int | None = None
    run: str | None = None
    parent: tuple[int, str] | None = None

    def text(self) -> str:
        """Return the content of `manifest.json`: one text for one manifest, so that any changed byte shows."""
        record = {
            "format": FORMAT,
            "units": self.units,
            "leaves": self.leaves,
            "items": self.items,
            "files": self.files,
            "step": self.step,
            "run": self.run,
            "parent": self.parent,
        }
        return _sealed(json.loads(json.dumps(record)))

    @staticmethod
    def parse(content: bytes, step: str) -> Manifest:
        """Return the manifest of which this is the text.

        Args:
          content: content of `manifest.json`.
          step: name of the step, for errors.

        Raises:
          Damaged: it is not the text of a manifest, byte for byte, or lacks a part.
          CheckpointError: the manifest is of another format.
        """
        try:
            record = json.loads(content.decode())
            del record["digest"]
            intact = _sealed(record).encode() == content
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Damaged(f"file {MANIFEST_FILE} is not what was written: {error!r:.80}") from error
        if not intact:
            raise Damaged(f"file {MANIFEST_FILE} is not what was written: it has another digest")
        if record.get("format", FORMAT) != FORMAT:
            raise CheckpointError(
                f"{step} has format {record['format']}, this HybridSync reads format {FORMAT}: "
                "use the version that wrote it"
            )
        if lacking := sorted({"format", "units", "leaves", "items", "files"} - record.keys()):
            raise Damaged(f"file {MANIFEST_FILE} lacks {', '.join(lacking)}: another program wrote it")
        return Manifest(
            record["units"],
            {path: (kind, seal) for path, (kind, seal) in record["leaves"].items()},
            record["items"],
            files={path: (size, seal) for path, (size, seal) in record["files"].items()},
            step=record.get("step"),
            run=record.get("run"),
            parent=tuple(record["parent"]) if record.get("parent") else None,
        )

    def check_place(self, folder: Path, run: str | None) -> None:
        """Compare where a step stands with what it says of itself.

        Args:
          folder: folder of the step, among the others of its run.
          run: identity of the run that they are of; None if unknown.

        Raises:
          Damaged: it has another step's name, is of another run, or does not follow the step before it.
          OSError: the step before it cannot be read at present.
        """
        if self.step is not None and str(self.step) != folder.name:
            raise Damaged(f"its folder is named {folder.name}, its manifest says step {self.step}: it was renamed")
        if run is not None and self.run is not None and self.run != run:
            raise Damaged(f"its manifest says run {self.run}, this is run {run}: it was brought from another workdir")
        if self.parent is None:
            return
        number, expected = self.parent
        try:
            before = folder.parent / str(number)
            read_manifest(before)
            found = manifest_digest(before)
        except (Damaged, CheckpointError):
            return  # deleted since, or damaged itself, which must not cost this step
        if found != expected:
            raise Damaged(
                f"it was saved behind a step {number} whose manifest has digest {expected}, step {number} here has "
                f"{found}: one of the two was brought from another workdir"
            )

    def check_files(self, folder: Path) -> None:
        """Compare every file with what was written.

        Raises:
          Damaged: the first one that is missing, of another size, holds another byte, or is a symbolic link.
          OSError: a file cannot be read at present.
        """
        for parent, folders, names in os.walk(folder):
            for name in (*folders, *names):
                _refuse_link(folder, os.path.relpath(os.path.join(parent, name), folder))
        for path, (size, expected) in self.files.items():
            found_size, found = _file_seal(folder, path)
            if found_size != size:
                raise Damaged(f"file {path} has {found_size} bytes, {size} were written")
            if found != expected:
                raise Damaged(f"file {path} holds other bytes than were written ({size} bytes)")

    def check_content(self, leaves: Mapping[str, Any], items: Mapping[str, Any]) -> None:
        """Compare what was read with what was handed in to be saved.

        Args:
          leaves: arrays by path.
          items: JSON objects by name.

        Raises:
          Damaged: names the first item or leaf that differs.
        """
        for name, item in items.items():
            if json_digest(item) != self.items[name]:
                raise Damaged(f"{name} differs from what was saved")
        if leaves.keys() != self.leaves.keys():
            missing = sorted(leaves.keys() ^ self.leaves.keys())[0]
            raise Damaged(f"leaf {missing} is stored or recorded, not both")
        for path, (kind, expected) in self.leaves.items():
            array = leaves[path]
            if not isinstance(array, np.ndarray) or describe(array.dtype, array.shape) != kind:
                raise Damaged(f"leaf {path} is no longer {kind}")
            if digest(leaf_bytes(array).data) != expected:
                raise Damaged(f"leaf {path} differs from what was saved")


def read_manifest(folder: Path) -> Manifest:
    """Return a step's manifest.

    Raises:
      Damaged: it is missing, or not what was written, or the step is a symbolic link.
      CheckpointError: the manifest is of another format.
      OSError: the manifest cannot be read at present.
    """
    if folder.is_symlink():
        raise Damaged(f"it is a symbolic link to {os.readlink(folder)}; links are not followed")
    return Manifest.parse(_content(folder, MANIFEST_FILE), f"checkpoint {folder.name} in {folder.parent}")


def manifest_digest(folder: Path) -> str:
    """Return what tells a step's manifest from every other.

    Raises:
      Damaged: the manifest is missing.
      OSError: the manifest cannot be read at present.
    """
    return digest(_content(folder, MANIFEST_FILE))


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size in bytes and the digest of every file below a folder, by path.

    Raises:
      OSError: the disk refuses.
      Damaged: a file is gone again.
    """
    paths = [
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    ]
    return {path: _file_seal(folder, path) for path in sorted(paths)}


def json_digest(item: Any) -> str:
    """Return the digest of a JSON value, whatever the order of its keys.

    >>> json_digest({"a": 1, "b": [2]}) == json_digest({"b": [2], "a": 1})
    True
    """
    return digest(json.dumps(item, sort_keys=True, separators=(",", ":")).encode())


def _sealed(record: dict[str, Any]) -> str:
    return json.dumps(record | {"digest": json_digest(record)}, indent=1, sort_keys=True) + "\n"


def _file_seal(folder: Path, path: str) -> tuple[int, str]:
    try:
        with open(folder / path, "rb", buffering=0, opener=_no_follow) as file:
            hasher, size = xxhash.xxh3_128(), 0
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise _damage(path, error) from error
    return size, hasher.hexdigest()


def _content(folder: Path, path: str) -> bytes:
    try:
        with open(folder / path, "rb", buffering=0, opener=_no_follow) as file:
            return file.readall()
    except OSError as error:
        raise _damage(path, error) from error


def _refuse_link(folder: Path, path: str) -> None:
    if (folder / path).is_symlink():
        raise Damaged(f"{path} is a symbolic link to {os.readlink(folder / path)}; links are not followed")


def _damage(path: str, error: OSError) -> Exception:
    """Tell damage, which a fallback mends, from a passing refusal, which must not cost a good step."""
    if error.errno not in _DAMAGE:
        return error
    return Damaged(f"file {path} is missing" if error.errno == errno.ENOENT else f"file {path}: {error.strerror}")


def _no_follow(path: str, flags: int) -> int:
    return open_file(path, flags | os.O_NOFOLLOW)
