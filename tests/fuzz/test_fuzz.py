"""Hostile messages at every handler: a named refusal or an answer, the accounts kept, in no time and no memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridsync.chief import service
from hybridsync.chief.bad_units import PoisonUnits
from hybridsync.core.errors import InvalidMessage
from hybridsync.server import secondary as store_module
from hybridsync.server.primary import Primary
from hybridsync.transport.grpc import codec
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from tests.fuzz.fuzzer import MOST_SECS, Found, Fuzzer, described_at
from tests.fuzz.job import Job, servicers, without_waits
from tests.fuzz.link_calls import ANY_CALL, LINK, TCP
from tests.fuzz.strategies import messages
from tests.sweeps import swept

MESSAGES, SEED = 15_000, 11
EXAMPLES = 300
STREAMED = {"PushPull", "Stage", "Upload"}
"""Calls of frames, which the seeded generator cuts, repeats and shuffles."""
GOOD = {method: [each.message for each in good] for method, good in Job().good().items()}
GROWTH = 64 << 20
"""Bytes by which the process may grow: by compiled programs, and by what allocators keep."""


@functools.cache
def fuzzed() -> Found:
    return Fuzzer(SEED).run(messages=MESSAGES)


@pytest.mark.timeout(600)
def test_hostile_messages_are_answered_by_name_at_once_and_change_no_accounts() -> None:
    found = fuzzed()
    assert found.messages == MESSAGES
    assert not found.faults, found.report()
    assert found.slowest_handler[1] < MOST_SECS and max(found.longest_held.values()) < MOST_SECS, found.report()


CALLS = sorted(call for call in Job().handlers if call[1].rpartition("/")[2] not in STREAMED)


@st.composite
def sent(draw: st.DrawFn) -> tuple[str, str, Message]:
    """Return a handler, and a good message with what was drawn put over it."""
    role, path = draw(st.sampled_from(CALLS))
    drawn = draw(messages(getattr(pb, described_at(path).input_type.name).DESCRIPTOR))
    good = GOOD.get(path.rpartition("/")[2], [])
    if not good or draw(st.booleans()):
        return role, path, drawn
    message = type(drawn)()
    message.CopyFrom(draw(st.sampled_from(good)))
    message.MergeFrom(drawn)
    return role, path, message


@pytest.mark.timeout(600)
@settings(max_examples=EXAMPLES)
@given(calls=st.lists(sent(), min_size=1, max_size=6))
def test_messages_that_hypothesis_draws_are_answered_by_name_and_change_no_accounts(
    calls: list[tuple[str, str, Message]],
) -> None:
    fuzzer, job = Fuzzer(SEED), Job()
    fuzzer.found.secs = 1.0
    with without_waits():
        for role, path, message in calls:
            data = message.SerializeToString()
            fuzzer.send(job, role, path, message, iter([data]) if described_at(path).client_streaming else data)
    assert not fuzzer.found.faults, fuzzer.found.report()


@pytest.mark.timeout(600)
def test_hostile_messages_leave_memory_flat() -> None:
    found = fuzzed()
    assert found.rss_before and found.rss_after - found.rss_before < GROWTH, found.report()


def test_every_servicer_of_the_package_is_fuzzed() -> None:
    job = Job()
    present = {type(servicer) for served in job.roles.values() for servicer in served}
    assert present == servicers(), "a servicer is missing in tests/fuzz/job.py"
    methods = {f"/{s.full_name}/{m.name}" for s in pb.DESCRIPTOR.services_by_name.values() for m in s.methods}
    assert {path for _, path in job.handlers if not path.startswith((LINK, TCP))} == methods


@pytest.mark.timeout(600)
def test_every_handler_has_accepted_a_message_and_refused_another() -> None:
    answers = fuzzed().answers
    for role, path in Job().handlers:
        codes = {code for who, at, code in answers if (who, at) == (role, path)}
        only_refuses = path in ("/hybridsync.SnapshotSource/Read", f"{LINK}read", f"{TCP}read") or (role, path) in {
            ("chief", "/hybridsync.SnapshotSource/TakeSnapshot"),  # takes part in no phase
            ("store", "/hybridsync.SnapshotSource/TakeSnapshot"),  # the primary captures the whole
            *((role, f"{link}{ANY_CALL}") for role in ("chief", "worker") for link in (LINK, TCP)),
            ("store", f"{TCP}{ANY_CALL}"),  # few draws in a thousand are good ones; its calls are each accepted by name
        }
        assert codes - {"OK"}, f"{role} {path} refused nothing"
        assert "OK" in codes or only_refuses, f"{role} {path} accepted nothing of what it was sent: {codes}"


def without(*_: Any, **__: Any) -> None:
    """Take the place of a check."""


def unchecked_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        store_module,
        "check_updates",
        lambda updates, sequence: tuple(update for update in updates if update.sequence > sequence),
    )


def unchecked_heartbeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(service, "check_heartbeat", without)
    patch.setattr(codec, "_check_finite", without)


def kept_suspects(patch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def note(self: PoisonUnits, event: Any) -> None:
        vars(self).setdefault("_events", kept).extend([event] * 2000)

    patch.setattr(PoisonUnits, "record", note)


def refused_too_late(patch: pytest.MonkeyPatch) -> None:
    pull = Primary.pull

    def pull_late(self: Primary, push: Any) -> Any:
        self._sequencer.count.sequence += 1
        if push.base:
            raise InvalidMessage("too late")
        return pull(self, push)

    patch.setattr(Primary, "pull", pull_late)


PLANTED = [
    (unchecked_updates, "has changed the accounts", 4),  # the seed finds it within a few thousand messages
    (refused_too_late, "but has changed the accounts", SEED),
    (kept_suspects, "its roles keep", SEED),
    (unchecked_heartbeat, "waits for over", SEED),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", swept(PLANTED, 2), ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_the_fuzzer_finds_a_planted_bug(
    planted: tuple[Callable[[pytest.MonkeyPatch], None], str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, told, seed = planted
    plant(monkeypatch)
    fuzzer = Fuzzer(seed)
    for _ in range(20):
        fuzzer.run(messages=fuzzer.found.messages + 1000)
        if any(told in fault for fault in fuzzer.found.faults):
            return
    raise AssertionError(f"nobody noticed: {fuzzer.found.report()}")


@pytest.mark.timeout(600)
def test_hypothesis_finds_a_planted_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_too_late(monkeypatch)
    with pytest.raises(AssertionError, match="but has changed the accounts"):
        test_messages_that_hypothesis_draws_are_answered_by_name_and_change_no_accounts()
