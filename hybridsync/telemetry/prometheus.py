"""Serves a run's figures to Prometheus, where `prometheus_client` is installed (the `metrics` extra).

Each scrape asks the chief where the run stands, as `hybridsync status` does, and shows it by Prometheus' conventions:
base units in the names, `_total` on what only grows, a label where the same figure is of several. A figure that a
rollback may lower is a gauge.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hybridsync.core.errors import AddressError, ConfigError
from hybridsync.interfaces.commands import StatusReply

PACKAGE = "prometheus_client"


def check_metrics_place(host: str, port: int) -> None:
    """Check that metrics will be served there, before anything starts.

    Raises:
      ConfigError: the package that serves them is not installed.
      AddressError: the port is in use, or the address is none of this machine.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"--metrics_port={port} needs the package {PACKAGE}, which is not installed; run "
            "pip install 'hybridsync[metrics]', or leave the flag out"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise _refused(host, port, error) from error


def serve_metrics(host: str, port: int, status: Callable[[], StatusReply]) -> Callable[[], None]:
    """Serve the metrics of a run; returns what stops that.

    Args:
      host: address to serve at.
      port: port of the address.
      status: returns the status of the run; called by several threads at a time.

    Raises:
      AddressError: the port is in use, or the address is none of this machine.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.registry import Collector

    from hybridsync.telemetry.metrics_server import MetricsServer

    class Run(Collector):
        def collect(self) -> Iterator[Any]:
            yield from families_of(status())

        def describe(self) -> Iterable[Any]:
            return ()  # nothing is asked of the run before the first scrape

    registry = CollectorRegistry()
    registry.register(Run())
    try:
        server = MetricsServer(host, port, make_wsgi_app(registry))
    except OSError as error:
        raise _refused(host, port, error) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def families_of(status: StatusReply) -> list[Any]:
    """Return the metrics of a run as `prometheus_client` writes them.

    Args:
      status: status of the run.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: list[Any] = []

    def add(kind: Any, name: str, text: str, rows: Iterable[tuple[dict[str, str], float]]) -> None:
        rows = list(rows)
        family = kind(f"hybridsync_{name}", text, labels=[*rows[0][0]] if rows else [])
        for labels, value in rows:
            family.add_metric([*labels.values()], value)
        if rows:
            found.append(family)

    def gauge(name: str, text: str, *rows: tuple[dict[str, str], float]) -> None:
        add(GaugeMetricFamily, name, text, rows)

    def counter(name: str, text: str, *rows: tuple[dict[str, str], float]) -> None:
        add(CounterMetricFamily, name, text, rows)

    places = [({"role": member.role, "id": str(member.id)}, member) for member in status.members]
    workers = [({"worker": str(member.id)}, member) for member in status.members if member.role == "worker"]
    units = {name: getattr(status, name) for name in ("issued", "applied", "dropped", "outstanding")}

    gauge("phase", "Number of the newest phase.", ({}, status.phase))
    labels = {"protocol": status.protocol, "reason": status.reason}
    gauge("phase_info", "Protocol of the newest phase, and why it was entered.", (labels, 1.0))
    gauge("run_seconds", "Time of the run, pauses between its sessions left out.", ({}, status.seconds))
    gauge("workload_units", "Units that the run is to apply.", ({}, status.workload))
    gauge("units", "Units by what became of them.", *(({"state": name}, value) for name, value in units.items()))
    counter("units_rolled_back", "Applied units that were lost and done again.", ({}, status.rolled_back))
    _add_figures(status, gauge)
    gauge(
        "worker_units_per_second",
        "Units that a worker gets done in a second.",
        *((labels, member.units_per_sec) for labels, member in workers),
    )
    # A label on the worker's own series would begin new series where it moves: an info metric is joined to them.
    gauge(
        "worker_info",
        "1 for the host where a worker runs.",
        *(({**labels, "host": member.host}, 1.0) for labels, member in workers if member.host),
    )
    by_host: Counter[str] = Counter()
    for each in status.hosts:
        by_host[each.host] += each.units
    gauge("host_units", "Units applied by workers on a host.", *(({"host": host}, n) for host, n in by_host.items()))
    gauge("worker_straggler", "1 for a straggler.", *((labels, float(member.is_slow)) for labels, member in workers))
    counter(
        "worker_bytes",
        "Bytes of gradients and states that a worker has sent and received.",
        *(({**labels, "direction": "sent"}, member.sent_bytes) for labels, member in workers),
        *(({**labels, "direction": "received"}, member.received_bytes) for labels, member in workers),
    )
    gauge(
        "role_up",
        "1 where a process has the role's place.",
        *((labels, float(member.state not in ("starting", "quarantined", "gone"))) for labels, member in places),
    )
    counter(
        "role_restarts",
        "Processes that took another's place.",
        *((labels, member.restarts) for labels, member in places),
    )
    counter("switches", "Switches whose cost is known.", ({}, status.num_switches))
    counter("switch_stall_seconds", "Time for which switches kept the run from training.", ({}, status.stall_secs))
    counter("checkpoint_bytes", "Bytes of all checkpoints.", ({}, status.checkpoint_bytes))
    if status.checkpoint_units >= 0:
        gauge("checkpoint_units", "Units applied in the newest checkpoint.", ({}, status.checkpoint_units))
        gauge("checkpoint_age_seconds", "Time since the newest checkpoint.", ({}, status.checkpoint_age_secs))
    return found


def _add_figures(status: StatusReply, gauge: Callable[..., None]) -> None:
    for name, told, text in (
        ("units_per_sec", "units_per_second", "Units applied in a second."),
        ("loss", "training_loss", "Mean training loss of the newest interval."),
        ("learning_rate", "learning_rate", "Learning rate of the newest update."),
    ):
        if (value := status.figure(name)) is not None:
            gauge(told, text, ({}, value))
    statistics = [(name, status.figure(f"staleness_{name}")) for name in ("mean", "p95", "max")]
    known = [({"statistic": name}, value) for name, value in statistics if value is not None]
    gauge("staleness_updates", "Updates between a gradient's parameters and its update.", *known)
    if status.evaluations:
        newest = status.evaluations[-1]
        gauge("evaluation_units", "Units applied in the state that was evaluated last.", ({}, newest.units))
        figures = [({"figure": figure.name}, figure.value) for figure in newest.figures]
        gauge("evaluation", "What the task measured of that state.", *figures)


def _refused(host: str, port: int, error: OSError) -> AddressError:
    code = error.errno or 0  # one of a name that is not found is below 0
    reason = os.strerror(code) if code > 0 else error.strerror
    return AddressError(
        f"--metrics_port={port} cannot be served on at {host}: {reason}; choose another port, or another --metrics_bind"
    )
