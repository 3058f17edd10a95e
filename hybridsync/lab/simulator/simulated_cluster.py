"""A simulated run: the real controller, chief and protocols around roles whose time and messages are virtual."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Literal

from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.config import Slowness, Straggler, Stragglers, together
from hybridsync.core.errors import ConfigError, DamagedState, NotRunning, RoleLost
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.commands import SwitchRequest
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Snapshot,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.lab.simulator.arithmetic import Arithmetic
from hybridsync.lab.simulator.cluster import Device, Scenario, Slow, normals
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.fake_io import (
    ChiefKilled,
    Disk,
    Hosts,
    KillableReporter,
    SharedLog,
    SimulatedCommittedState,
    Workdir,
)
from hybridsync.lab.simulator.network import Network
from hybridsync.lab.simulator.simulated_chief import SimulatedChief
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.virtual_collectives import GroupAverage, VirtualAllReduce
from hybridsync.lab.simulator.watch import Watch
from hybridsync.phases.controller import ControllerSpec, assemble
from hybridsync.phases.entry import in_turn
from hybridsync.phases.run_context import Start
from hybridsync.phases.schedule import resumed
from hybridsync.policies.online import Policy
from hybridsync.policies.straggler_detector import detector_of
from hybridsync.storage.apply_log import ApplyLog, NullApplyLog
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.run import Run
from hybridsync.workdir.opening import PhaseIdsInMemory, orders_of

Part = Literal["contribution", "parameters", "state"]
RETRY_SECS = 1.0
"""After so long without an answer a push or pull is repeated, where messages may be lost."""


class SimulatedCluster:
    """One run in virtual time.

    Args:
      run: configuration, plan and task.
      scenario: the cluster, and the incidents of the run.
      arithmetic: computes gradients and states.
      recorder: writes the record.
      loop: virtual time.
      seed: random seed of every draw.
      keeps_spans: whether spans are recorded for a timeline.
      logs_updates: whether every update is logged.
      told: a role's apply log -> a log that reports its updates as well; None reports none.
      watch: notified of the events in the cluster.
      phase_ids: hands out phase numbers.
      tick_secs: interval, in seconds, at which the controller checks for changes that no notification reports.
      evaluator: (state, snapshot) -> the task's measures; None disables evaluation.
      workdir: files of an earlier cluster of this run; None for a run that begins.
      policy: policy for stragglers in lock-step; None takes the configuration's.
    """

    def __init__(
        self,
        run: Run,
        scenario: Scenario,
        arithmetic: Arithmetic,
        recorder: Recorder,
        loop: Loop,
        *,
        seed: int = 0,
        keeps_spans: bool = False,
        logs_updates: bool = False,
        told: Callable[[ApplyLog], ApplyLog] | None = None,
        watch: Watch | None = None,
        phase_ids: PhaseIdsInMemory | None = None,
        tick_secs: float = 0.05,
        evaluator: Any = None,
        workdir: Workdir | None = None,
        policy: Policy | None = None,
    ) -> None:
        config = run.config
        scenario.check(config.workers, config.servers)
        self.run_, self.scenario, self.arithmetic, self.loop = run, scenario, arithmetic, loop
        self.clock = VirtualClock(loop)
        self._normals = normals(Random(seed))
        self._seconds: dict[Device, Iterator[float]] = {}
        self.stragglers = Stragglers(config.emulation.stragglers, config.workload)
        slow = [one.slowness for one in (*scenario.slow, *Straggler.parse(config.emulation.stragglers))]
        self.slow, self.late = bool(slow), any(one.is_late for one in slow)
        self._slow_of: dict[int, list[Slow]] = {}
        for one in scenario.slow:
            self._slow_of.setdefault(one.worker, []).append(one)
        slowness = self.slowness if self.late else None
        self.network = Network(
            loop, scenario, Random(seed + 1), num_servers=config.servers, emulation=config.emulation, slowness=slowness
        )
        self.keeps_spans, self.logs_updates, self._told = keeps_spans, logs_updates, told
        self.watch, self.watches = watch or Watch(), watch is not None
        self.watch.simulated = self
        self.is_recorded = self.watches or logs_updates or keeps_spans
        self.workdir = workdir or Workdir()
        if phase_ids is not None:
            self.workdir.phase_ids = phase_ids
        self.apply_secs, self.retry_secs = scenario.cluster.costs.apply_secs / config.servers, RETRY_SECS
        port = min(scenario.cluster.server_link.bytes_per_sec, scenario.cluster.worker_link.bytes_per_sec)
        self.transfer_secs = arithmetic.sizes.state / port
        self.schema = "simulated"
        self.processes: dict[str, Process] = {}
        self._pids = itertools.count(1)
        self._all_reduces: dict[PhaseId, VirtualAllReduce] = {}
        self._averages: dict[tuple[PhaseId, int], GroupAverage] = {}
        self._due = math.inf
        self._evaluator = evaluator
        self._recorder, self._tick_secs, self._policy = recorder, tick_secs, policy
        self.num_chiefs = 0
        self.hosts = Hosts(self)
        self._open_chief(restarted=False)

    def _open_chief(self, *, restarted: bool) -> None:
        """Start a chief from what the workdir holds, as its process does."""
        run, config, workdir, size = self.run_, self.run_.config, self.workdir, self.arithmetic.sizes.state
        committed = bool(workdir.commits)
        saved = workdir.commits[-1].run if committed else {}
        detours = resumed(saved["detours"], saved["config"], config) if committed else ()
        ledger, held, state = workdir.open(config.workload, self.arithmetic.start(), alive=restarted)
        held = replace(held, fingerprint=self.arithmetic.fingerprint(state))
        snapshot = Snapshot(
            1,
            held,
            ledger.applied().ranges(),
            dropped=ledger.dropped().ranges(),
            num_bytes=size,
            first_applied=0.0,
            last_applied=0.0,
        )
        self.chief_address = f"chief-{self.num_chiefs}"
        self.num_chiefs += 1
        chief_state = RunState(
            ledger,
            config.workers,
            self.schema,
            self.clock,
            RunStateSpec(
                lease_secs=config.hang.silent_secs,
                num_servers=config.servers,
                restarted=restarted,
                evict=self.hosts.evict,
                detector=detector_of(config.policy),
                late=[join.worker for join in self.scenario.joins if join.at_secs > self.loop.now],
                orders=orders_of(run, workdir.orders),
                min_workers=config.min_workers,
            ),
        )
        self.chief = SimulatedChief(chief_state, self.loop, self.network, self.watch)
        self.clock.on_notify(self.chief.wake)
        self.committed_source = SimulatedCommittedState(snapshot, state)
        self.disk = Disk(self, self.committed_source, self.scenario.save_fails, workdir)
        self.reporter = KillableReporter(run, self.chief.control, self._recorder, self.clock, hooks=[], switches=[])
        self.controller = assemble(
            run,
            self.chief.control,
            Start(
                snapshot,
                self.chief_address,
                "resume" if committed else "start",
                phase_number=held.phase_id.number,
                committed=committed,
                detours=detours,
            ),
            ControllerSpec(
                servers=self._servers,
                holder_at=self.holder,
                reserve_phase=workdir.phase_ids.reserve,
                committer=self.disk,
                reporter=self.reporter,
                committed_source=self.committed_source,
                clock=self.clock,
                forget=workdir.forget,
                restarted=restarted,
                tick_secs=self._tick_secs,
                policy=self._policy,
                begin=in_turn,
            ),
        )

    def end_chief(self, back_secs: float | None) -> ChiefKilled:
        """Silence the chief, and return what ends its controller."""
        killed = ChiefKilled(self.network.cluster.costs.restart_secs if back_secs is None else back_secs)
        self.chief.closed = self.disk.closed = True
        self.reporter.dead = killed
        return killed

    def run(self) -> Summary:
        """Run to the end of the workload; returns the summary.

        Raises:
          HybridSyncError: the run could not go on.
          Unreplayable: see `Arithmetic.computed`.
        """
        collecting = gc.isenabled()
        gc.disable()  # a unit leaves no cycle behind, and searching all live objects for one takes a tenth
        try:
            summary = self._run()
            if self.workdir.commits:
                self.arithmetic.computed(self.workdir.commits[-1].state)
            return summary
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Summary:
        config, late = self.run_.config, {join.worker for join in self.scenario.joins}
        for role, count in (("server", config.servers), ("worker", config.workers)):
            for role_id in range(count):
                if role == "server" or role_id not in late:
                    self.hosts.start(role, role_id)
        self._plan(self.scenario)
        while True:
            try:
                return self.controller.run()
            except ChiefKilled as killed:
                self.loop.run_until(self.loop.now + killed.back_secs)
                self._open_chief(restarted=True)
                self.hosts.report_losses()

    @property
    def final(self) -> Any:
        """The state that was committed last."""
        return self.arithmetic.computed(self.workdir.commits[-1].state)

    @property
    def log(self) -> list[Entry]:
        """The updates that led to the newest state, as far as its holders have written them down."""
        return self.workdir.log

    # --- what roles share ---

    def next_pid(self) -> int:
        """Return a number that no process has."""
        return next(self._pids)

    def at(self, address: str) -> Any:
        """Return the process at `address`."""
        return self.processes[address]

    def holder(self, address: str) -> Any:
        """Return the role that holds a state at `address`.

        Raises:
          RoleLost: there is none.
        """
        if address == self.chief_address:
            return self.committed_source
        if address not in self.processes:
            raise RoleLost(f"nobody is at {address}")
        return self.processes[address]

    def fetch(self, phase: Phase) -> Any:
        """Return the phase's starting state from the role that holds it.

        Raises:
          HybridSyncError: it cannot be reached, or keeps another.
          DamagedState: the state that arrived is not the one that was captured.
        """
        state = self.holder(phase.source).read(phase.snapshot_id)
        got = self.arithmetic.fingerprint(state)
        if got != phase.fingerprint:
            raise DamagedState(f"{phase.source} handed over {got}, but {phase.fingerprint} was captured")
        return state

    def all_reduce(self, phase: Phase) -> VirtualAllReduce:
        """Return where the members of `phase` meet."""
        if phase.id not in self._all_reduces:
            self._all_reduces[phase.id] = VirtualAllReduce(self, phase.members)
        return self._all_reduces[phase.id]

    def average(self, phase: Phase, reply: GroupReply) -> GroupAverage:
        """Return where the members of a group of `phase` average."""
        key = phase.id, reply.sequence
        if key not in self._averages:
            self._averages[key] = GroupAverage(self, reply)
        return self._averages[key]

    def apply_log(self) -> ApplyLog:
        """Return where one role notes its updates."""
        log = SharedLog(self.log, self.workdir.ends) if self.logs_updates else NullApplyLog()
        return self._told(log) if self._told is not None else log

    def spend(self, secs: float) -> None:
        """Let `secs` go by while the controller is busy."""
        self.loop.run_until(self.loop.now + secs)

    def phase_for(self, request: PhaseRequest) -> PhaseReply | None:
        """Return what the chief answers to a worker that asks for a phase."""
        reply = self.chief.service.phase_for(request)
        if reply is not None and reply.phase is not None:
            self.watch.announced(request, reply.phase)
        return reply

    def units_for(self, request: LeaseRequest) -> LeaseReply | None:
        """Return what the chief answers to a worker that asks for units."""
        reply = self.chief.service.units_for(request)
        if reply is not None:
            self.watch.granted(request, reply)
        return reply

    def group_for(self, request: GroupRequest) -> GroupReply | None:
        """Return what the chief answers to a worker that has come to a group round."""
        reply, due = self.chief.service.group_for(request), self.chief.service.group_due
        if reply is None and due != self._due and self.loop.now < due < math.inf:
            self._due = due
            self.loop.at(due, self.chief.wake)
        return reply

    def seconds_of(self, worker: int) -> Iterator[float]:
        """Return what yields the seconds of the worker's units: one for all alike devices, which draw from one place.

        A trace is of one device alone.
        """
        device = self.network.cluster.device(worker)
        if device.trace:
            return device.seconds(self._normals)
        if device not in self._seconds:
            self._seconds[device] = device.seconds(self._normals)
        return self._seconds[device]

    def slowness(self, worker: int, unit: int) -> Slowness:
        """Return how slow a worker is now, with this unit: by the scenario's time, and by its place in the workload."""
        now = self.loop.now
        here = [slow.slowness for slow in self._slow_of.get(worker, ()) if slow.start_secs <= now < slow.stop_secs]
        by_unit = self.stragglers.of(worker, unit)
        return together((*here, by_unit)) if here else by_unit

    def part_secs(self, worker: int, unit: int, what: Part) -> float:
        """Return what the part of `worker` in a collective that begins now takes on its slow link; 0 on a usual one.

        Args:
          worker: id of the worker.
          unit: unit that the worker computed last.
          what: content that it sends: "contribution", "parameters" or "state".
        """
        secs, cluster, sizes = 0.0, self.scenario.cluster, self.arithmetic.sizes
        if self.late:
            num_bytes = {"contribution": sizes.gradient, "parameters": sizes.parameters, "state": sizes.state}[what]
            secs = self.slowness(worker, unit).transfer_secs(num_bytes)
        machines = cluster.colocated
        if machines is not None and what == "contribution" and machines.is_late_at(self.loop.now):
            secs += machines.step_secs(worker, cluster.costs.step_secs)
        return secs

    def evaluate(self, state: Any, snapshot: Snapshot) -> dict[str, Any] | None:
        """Return what the task measures of a state; None where nothing is computed."""
        return self._evaluator(self.arithmetic.computed(state), snapshot) if self._evaluator is not None else None

    # --- what the scenario does ---

    def _plan(self, scenario: Scenario) -> None:
        loop, hosts = self.loop, self.hosts
        for death in scenario.deaths:
            loop.at(death.at_secs, hosts.kill, death.role, death.id, death.back_secs)
        for join in scenario.joins:
            loop.at(join.at_secs, hosts.start, "worker", join.worker)
        for switch in scenario.switches:
            loop.at(switch.at_secs, self._switch, switch.spec)
        if scenario.preempt_secs < math.inf:
            stop, preempt = self.chief.state.stop, self.chief.service.preempt
            loop.at(scenario.preempt_secs, lambda: stop("by a callback") if scenario.for_good else preempt())
        for pause in scenario.pauses:
            loop.at(pause.at_secs, self._pause, pause.worker, pause.secs, pause.replaced)
        for hang in scenario.hangs:
            loop.at(hang.at_secs, hosts.hang, hang.worker)

    def _pause(self, worker: int, secs: float, replaced: bool) -> None:
        process = self.hosts.newest.get(("worker", worker))
        if process is None or process.dead:
            return
        process.stopped = True
        if secs < math.inf:
            self.loop.after(secs, process.resume)
        if replaced:
            self.loop.after(secs / 2, self.hosts.replace, worker)

    def _switch(self, spec: str) -> None:
        if not self.chief.closed:
            with contextlib.suppress(NotRunning, ConfigError):  # refused, which changes nothing
                self.watch.ordered(self.chief.service.switch(SwitchRequest(spec)))

    # --- what the controller needs ---

    def _servers(self) -> Mapping[str, Any]:
        with self.chief.control.turn() as chief:
            addresses = [chief.members.address_of("server", index) for index in range(self.run_.config.servers)]
        return {address: self.at(address) for address in addresses}
