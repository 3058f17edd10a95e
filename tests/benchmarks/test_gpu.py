"""The benchmark on GPUs, on CPU devices: commands find figures, go on where they were cut off, and make a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import faults, in_process, page
from benchmarks.gpu.rows import Row, Rows, read
from hybridsync.devices import staging

pytestmark = pytest.mark.timeout(400)
H100 = {"device": "NVIDIA H100 80GB HBM3", "platform": "gpu", "jax": "0.11.2"}


def main(out: Path, command: str, *flags: str) -> int:
    return gpu.main(
        [command, f"--out={out}", "--platform=cpu", "--models=tinydecoder", "--seconds=0.3", "--workers=2", *flags]
    )


def test_what_was_measured_is_kept_and_what_failed_is_measured_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def measured() -> dict[str, Any]:
        calls.append("")
        if len(calls) == 1:
            raise ValueError("out of memory")
        return {"units/s": 3.5}

    rows = Rows(tmp_path / "made", H100, show=lambda text: None)
    assert rows.measure("bare/digits", measured).error == "ValueError: out of memory"
    assert [rows.measure("bare/digits", measured).figures for _ in range(2)] == [{"units/s": 3.5}] * 2
    assert len(calls) == 2
    (row,) = read(tmp_path / "made")
    assert (row.name, row.machine, row.error) == ("bare/digits", H100, "") and row.at


def test_a_command_stops_in_time_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "BUDGET_SECS", -1.0)
    monkeypatch.setattr(gpu, "in_process", lambda *_: {})
    assert main(tmp_path, "transfers", "--megabytes=1,2") == 1
    assert capsys.readouterr().out.splitlines() == [f"transfers/{mb} MB: left for the next call" for mb in (1, 2)]
    assert read(tmp_path) == []


def test_a_workload_without_the_rate_of_plain_jax_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"run python -m benchmarks\.gpu bare --models=tinydecoder"):
        gpu.units_of(tmp_path, "tinydecoder", 1.0)


def test_the_page_tells_what_was_found_on_a_gpu_alone() -> None:
    on_cpu = Row("bare/digits", {"units/s": 1.0}, {"platform": "cpu"}, "2026-01-01")
    assert page.made([]) == page.made([on_cpu]) == page.NOT_SHOWN
    told = page.made(
        [
            on_cpu,
            Row("bare/digits", {"units/s": 900.5, "loss": 0.1}, H100, "2026-01-02"),
            Row("shared/digits/asp", {}, H100, "2026-01-02", "RuntimeError: no\nmore"),
        ]
    )
    assert "| device | NVIDIA H100 80GB HBM3 |" in told
    assert "### Plain JAX, one process" in told and "| digits | units/s 900.5; loss 0.1 | 2026-01-02 |" in told
    assert "| digits/asp | failed: RuntimeError: no | 2026-01-02 |" in told
    assert "units/s 1.0" not in told


def test_the_page_is_that_of_the_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.refreshed(text, read(page.RESULTS)) == text, "run python -m benchmarks.gpu page"


def test_a_measurement_in_a_process_of_its_own_returns_its_last_line() -> None:
    assert gpu.in_process("cpu", "device")["platform"] == "cpu"
    with pytest.raises(RuntimeError, match="KeyError: 'nosuch'"):
        gpu.in_process("cpu", "nosuch")


def test_rates_beside_plain_jax_are_found_on_cpu_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STAGED_PLATFORMS", staging.STAGED_PLATFORMS)  # restored after
    monkeypatch.setattr(gpu, "in_process", lambda _, name, *given: getattr(in_process, name)(*given))
    assert main(tmp_path, "transfers", "--megabytes=0.1") == 0
    assert main(tmp_path, "bare") == 0
    assert main(tmp_path, "shared", "--protocols=asp") == 0
    figures = {row.name: row.figures for row in read(tmp_path)}
    assert figures.keys() == {"transfers/0.1 MB", "bare/tinydecoder", "shared/tinydecoder/asp"}
    assert all(speed > 0 for speed in figures["transfers/0.1 MB"].values())
    assert figures["bare/tinydecoder"]["units/s"] > 0 and figures["shared/tinydecoder/asp"]["units/s"] > 0
    assert figures["shared/tinydecoder/asp"]["share of compute"] > 0
    assert json.loads((tmp_path / "bare-tinydecoder.json").read_text())["machine"]["platform"] == "cpu"


def test_processes_are_looked_at_and_killed_on_cpu_devices(tmp_path: Path) -> None:
    assert main(tmp_path, "check") == 0
    (row,) = read(tmp_path)
    assert row.figures["fork server has loaded CUDA"] is False
    assert row.figures["seconds until a killed worker is gone"] > 0
    assert faults.kill("cpu", "asp", "worker 1", 2)["seconds until the run goes on"] > 0
