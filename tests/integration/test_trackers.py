"""Runs are shown in Weights & Biases (offline), MLflow (a folder) and TensorBoard, with the real packages."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hybridsync import Callback, EmulationConfig, MLflow, TelemetryConfig, Trainer, WandB
from hybridsync.phases import callbacks
from tests.tasks import momentum_sgd
from tests.trainers import events_of, fit_and_stop, mlp_trainer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

UNITS, BLOCK_BYTES = 96, 1 << 15
TAGS = {"train/loss", "train/learning_rate", "train/examples_per_sec", "eval/accuracy", "eval/loss", "phase"}


def trainer(workdir: Path, callback: Callback) -> Trainer:
    options: dict[str, Any] = {"workdir": workdir, "workers": 2, "emulation": EmulationConfig(compute_secs=0.02)}
    telemetry = TelemetryConfig(evaluate_units=8, log_secs=0.05)
    return mlp_trainer("bsp:50%,asp", UNITS, telemetry=telemetry, callbacks=[callback], **options)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trackers take their time on a busy machine: none is called late, and none is abandoned."""
    monkeypatch.setattr(callbacks, "LATE_SECS", 240.0)
    monkeypatch.setattr(callbacks, "END_SECS", 240.0)


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a file of wandb: LevelDB's log format, behind 7 bytes."""
    content, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < 7:  # a header is not divided
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def history_of(session: Path) -> list[dict[str, Any]]:
    """Return what one session has logged."""
    from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

    (file,) = session.glob("*.wandb")
    records = [wandb_internal_pb2.Record.FromString(record) for record in records_of(file)]
    items = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in line} for line in items]


def test_a_run_is_shown_in_weights_and_biases_offline(tmp_path: Path) -> None:
    wandb, workdir = import_module("wandb"), tmp_path / "run"
    assert fit_and_stop(trainer(workdir, WandB("digits", mode="offline")), 32).summary.exit == "preempted"
    assert trainer(workdir, WandB("digits", mode="offline")).fit().completed
    assert events_of(workdir, "user_code_failed") == []
    wandb.teardown()  # the end of a run does not wait until W&B's service has written the last lines
    sessions = sorted((workdir / "wandb").glob("offline-run-*"))
    assert len(sessions) == 2 and len({path.name.rpartition("-")[2] for path in sessions}) == 1, (
        "one run's two sessions"
    )
    lines = [line for session in sessions for line in history_of(session)]
    assert {tag for line in lines for tag in line} >= TAGS
    measured = [(line["units"], line["eval/accuracy"]) for line in lines if "eval/accuracy" in line]
    assert measured == [(event["units"], event["accuracy"]) for event in events_of(workdir, "evaluation")]


def test_a_run_is_shown_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = import_module("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    workdir, place = tmp_path / "run", (tmp_path / "mlruns").as_uri()
    assert fit_and_stop(trainer(workdir, MLflow("digits", place)), 32).summary.exit == "preempted"
    assert trainer(workdir, MLflow("digits", place)).fit().completed
    assert events_of(workdir, "user_code_failed") == []
    client = mlflow.MlflowClient(place)
    (shown,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert shown.data.metrics.keys() >= TAGS and shown.info.status == "FINISHED"
    params = shown.data.params
    assert params["plan"] == "bsp:50%,asp" and params["optimizer.learning_rate"] == "0.02"
    assert params["optimizer.name"].startswith("custom("), "a lambda's name, and not the configuration's default"
    assert shown.data.tags["exit"] == "completed"
    history = client.get_metric_history(shown.info.run_id, "eval/accuracy")
    told = {(event["units"], event["accuracy"]) for event in events_of(workdir, "evaluation")}
    assert {(each.step, each.value) for each in history} == told


def asked(url: str, **values: Any) -> Any:
    """Return what TensorBoard's HPARAMS page is given for a request."""
    request = urllib.request.Request(url, json.dumps(values).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as answer:
        return json.load(answer)


@contextlib.contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """Serve a folder by a process of TensorBoard; gives its URL.

    In this process its parser would meet the absl flags that other tests have defined (``--port`` stands twice).
    """
    once = ("--load_fast=false", "--reload_interval=0", "--reload_task=blocking")
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=127.0.0.1", "--port=0", *once]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))
        finally:
            process.kill()


def test_runs_are_compared_on_the_hparams_page_of_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    rates = {"slow": 0.01, "fast": 0.02}
    for name, rate in rates.items():
        options: dict[str, Any] = {"workdir": tmp_path / name, "workers": 2, "optimizer": momentum_sgd(rate)}
        telemetry = TelemetryConfig(evaluate_units=8, log_secs=0.05)
        assert fit_and_stop(mlp_trainer("bsp:50%,asp", UNITS, telemetry=telemetry, **options), 32).summary.exit
        assert mlp_trainer("bsp:50%,asp", UNITS, telemetry=telemetry, **options).fit().completed
    with tensorboard(tmp_path) as url:
        place = f"{url}data/plugin/hparams"
        experiment = asked(f"{place}/experiment", experimentName="")
        columns = [{"metric": info["name"]} for info in experiment["metricInfos"]]
        every = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        options = {"allowedStatuses": every, "colParams": columns, "sliceSize": 9}
        groups = asked(f"{place}/session_groups", experimentName="", **options)
    assert {info["name"] for info in experiment["hparamInfos"]} >= {"plan", "workers", "learning_rate", "momentum"}
    tags = {info["name"]["tag"] for info in experiment["metricInfos"]}
    assert tags >= {"train/loss", "train/learning_rate", "eval/accuracy", "eval/loss"}
    shown = {group["hparams"]["learning_rate"]: group for group in groups["sessionGroups"]}
    assert shown.keys() == {*rates.values()}
    for name, rate in rates.items():
        values = {value["name"]["tag"]: value["value"] for value in shown[rate]["metricValues"]}
        last = events_of(tmp_path / name, "evaluation")[-1]
        assert values["eval/accuracy"] == pytest.approx(last["accuracy"])
        assert shown[rate]["hparams"]["plan"] == "bsp:50%,asp"
        assert {session["status"] for session in shown[rate]["sessions"]} == {"STATUS_SUCCESS"}
