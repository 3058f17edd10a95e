"""Everything a peer or a user can send wrong is refused by name, with both values, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import ServerRule
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.frames import send
from hybridsync.transport.grpc.status import CODES, NAME_KEY
from hybridsync.workdir.opening import open_run
from tests.bad_input.given import Given
from tests.bad_input.job import Job, running
from tests.bad_input.place import Place, flip, make_place
from tests.bad_input.shared_memory_cases import SHARED_MEMORY
from tests.bad_input.tcp_cases import TCP
from tests.bad_input.user_cases import PROCESS, USER
from tests.bad_input.wire_cases import WIRE, Wire, not_finite, push

ROOT = Path(__file__).parents[2]
DEFECTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}


def assert_text(text: str, pattern: str) -> None:
    assert re.fullmatch(pattern, text, re.DOTALL), f"answered {text!r}, expected {pattern!r}"


def each(groups: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the cases of all groups as parameters."""
    return [pytest.param(case, id=f"{group}: {case.name}") for group, cases in groups.items() for case in cases]


# --- what a peer can send ---


def answer(case: Wire, job: Job) -> tuple[grpc.StatusCode, str, str]:
    """Send the case's message, and return status, named error and text of the answer."""
    try:
        return grpc.StatusCode.OK, "", str(case.send(job))
    except HybridSyncError as error:  # over shared memory, or TCP
        return CODES[type(error)], type(error).__name__, str(error)
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        trailing: Any = error.trailing_metadata()  # pairs; the stubs know of no way to read one
        return error.code(), dict(trailing or ()).get(NAME_KEY, ""), error.details() or ""


@pytest.mark.parametrize("case", each({**WIRE, **SHARED_MEMORY, **TCP}))
def test_a_bad_message_is_answered_by_name_and_changes_nothing(case: Wire) -> None:
    with running() as job:
        case.before(job)
        before = job.fingerprints()
        code, name, text = answer(case, job)
        assert code not in DEFECTS, f"{code.name} from a handler is a defect: {text}"
        assert (code, name) == (case.code, case.error), text
        assert_text(text, case.text)
        assert job.fingerprints() == before
        job.assert_works()


@pytest.mark.parametrize(
    ("way", "value"), [("small", np.nan), ("chunks", np.inf), ("chunks", -np.inf), ("named by another server", 0.0)]
)
def test_a_contribution_that_is_not_finite_is_dropped_and_trains_nothing(way: str, value: float) -> None:
    with running() as job:
        spoiled, before = not_finite(value), job.fingerprints()
        if way == "small":
            reply = job.push(push(1), spoiled)
        elif way == "chunks":
            first, *_ = job.chunks(*send(pb.Header(push=encode(push(1))), spoiled))
            reply = pb.Frame.FromString(first).header.reply
        else:
            reply = job.push(push(1, non_finite="leaf w, first index [0]"), spoiled)
        assert_text(reply.dropped, r"non_finite: leaf \S+, first index \[0\]")
        assert (reply.sequence, job.primary._sequencer.count.dropped.ranges()) == (1, ((1, 2),))
        fingerprint, sequence, phase, applied, *_ = job.fingerprints()[0]
        assert (fingerprint, sequence, phase, applied) == before[0][:4]
        assert job.fingerprints()[1:] == before[1:]
        assert job.push(push(1)).duplicate
        job.assert_works()


# --- what a user can give ---


@dataclass(frozen=True)
class NeedsSeveral(Asp):
    """A protocol whose argument has a type, and may not suit the workers."""

    name: ClassVar[str] = "held"
    count: int = 1

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        if self.count > len(members):
            raise ConfigError(
                f"held needs count pushes at a time, got {self.count} of {len(members)} workers; lower count"
            )
        return super().server_rule(members)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The folder that every case gets a copy of."""
    return make_place(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def place(stopped: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setitem(protocols.REGISTRY, "held", NeedsSeveral)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")  # two GPUs, as far as a host's agent can tell
    yield Place(Path(shutil.copytree(stopped.folder, tmp_path / "place")))


@pytest.mark.parametrize("case", each(USER))
def test_a_bad_command_is_refused_with_one_line_and_changes_nothing(case: Given, place: Place) -> None:
    kept = case.change(place)  # a lock stays while it is referred to
    before = place.digest()
    ended = place.launch(tuple(flag.replace("FOLDER", str(place.folder)) for flag in case.flags))
    assert ended.code == 1, ended.text
    (line,) = ended.text.splitlines()
    assert_text(line.removeprefix("error: "), case.text.replace("FOLDER", re.escape(str(place.folder))))
    assert place.digest() == before
    del kept


# --- what only a real process shows ---


@pytest.mark.parametrize("case", each(PROCESS))
def test_a_command_that_cannot_be_read_is_refused_by_its_process(case: Given, place: Place) -> None:
    case.change(place)
    before = place.digest()
    flags = (f"--config={place.config}", f"--workdir={place.run}", *case.flags)
    command = [sys.executable, "-m", "hybridsync.cli.train", *flags]
    environment = {**os.environ, "PYTHONPATH": str(place.folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert_text(done.stderr.strip(), case.text.replace("FOLDER", re.escape(str(place.folder))))
    assert place.digest() == before


# --- what is mended instead of refused ---


def test_a_damaged_newest_checkpoint_is_set_aside_by_name_and_its_units_are_done_again(place: Place) -> None:
    *_, before, newest = place.steps
    flip(newest)
    opening = open_run(place.loaded_run(), resume="auto")
    assert opening.lock is not None
    opening.lock.release()
    ((step, reason),) = opening.quarantined
    assert step == int(newest.name)
    assert re.fullmatch(r"file \S+ holds other bytes than were written \(\d+ bytes\)", reason)
    assert (newest.parent / "quarantine" / newest.name / "reason.txt").read_text() == reason + "\n"
    assert before.exists() and opening.ledger.num_applied == 20 and opening.rolled_back > 0
