"""Sends hostile messages to every handler of a run, one after another, and writes down what should not be.

A seeded generator makes most of the messages: it sends 2,000 a second, and a fault is found again by its seed and its
number. Hypothesis draws others (`strategies.py`), about a hundred a second, and shrinks what it finds.
"""

from __future__ import annotations

import gc
import logging as std_logging
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn, cast

import grpc
import numpy as np
from absl import logging
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from hybridsync.chief.message_checks import MOST_HOLD_SECS
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.frames import send
from hybridsync.transport.grpc.status import CODES, NAME_KEY
from hybridsync.transport.named_errors import MAX_TEXT
from tests.fuzz import job as job_module
from tests.fuzz.job import SPECS, Good, Job, count_items, without_waits
from tests.fuzz.link_calls import LINK, TCP, Link, TcpCall
from tests.fuzz.mutation import Mutator

DEFECTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
NAMES = {kind.__name__ for kind in CODES}
HELD_ON = {"StillHeld", "WaitTimeout"}
"""Refusals after which the call has had its effect: the push goes on being held."""

MOST_SECS = 1.0
MOST_ITEMS = 100_000
"""Values that a job's roles keep; an honest one keeps about five thousand."""
JOB_MESSAGES = 2000


class Refused(Exception):
    """Ends a handler as gRPC's own `abort` does."""


