"""Transfers that take as long as on the emulated links, on a clock that stands still but for their waiting."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import tally
from hybridsync import EmulationConfig, TelemetryConfig
from hybridsync.config import Stragglers
from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import NO_PHASE
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated
from hybridsync.emulation.link_model import Wire
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer
from hybridsync.runtime.role.server_wiring import server_port
from hybridsync.training.run import Run
from tests.telemetry.clocks import ManualClock
from tests.trainers import is_exact, tally_trainer

PUSH = Push(NO_PHASE, 0, 1, (4,), 0)


def paced(clock: ManualClock, stragglers: str = "", **links: float) -> Pacing:
    slow = Stragglers(stragglers, workload=10)
    return Pacing(Wire(**links), push_bytes=200, pull_bytes=100, clock=clock, wait=clock.advance, stragglers=slow)


def test_a_push_and_a_pull_take_what_their_bytes_take_on_the_link() -> None:
    clock = ManualClock(now=0.0)
    pacing = paced(clock, link_bytes_per_sec=100.0)
    pacing.push_begins(PUSH)()
    assert clock.now == pytest.approx(2.0)
    pacing.pull_begins(PUSH)()
    assert clock.now == pytest.approx(3.0)


def test_transfers_take_what_the_bytes_of_their_phase_take() -> None:
    clock, sizes = ManualClock(now=0.0), [(200, 100), (100, 50)]
    pacing = Pacing(Wire(link_bytes_per_sec=100.0), 200, 100, clock, clock.advance, sizes=lambda: sizes[0])
    pacing.push_begins(PUSH)()
    assert clock.now == pytest.approx(2.0)
    sizes.pop(0)
    pacing.push_begins(PUSH)()
    pacing.pull_begins(PUSH)()
    assert clock.now == pytest.approx(3.5)


def test_what_the_bytes_took_already_is_not_waited_for_again() -> None:
    clock = ManualClock(now=0.0)
    arrives = paced(clock, link_bytes_per_sec=100.0).push_begins(PUSH)
    clock.advance(1.5)
    arrives()
    assert clock.now == pytest.approx(2.0)
    clock.advance(10.0)
    arrives()
    assert clock.now == pytest.approx(12.0)


def test_transfers_that_begin_together_share_the_port_and_end_together() -> None:
    clock = ManualClock(now=0.0)
    pacing = paced(clock, port_bytes_per_sec=100.0)
    begun = [pacing.pull_begins(PUSH) for _ in range(3)]
    ends = []
    for arrives in begun:
        arrives()
        ends.append(clock.now)
    assert ends == pytest.approx([3.0, 3.0, 3.0])


def test_who_waits_already_waits_longer_where_another_begins() -> None:
    clock = ManualClock(now=0.0)
    pacing: Pacing
    later = [1.0]

    def wait(secs: float) -> None:
        clock.advance(secs if not later else later.pop())
        if clock.now == 1.0:
            pacing.pull_begins(PUSH)

    pacing = Pacing(Wire(port_bytes_per_sec=100.0), 200, 200, clock, wait)
    pacing.pull_begins(PUSH)()
    assert clock.now == pytest.approx(3.0), "1 s alone, and 2 s at half the speed"


def test_a_straggler_alone_waits_longer_and_only_between_its_shares_of_the_workload() -> None:
    clock = ManualClock(now=0.0)
    pacing = paced(clock, "worker=1,rpc_ms=500,bytes_per_sec=50,from=30%,to=60%", link_bytes_per_sec=100.0)

    def took(worker: int, *units: int) -> tuple[float, float]:
        push, started = PUSH._replace(worker=worker, units=units), clock.now
        pacing.push_begins(push)()
        arrived = clock.now
        pacing.pull_begins(push)()
        return arrived - started, clock.now - arrived

    assert took(1, 2) == pytest.approx((2.0, 1.0)), "it is not slow yet"
    assert took(1, 4) == pytest.approx((4.5, 2.5))
    assert took(0, 4) == pytest.approx((2.0, 1.0)), "another worker is not"
    assert took(1) == pytest.approx((4.5, 2.5)), "without a unit, the newest of anybody's says when it is"
    assert took(0, 6) == took(1) == pytest.approx((2.0, 1.0)), "it is slow no more"


def test_a_slow_link_holds_the_port_no_longer_than_any_other() -> None:
    clock = ManualClock(now=0.0)
    pacing = paced(clock, "worker=1,bytes_per_sec=10", port_bytes_per_sec=100.0)
    slow, other = pacing.push_begins(PUSH._replace(worker=1)), pacing.push_begins(PUSH)
    other()
    assert clock.now == pytest.approx(4.0), "two transfers of 2 s, side by side"
    slow()
    assert clock.now == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("emulation", "is_slow"),
    [
        (EmulationConfig(), False),
        (EmulationConfig(compute_secs=0.1, stragglers="worker=0,factor=4;worker=1,delay_ms=30"), False),
        (EmulationConfig(stragglers="worker=0,factor=4;worker=1,rpc_ms=30"), True),
        (EmulationConfig(stragglers="worker=1,bytes_per_sec=1e6"), True),
        (EmulationConfig(link_bytes_per_sec=1e9), True),
        (EmulationConfig(port_bytes_per_sec=1e9), True),
        (EmulationConfig(latency_secs=0.01), True),
    ],
)
def test_only_transfers_on_emulated_links_are_kept_waiting(emulation: EmulationConfig, is_slow: bool) -> None:
    config = dataclasses.replace(tally.config(), emulation=emulation)
    run = Run(config, tally.task(config), tally.optimizer(config), None)
    port: Any = object()
    served = server_port(port, run, run.programs(donate_parameters=False), ManualClock())
    assert isinstance(served, DelayedPort) if is_slow else served is port


def test_without_emulation_nobody_waits() -> None:
    def refuse(secs: float) -> None:
        raise AssertionError(f"waits {secs} s for nothing")

    pacing = Pacing(emulated(EmulationConfig(), 1), 1 << 30, 1 << 30, ManualClock(), refuse)
    pacing.push_begins(PUSH)()
    pacing.pull_begins(PUSH)()


def test_several_servers_carry_a_push_together_and_a_network_is_never_made_faster() -> None:
    config = EmulationConfig(link_bytes_per_sec=1e9, port_bytes_per_sec=100.0)
    assert emulated(config, 2).begin_push(0.0, 100).arrives == pytest.approx(0.5)
    assert emulated(config, 1, link_bytes_per_sec=10.0).begin_push(0.0, 100).arrives == pytest.approx(10.0)
    lossy = dataclasses.replace(config, incast=1.0)
    pulls = emulated(lossy, 1)
    assert [pulls.begin_pull(0.0, 50).arrives, pulls.begin_pull(0.0, 50).arrives] == pytest.approx([0.5, 2.0])
    assert emulated(config, 1, port_bytes_per_sec=10.0).begin_pull(0.0, 100).arrives == pytest.approx(10.0)


class Server:
    """A port that answers at once, and notes when."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self.calls = clock, list[tuple[str, float]]()
        self.sequence = 1

    def pull(self, push: Push) -> Answer:
        return self._answer("pull")

    def begin_push(self, push: Push) -> Callable[[Any], Answer]:
        self._note("begin_push")
        return lambda contribution: self._answer("push")

    def idle(self, push: Push) -> None:
        self._note("idle")

    def ready(self, push: Push) -> None:
        self._note("ready")

    def _answer(self, what: str) -> Answer:
        self._note(what)
        return Answer(PushReply(self.sequence), "parameters")

    def _note(self, what: str) -> None:
        self.calls.append((what, round(self._clock.now, 6)))


