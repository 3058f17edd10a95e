"""Record and compare the event logs of simulated runs, to show that a change of structure changes no behaviour.

    python -m tests.lab.simulator.event_logs record DIR
    python -m tests.lab.simulator.event_logs compare OLD NEW [--rename=epoch=phase ...]

A log holds every decision of one run with its virtual time (see `hybridsync.lab.simulator.decision_log`), and a
last line with the accounts, the tally and the fingerprint of the final state. The runs cover every protocol alone and
between others, stragglers, deaths of every role, lost and repeated messages, several servers, the online policies and
the groups.
`compare` names the first line that differs in each log. Renamed fields and kinds are mapped before the comparison.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import tally
from configs.scenarios import churn, jitter, slow_network, straggler
from hybridsync import protocols
from hybridsync.config import CheckpointConfig, PolicyConfig, RunConfig, TelemetryConfig
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.simulator.cluster import Chaos, Cluster, Death, Device, Join, Partition, Pause, Scenario, Slow
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.training.run import Run

JITTER = Cluster(devices=(Device(0.05, 0.2),))
FAULTS = Scenario(
    cluster=JITTER,
    slow=(Slow(worker=2, factor=4.0, start_secs=1.0, stop_secs=6.0),),
    deaths=(
        Death("worker", 1, at_secs=2.0, back_secs=1.0),
        Death("server", 0, at_secs=5.0, back_secs=1.5),
        Death("chief", 0, at_secs=8.0, back_secs=1.0),
        Death("server", 0, at_secs=10.0, back_secs=1.0),
    ),
)
MESSAGES = Scenario(
    cluster=JITTER,
    pauses=(Pause(3, at_secs=1.5, secs=5.0, replaced=True),),
    joins=(Join(2, at_secs=2.0),),
    partitions=(Partition((0, 1), at_secs=6.0, secs=1.0),),
    chaos=Chaos(lost=0.03, duplicated=0.05, delayed=0.1, delay_secs=0.2, until_secs=12.0),
    save_fails=(2,),
)
LONG_STRAGGLER = Scenario(cluster=JITTER, slow=(Slow(worker=3, factor=5.0, start_secs=2.0, stop_secs=9.0),))


@dataclass(frozen=True)
class Case:
    """One simulated run.

    Args:
      name: of its log.
      plan: what it trains by.
      scenario: what happens to it.
      options: fields of its configuration that are not the default here.
    """

    name: str
    plan: str
    scenario: Scenario
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Run:
        config = RunConfig(
            workload=self.options.get("workload", 400),
            unit_size=1,
            workers=4,
            servers=self.options.get("servers", 1),
            plan=self.plan,
            seed=7,
            model=tally.TallyModel(self.options.get("servers", 1)),
            optimizer=tally.config().optimizer,
            checkpoint=CheckpointConfig(secs=4.0),
            telemetry=TelemetryConfig(log_secs=1.0),
            policy=self.options.get("policy", PolicyConfig()),
        )
        return Run(config, tally.task(config), tally.optimizer(config), None)


def cases() -> Iterator[Case]:
    """Yield every run that is recorded."""
    for name in sorted(protocols.REGISTRY):
        plan = f"bsp:20%,{name}:50%,{name}" if name != "bsp" else "bsp:50%,bsp"
        yield Case(f"{name}-faults", plan, FAULTS)
        yield Case(f"{name}-messages", plan, MESSAGES)
    yield Case("asp-churn", "bsp:25%,asp", churn.scenario(), {"workload": 1200})
    yield Case("hybrid-straggler", "bsp:50%,asp", straggler.scenario(), {"workload": 800})
    yield Case("hybrid-jitter", "asp:30%,bsp:40%,asp", jitter.scenario())
    yield Case("ssp-slow-network", "ssp(staleness=2)", slow_network.scenario())
    yield Case("two-servers", "bsp:25%,asp:50%,hsp", FAULTS, {"servers": 2})
    yield Case("two-servers-psplus", "psplus:50%,localsgd", MESSAGES, {"servers": 2})
    yield Case("preempted", "bsp:25%,asp", dataclasses.replace(FAULTS, preempt_secs=6.5))
    for online in ("greedy", "elastic", "rebalance"):
        policy = PolicyConfig(online=online)
        yield Case(f"online-{online}", "bsp:80%,asp", LONG_STRAGGLER, {"policy": policy, "workload": 800})
        yield Case(f"online-{online}-faults", "bsp:80%,asp", FAULTS, {"policy": policy, "workload": 800})
    for groups in ("arrival", "static"):
        yield Case(f"preduce-{groups}", f"preduce(groups={groups},period=3)", FAULTS)
    yield Case("preduce-inter", "preduce(groups=inter,node=2)", FAULTS)
    yield Case("preduce-naive", "preduce(buffer=false,division=false,slowdown=0)", FAULTS)
    yield Case("preduce-auto", "preduce(size=auto,every=3)", MESSAGES)
    yield Case("groups-between-others", "bsp:20%,preduce:30%,asp:20%,adpsgd", LONG_STRAGGLER)


def log_of(case: Case) -> str:
    """Return the log of one run."""
    file = io.StringIO()
    try:
        result = simulate(case.run(), case.scenario, gradients="real", events=file)
    except HybridSyncError as error:
        end: dict[str, Any] = {"error": type(error).__name__, "text": str(error)}
    else:
        end = {
            "exit": result.summary.exit,
            "units": dataclasses.asdict(result.summary.units),
            "final": dict(result.summary.final),
            "fingerprint": result.fingerprint,
            "seconds": result.seconds,
        }
    return file.getvalue() + json.dumps({"kind": "end", **end}, sort_keys=True) + "\n"


def record(folder: Path, only: str) -> int:
    """Write the log of every case whose name contains `only`."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases():
        if only in case.name:
            log = log_of(case)
            (folder / f"{case.name}.jsonl").write_text(log)
            print(f"{case.name}: {log.count(chr(10)):,} lines, {log.splitlines()[-1][:100]}", flush=True)
    return 0