class Context:
    """What a handler may do with its call."""

    def __init__(self) -> None:
        self.code, self.name, self.text = grpc.StatusCode.OK, "", ""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}  # of a call without TLS

    def cancel(self) -> None:
        """End the call of a caller who says nothing; these callers have said all before it."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.name = dict(metadata)[NAME_KEY]

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        self.code, self.text = code, text
        raise Refused


@dataclass
class Fault:
    """Something that should not be, where it came from, and how often.

    Args:
      what: handler and what happened: the same for every message that finds it.
      example: the first message that found it, its number, and the error.
    """

    what: str
    example: str
    count: int = 1


@dataclass
class Found:
    """What a run of the fuzzer has seen."""

    messages: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    faults: dict[str, Fault] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    longest_held: dict[str, float] = field(default_factory=dict)
    most_items: int = 0
    rss_before: int = 0
    rss_after: int = 0
    secs: float = 0.0

    @property
    def slowest_handler(self) -> tuple[str, float]:
        """The handler that took the most processor time for one message, and that time."""
        return max(self.slowest.items(), key=lambda item: item[1])

    def report(self) -> str:
        """Return what was seen, for people."""
        name, secs = self.slowest_handler
        lines = [
            f"{self.messages:,} messages in {self.secs:.1f} s ({self.messages / self.secs:,.0f}/s): {dict(self.codes)}",
            f"INTERNAL or UNKNOWN: {sum(self.codes[code.name] for code in DEFECTS)}; faults: {len(self.faults)}",
            f"slowest handler: {name}, {secs:.3f} s of processor time",
            "locks held: " + ", ".join(f"{lock} {secs:.3f} s" for lock, secs in self.longest_held.items()),
            f"kept by a job: {self.most_items:,} values at most",
            f"resident: {self.rss_before >> 20} MiB after the first part, {self.rss_after >> 20} MiB at the end",
        ]
        faults = sorted(self.faults.values(), key=lambda fault: -fault.count)
        return "\n".join([*lines, *(f"{fault.count} times {fault.what}\n    {fault.example}" for fault in faults)])


def described_at(path: str) -> MethodDescriptor | type[Link] | type[TcpCall]:
    """Return what the protocol says of a handler."""
    if path.startswith(LINK):
        return Link
    if path.startswith(TCP):
        return TcpCall
    service, _, method = path.removeprefix("/hybridsync.").partition("/")
    return pb.DESCRIPTOR.services_by_name[service].methods_by_name[method]


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    gc.collect()
    return int(FilePath("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Fuzzer:
    """Sends messages to one job after another.

    Args:
      seed: of everything that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng)
        self._error: BaseException | None = None
        self.found = Found()

    def run(self, messages: int = 2**62, secs: float = 2**62) -> Found:
        """Send that many messages, or for so long; return what was seen in all."""
        found, started = self.found, time.monotonic()
        first = min(messages // 3, 20_000)
        handler = _Commits(self)
        logging.get_absl_logger().addHandler(handler)
        try:
            with without_waits():
                while found.messages < messages and time.monotonic() - started < secs:
                    self._one_job(min(JOB_MESSAGES, messages - found.messages))
                    if not found.rss_before and found.messages >= first:
                        found.rss_before = resident()
        finally:
            logging.get_absl_logger().removeHandler(handler)
        found.rss_after, found.secs = resident(), time.monotonic() - started
        return found

    def _one_job(self, messages: int) -> None:
        rng, found = self._rng, self.found
        job = Job(rng.choice(SPECS[rng.choice((SERVER, SERVER, LOCKSTEP, GROUP))]))
        good, calls = job.good(), [*job.handlers]
        lasting = rng.random() < 0.05  # what is refused, after an end, must not be kept either
        for _ in range(messages):
            role, path = rng.choice(calls)
            if self.send(job, role, path, *self._argument(path, good)) or (job.is_spoiled and not lasting):
                break
        else:
            job.read_board()
        if (
            items := count_items([*vars(job.chief).values(), job.primary, job.store, job.replica, job.head])
        ) > MOST_ITEMS:
            self._note("a job", f"its roles keep {items} values", "after its last message")
        found.most_items = max(found.most_items, items)

    def send(self, job: Job, role: str, path: str, message: Message, argument: Any) -> bool:
        """Send one message; returns whether it found a fault, after which the job is not to be trusted.

        Args:
          job: that gets it.
          role, path: the handler.
          message: for what is told of a fault.
          argument: of the handler.
        """
        found, handler = self.found, job.handlers[role, path]
        name, context = f"{role} {path.removeprefix('/hybridsync.')}", Context()
        self._error, entering = None, path.endswith("/Enter")
        before = job.accounts(entering=entering)
        began = time.thread_time()
        try:
            answer = (handler.unary_unary or handler.unary_stream or handler.stream_stream)(argument, context)
            if not isinstance(answer, bytes):
                list(answer)
        except Refused:
            pass
        except Exception as error:  # noqa: BLE001  # whatever escapes a handler is a fault to be reported
            self._error, context.code = error, grpc.StatusCode.UNKNOWN
        took = time.thread_time() - began
        found.messages += 1
        found.codes[context.code.name] += 1
        found.answers[role, path, context.code.name] += 1
        found.slowest[name] = max(found.slowest.get(name, 0.0), took)
        for held, lock in job.locks.items():  # the machine may be busy meanwhile: no longer than the processor worked
            found.longest_held[held] = max(found.longest_held.get(held, 0.0), min(lock.longest_secs, took))
            lock.longest_secs = 0.0
        job.clock.advance(0.001)
        wrong = self._wrong(job, context, before, took, entering)
        if wrong:
            told = f"{type(message).__name__} " + str(message)[:400].replace("\n", " ")
            self._note(name, wrong, f"message {found.messages}: {told} -> {context.text[:200]}")
        return bool(wrong)

    def _wrong(self, job: Job, context: Context, before: tuple[Any, ...], took: float, entering: bool) -> str:
        """Return what is wrong with an answer, or with the job after it; "" where nothing is."""
        if context.code in DEFECTS:
            return f"answers {context.code.name}: {self._where(context.text)}"
        if context.code is not grpc.StatusCode.OK:
            plain = context.text.replace("\n", "").isprintable()
            if context.name not in NAMES or not plain or len(context.text) > MAX_TEXT:
                return f"answers {context.code.name} with a text or a name that is none: {context.name!r}"
            if context.name not in HELD_ON and job.accounts(entering=entering) != before:
                return f"refuses by {context.name}, but has changed the accounts"
        if took > MOST_SECS:
            return f"takes over {MOST_SECS:g} s"
        if job_module.longest_wait > MOST_HOLD_SECS or job_module.longest_wait != job_module.longest_wait:
            job_module.longest_wait = 0.0
            return f"waits for over {MOST_HOLD_SECS:g} s"
        try:
            job.chief.state.ledger.check()
            if self.found.messages % 7 == 0:
                job.read_board()
        except Exception as error:  # noqa: BLE001  # likewise: it is returned as a fault
            self._error = error
            return f"leaves a job behind that cannot be read: {self._where(str(error))}"
        return ""

    def _where(self, text: str) -> str:
        error = self._error
        frames = traceback.extract_tb(error.__traceback__) if error else []
        own = [frame for frame in frames if "/hybridsync/" in frame.filename]
        at = f"{own[-1].filename.split('/hybridsync/')[1]}:{own[-1].lineno}" if own else "?"
        return f"{type(error).__name__ if error else text[:60]} at {at}"

    def _argument(self, path: str, good: dict[str, list[Good]]) -> tuple[Message, Any]:
        """Return what is sent: the message that was changed, and the handler's argument."""
        rng, mutator = self._rng, self._mutator
        described, method = described_at(path), path.rpartition("/")[2]
        kind = getattr(pb, described.input_type.name)
        seed = rng.choice(good.get(method, [Good(kind())]))
        message = type(seed.message)()
        message.CopyFrom(seed.message)
        if rng.random() < 0.7:
            mutator.change(message)
        if kind is pb.Frame:
            return message, self._frames(cast(pb.Push, message), seed.num_bytes)
        data = message.SerializeToString()
        if rng.random() < 0.25:
            data = mutator.flip(data)
        return message, iter([data]) if described.client_streaming else data

    def _frames(self, push: pb.Push, num_bytes: int) -> Iterator[bytes]:
        rng = self._rng
        frames = [*send(pb.Header(push=push), np.zeros(num_bytes, np.uint8), rng.choice((64, 200, 4096)))]
        for _ in range(rng.choice((0, 0, 1, 2))):
            kind, at = rng.random(), rng.randrange(len(frames)) if frames else 0
            if not frames:
                break
            if kind < 0.4:
                frames[at] = self._mutator.flip(frames[at])
            elif kind < 0.6:
                del frames[at]
            elif kind < 0.8:
                frames.insert(at, frames[at])
            else:
                rng.shuffle(frames)
        return iter(frames)

    def _note(self, name: str, wrong: str, example: str) -> None:
        fault = self.found.faults.setdefault(f"{name} {wrong}", Fault(f"{name} {wrong}", example, 0))
        fault.count += 1

    def keep(self, error: BaseException) -> None:
        """Keep what a handler has logged as a defect."""
        self._error = error


class _Commits(std_logging.Handler):
    """Hands the defects that are logged to a fuzzer."""

    def __init__(self, fuzzer: Fuzzer) -> None:
        super().__init__()
        self._fuzzer = fuzzer

    def emit(self, record: std_logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self._fuzzer.keep(record.exc_info[1])