def test_a_push_is_offered_when_it_has_arrived_and_its_parameters_arrive_after_that() -> None:
    clock = ManualClock(now=0.0)
    server = Server(clock)
    port = DelayedPort(server, paced(clock, link_bytes_per_sec=100.0))
    offer = port.begin_push(PUSH)
    clock.advance(0.5)  # the real bytes
    answer = offer("contribution")
    assert server.calls == [("begin_push", 0.0), ("push", 2.0)] and clock.now == pytest.approx(2.0)
    answer.await_arrival()
    assert clock.now == pytest.approx(3.0) and answer.parameters == "parameters"
    port.pull(PUSH).await_arrival()
    assert server.calls[2:] == [("pull", 3.0)] and clock.now == pytest.approx(4.0)


def test_parameters_that_the_worker_has_take_no_time_nor_the_port() -> None:
    clock = ManualClock(now=0.0)
    server = Server(clock)
    server.sequence = PUSH.base
    port = DelayedPort(server, paced(clock, port_bytes_per_sec=100.0))
    port.begin_push(PUSH)("contribution").await_arrival()
    port.pull(PUSH).await_arrival()
    assert clock.now == pytest.approx(3.0), "a push and one pull"


def test_what_carries_nothing_passes_at_once() -> None:
    clock = ManualClock(now=0.0)
    server = Server(clock)
    port = DelayedPort(server, paced(clock, link_bytes_per_sec=100.0))
    port.idle(PUSH)
    port.ready(PUSH)
    assert server.calls == [("idle", 0.0), ("ready", 0.0)]


