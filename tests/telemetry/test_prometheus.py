"""The metrics of a run, read by Prometheus' own parser."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hybridsync.core.errors import AddressError, ConfigError
from hybridsync.interfaces.commands import Evaluation, Figure, HostUnits, MemberStatus, StatusReply
from hybridsync.telemetry import metrics_server as server_module
from hybridsync.telemetry.prometheus import check_metrics_place, serve_metrics
from tests.transport.slab_primary import until

STATUS = StatusReply(
    exit="",
    phase=3,
    protocol='ssp(staleness=2)"',
    reason="ordered",
    end_units=50,
    ordered="",
    is_stopping=False,
    workload=100,
    issued=40,
    applied=30,
    dropped=2,
    outstanding=8,
    rolled_back=1,
    seconds=12.5,
    num_switches=2,
    stall_secs=0.5,
    restarts=1,
    checkpoint_units=20,
    checkpoint_age_secs=3.0,
    checkpoint_bytes=1000,
    figures=(
        Figure("loss", 0.25),
        Figure("units_per_sec", 8.0),
        Figure("staleness_max", 4.0),
        Figure("learning_rate", 0.1),
    ),
    evaluations=(Evaluation(10, (Figure("accuracy", 0.5),)), Evaluation(20, (Figure("accuracy", 0.75),))),
    members=(
        MemberStatus("server", 0, "training"),
        MemberStatus("worker", 0, "training", 6.0, 0, 7, False, 640, 512),
        MemberStatus("worker", 1, "starting", 0.0, 1, 0, True),
    ),
)


def scraped(status: StatusReply) -> dict[tuple[str, frozenset[Any]], float]:
    """Serve a status at a free port, and return each sample by name and labels."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = serve_metrics("127.0.0.1", port, lambda: status)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240) as reply:
            text = reply.read().decode()
    finally:
        stop()
    families = [*text_string_to_metric_families(text)]
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


ON_HOSTS = replace(
    STATUS,
    members=(
        MemberStatus("server", 0, "training"),
        MemberStatus("worker", 0, "training", 6.0, 0, 7, host="a"),
        MemberStatus("worker", 1, "training", 2.0, 1, 8, host="b"),
    ),
    hosts=(HostUnits("a", 0, 17), HostUnits("a", 1, 4), HostUnits("b", 1, 9)),
)


def test_a_run_on_several_hosts_has_units_by_host_and_an_info_metric_that_says_where_workers_run() -> None:
    found = scraped(ON_HOSTS)
    units = {dict(labels)["host"]: value for (name, labels), value in found.items() if name == "hybridsync_host_units"}
    assert units == {"a": 21, "b": 9}
    info = [dict(labels) for name, labels in found if name == "hybridsync_worker_info"]
    assert info == [{"worker": "0", "host": "a"}, {"worker": "1", "host": "b"}]
    assert found["hybridsync_worker_units_per_second", frozenset({("worker", "1")})] == 2.0, "no label that may change"
    assert not [name for name, _ in scraped(STATUS) if "host" in name or name == "hybridsync_worker_info"]


def test_a_scrape_says_where_the_run_stands() -> None:
    found = scraped(STATUS)

    def value(name: str, **labels: str) -> float:
        return found[f"hybridsync_{name}", frozenset(labels.items())]

    assert value("phase") == 3 and value("phase_info", protocol='ssp(staleness=2)"', reason="ordered") == 1
    assert [value("units", state=state) for state in ("issued", "applied", "dropped", "outstanding")] == [40, 30, 2, 8]
    assert value("units_rolled_back_total") == 1 and value("workload_units") == 100
    assert value("units_per_second") == 8 and value("worker_units_per_second", worker="0") == 6
    assert value("worker_straggler", worker="1") == 1 and value("worker_straggler", worker="0") == 0
    assert value("worker_bytes_total", worker="0", direction="sent") == 640
    assert value("worker_bytes_total", worker="0", direction="received") == 512
    assert value("role_up", role="worker", id="1") == 0 and value("role_up", role="server", id="0") == 1
    assert value("role_restarts_total", role="worker", id="1") == 1
    assert value("switches_total") == 2 and value("switch_stall_seconds_total") == 0.5
    assert value("training_loss") == 0.25 and value("staleness_updates", statistic="max") == 4
    assert value("evaluation", figure="accuracy") == 0.75 and value("evaluation_units") == 20
    assert value("checkpoint_units") == 20 and value("checkpoint_bytes_total") == 1000


def test_what_was_not_measured_is_left_out() -> None:
    names = {name for name, _ in scraped(replace(STATUS, figures=(), evaluations=(), checkpoint_units=-1))}
    assert not names & {"hybridsync_training_loss", "hybridsync_evaluation", "hybridsync_checkpoint_units"}
    assert "hybridsync_staleness_updates" not in names and "hybridsync_units" in names


def test_who_says_nothing_costs_a_bounded_number_of_threads_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    num_threads = threading.active_count()
    with contextlib.ExitStack() as closing:
        closing.callback(serve_metrics("127.0.0.1", port, lambda: STATUS))

        def connected() -> socket.socket:
            return closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))

        silent = [connected() for _ in range(server_module.MOST_CONNECTIONS)]
        for _ in range(20):
            assert is_ended(connected()), "one more was let in"
        assert threading.active_count() <= num_threads + 1 + server_module.MOST_CONNECTIONS
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "REQUEST_SECS", 0.0)
            silent[0].sendall(b"GET /metrics HT")
            assert all(is_ended(each) for each in silent), "who says nothing keeps its place"
        until(lambda: threading.active_count() <= num_threads + 1, "a thread is kept")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240) as reply:
            assert b"hybridsync_phase" in reply.read()


def is_ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"--metrics_port={port} cannot be served on at 127\.0\.0\.1: Address already in use; choose another"
        with pytest.raises(AddressError, match=message):
            check_metrics_place("127.0.0.1", port)
        with pytest.raises(AddressError, match=message):
            serve_metrics("127.0.0.1", port, lambda: STATUS)
    check_metrics_place("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressError, match=r"--metrics_port=9100 cannot be served on at 192\.0\.2\.1"):
        check_metrics_place("192.0.2.1", 9100)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs the package prometheus_client, .* pip install 'hybridsync\[metrics\]'"
    ):
        check_metrics_place("127.0.0.1", 9100)