def renamed(line: str, names: dict[str, str]) -> dict[str, Any]:
    """Return a line's object with its keys, and its kind, mapped.

    >>> renamed('{"kind": "lease", "epoch": 3}', {"epoch": "phase"})
    {'kind': 'lease', 'phase': 3}
    """
    entry: dict[str, Any] = json.loads(line)
    found = {names.get(key, key): value for key, value in entry.items()}
    return {**found, "kind": names.get(found["kind"], found["kind"])}


def compare(old: Path, new: Path, names: dict[str, str]) -> int:
    """Say of every log where it first differs; returns 1 where any does, or is missing."""
    differ = 0
    logs = sorted({path.name for folder in (old, new) for path in folder.glob("*.jsonl")})
    for name in logs:
        if not ((old / name).exists() and (new / name).exists()):
            print(f"{name}: in one folder only")
            differ += 1
            continue
        before, after = ((folder / name).read_text().splitlines() for folder in (old, new))
        pairs = enumerate(itertools.zip_longest(before, after, fillvalue='{"kind": "(no line)"}'), start=1)
        for number, (left, right) in pairs:
            if renamed(left, names) != json.loads(right):
                differ += 1
                print(f"{name}: line {number} of {len(before)} and {len(after)}\n  - {left[:300]}\n  + {right[:300]}")
                break
        if renamed(before[-1], names) != json.loads(after[-1]):
            print(f"{name}: the ends differ\n  - {before[-1][:400]}\n  + {after[-1][:400]}")
    print(f"{len(logs)} logs, {differ} differ")
    return 1 if differ or not logs else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write every log into a folder")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", default="", help="record the cases whose name contains this")
    comparing = commands.add_parser("compare", help="compare two folders of logs")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="a renamed field or kind")
    options = parser.parse_args(arguments)
    if options.command == "record":
        return record(options.folder, options.only)
    return compare(options.old, options.new, dict(pair.split("=", 1) for pair in options.rename))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