@pytest.mark.parametrize(
    ("emulation", "secs"),
    [
        (EmulationConfig(link_bytes_per_sec=30.0), None),
        (EmulationConfig(link_bytes_per_sec=10.0), "60 s"),
        (EmulationConfig(port_bytes_per_sec=80.0), None),
        (EmulationConfig(port_bytes_per_sec=40.0), "60 s"),
        (EmulationConfig(port_bytes_per_sec=80.0, incast=0.5), "75 s"),
        (EmulationConfig(latency_secs=20.0), "40 s"),
        (EmulationConfig(stragglers="worker=1,rpc_ms=14000"), None),
        (EmulationConfig(stragglers="worker=1,rpc_ms=20000"), "40 s"),
        (EmulationConfig(stragglers="worker=3,bytes_per_sec=10,from=10%,to=20%"), "60 s"),
        (EmulationConfig(port_bytes_per_sec=80.0, stragglers="worker=3,rpc_ms=10000"), "50 s"),
    ],
)
def test_links_on_which_calls_would_be_given_up_are_refused_with_the_time(
    emulation: EmulationConfig, secs: str | None
) -> None:
    if secs is None:
        check_speed(emulation, 4, 1, 400, 200)
        return
    with pytest.raises(ConfigError, match=f"of 4 workers would take {secs} with emulation.link_bytes_per_sec"):
        check_speed(emulation, 4, 1, 400, 200)


def test_incast_where_no_emulated_port_is_shared_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"emulation\.incast is 0\.5, but no emulated port is shared: emulation\.port"
    ):
        check_speed(EmulationConfig(link_bytes_per_sec=1e9, incast=0.5), 4, 1, 400, 200)


def test_a_run_over_links_that_are_too_slow_for_its_model_does_not_start() -> None:
    with pytest.raises(ConfigError, match="emulate faster links, or a smaller model"):
        tally_trainer("asp", 40, emulation=EmulationConfig(port_bytes_per_sec=10.0)).fit()


CONTRIBUTION_BYTES = 2 * 40 * 4
"""At least: the tally's parameters are two floats for each of 40 units, and so is a gradient."""


@pytest.mark.parametrize(
    ("plan", "emulation", "secs"),
    [
        ("asp", EmulationConfig(link_bytes_per_sec=CONTRIBUTION_BYTES / 0.01), 40 / 4 * 0.02),
        ("asp", EmulationConfig(port_bytes_per_sec=CONTRIBUTION_BYTES / 0.01), 40 * 0.01),
        ("bsp_server", EmulationConfig(port_bytes_per_sec=CONTRIBUTION_BYTES / 0.01), 40 * 0.01),
        ("hsp", EmulationConfig(port_bytes_per_sec=CONTRIBUTION_BYTES / 0.01), 40 * 0.01),
        ("asp", EmulationConfig(latency_secs=0.01), 40 / 4 * 0.02),
        ("bsp_server", EmulationConfig(stragglers="worker=1,rpc_ms=10"), 40 / 4 * 0.02),
        ("bsp_server", EmulationConfig(stragglers=f"worker=1,bytes_per_sec={CONTRIBUTION_BYTES * 100}"), 40 / 4 * 0.02),
        ("bsp", EmulationConfig(link_bytes_per_sec=CONTRIBUTION_BYTES / 0.02), 40 / 4 * 1.5 * 0.02),
        ("bsp", EmulationConfig(latency_secs=0.005), 40 / 4 * 6 * 0.005),
        ("preduce", EmulationConfig(latency_secs=0.01), (40 / 4 - 1) * 2 * 0.01),
        ("bsp", EmulationConfig(stragglers="worker=1,rpc_ms=20"), 40 / 4 * 0.02),
        ("bsp", EmulationConfig(stragglers=f"worker=1,bytes_per_sec={CONTRIBUTION_BYTES / 0.02}"), 40 / 4 * 0.02),
        ("bsp", EmulationConfig(compute_secs=0.01, stragglers="worker=1,factor=3"), 40 / 4 * 0.03),
        ("preduce", EmulationConfig(stragglers="worker=1,rpc_ms=20"), 0.02),
    ],
)
def test_a_run_in_one_process_takes_as_long_as_its_transfers_must(
    plan: str, emulation: EmulationConfig, secs: float
) -> None:
    summary = tally_trainer(plan, 40, emulation=emulation).fit().summary
    assert summary.seconds >= secs
    assert is_exact(summary.final)


def test_the_transfers_of_a_worker_that_steps_by_itself_go_on_beside_its_computation(tmp_path: Path) -> None:
    emulation = EmulationConfig(compute_secs=0.02, latency_secs=0.01)
    tally_trainer("psplus", 80, emulation=emulation, telemetry=TelemetryConfig(), workdir=tmp_path / "run").fit()
    spans = json.loads((tmp_path / "run" / "timeline.json").read_text())["traceEvents"]
    computing, pushing, pulling = (
        [(span["pid"], span["ts"], span["ts"] + span["dur"]) for span in spans if (span["ph"], span["name"]) == shown]
        for shown in (("X", "compute"), ("X", "push"), ("X", "pull"))
    )
    for one, other in ((computing, pushing), (computing, pulling), (pushing, pulling)):
        both = sum(max(0, min(e, end) - max(b, begin)) for p, b, e in one for q, begin, end in other if p == q)
        # The timeline begins with the first unit, and cuts off what began before.
        assert min(end - begin for _, begin, end in other if begin > 0) >= 10_000 - 1
        # One after the other they would have no moment in common. On a busy machine threads wait for each other.
        assert both > 0.1 * min(sum(end - begin for _, begin, end in kind) for kind in (one, other))
