"""Data that a run cannot take: the cases of `user_cases.py` that are about files of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bad_input.given import FRESH, HERE, Given, values
from tests.bad_input.place import TEXT, Place

DATA = [
    Given("a file that is not there", (*FRESH, *HERE, *values("data.name=none.txt")),
        r"FOLDER/none\.txt cannot be read \(No such file or directory\): name a text file\."),
    Given("a folder", (*FRESH, *HERE, *values("data.name=run")),
        r"FOLDER/run cannot be read \(Is a directory\): name a text file\."),
    Given("an empty file", (*FRESH, *HERE),
        r"FOLDER/text\.txt holds 0 bytes, two windows of 16 need 33: name a longer file or lower the length\.",
        lambda place: (place.folder / "text.txt").write_bytes(b"")),
    Given("a file shorter than two windows", (*FRESH, *HERE, *values("data.length=1024")),
        r"FOLDER/text\.txt holds 2048 bytes, two windows of 1024 need 2049: name a longer file or lower the length\."),
    Given("windows of nothing", (*FRESH, *HERE, *values("data.length=0")),
        r"windows of 0 bytes with 0\.1 of them held out cannot be cut: length must be at least 1 and test_share "
        r"between 0 and 1\."),
    Given("a file of the same size that changed since", HERE,
        "the data of this run have changed: hash was '[0-9a-f]{64}', is '[0-9a-f]{64}'; restore them, or start in a "
        "fresh workdir", lambda place: (place.folder / "text.txt").write_bytes(TEXT[::-1])),
    Given("a file that grew since", HERE,
        "the data of this run have changed: hash was '[0-9a-f]{64}', is '[0-9a-f]{64}', num_examples was 114, is 172; "
        "restore them, or start in a fresh workdir",
        lambda place: (place.folder / "text.txt").write_bytes(TEXT + TEXT[:1024])),
]


def cifar(place: Place) -> None:
    """Lay out ten records a file, all of class 0."""
    place.change_config("data.text import TextSource", "data.cifar import CifarSource")
    place.change_config("TextSource(path, config.data.length)", "CifarSource(path.parent, num_train=50, num_test=10)")
    for name in [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]:
        (place.folder / name).write_bytes(bytes(10 * 3073))


def cifar_file(name: str, change: Callable[[bytes], bytes] | None) -> Callable[[Place], Any]:
    """Lay out CIFAR with one file changed; None removes it."""

    def spoil(place: Place) -> None:
        cifar(place)
        path = place.folder / name
        content = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change(content))

    return spoil


PAGE = r"https://www\.cs\.toronto\.edu/~kriz/cifar\.html \(the binary version\)\."

DATA += [
    Given("a CIFAR file a byte short", (*FRESH, *HERE),
        r"FOLDER/data_batch_3\.bin has 30729 bytes, expected 30730 \(10 records of 3073\): the file is cut short or of "
        f"another variant. Fetch it from {PAGE}", cifar_file("data_batch_3.bin", lambda content: content[:-1])),
    Given("a CIFAR label that is no class", (*FRESH, *HERE),
        r"FOLDER/test_batch\.bin has the label 10 in record 2, cifar10 has the classes 0 to 9: the file is damaged or "
        f"of another variant. Fetch it from {PAGE}",
        cifar_file("test_batch.bin", lambda content: content[:6146] + b"\x0a" + content[6147:])),
    Given("a CIFAR file that is not there", (*FRESH, *HERE),
        r"FOLDER/data_batch_5\.bin cannot be read \(No such file or directory\), cifar10 needs the files .*: set the "
        f"data folder, or fetch them from {PAGE}", cifar_file("data_batch_5.bin", None)),
]
