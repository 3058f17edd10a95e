"""The simulator's command line: what it prints and leaves, and that bad input is one line and exit code 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.lab.simulator.scenarios import load_scenario
from tests.command_lines import CommandLines, command_lines

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--config=configs/tally.py", "--set=workload=300")


def simulate(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher to its end."""
    command = [sys.executable, "-m", "launch.simulate", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_workdir_gets_a_record_that_can_be_reported_and_calibrated_on(tmp_path: Path) -> None:
    workdir, events, fitted = tmp_path / "run", tmp_path / "events.jsonl", tmp_path / "fitted.py"
    done = simulate(
        *SMALL, "--scenario=configs/scenarios/straggler.py", f"--workdir={workdir}", f"--events={events}", "--seed=3"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "4 workers, 1 server, 300 units; configs/scenarios/straggler.py" in done.stdout
    (plan,) = json.loads((workdir / "simulation.json").read_text())["plans"]
    assert [run["seed"] for run in plan["runs"]] == [3]
    assert json.loads(events.read_text().splitlines()[-1])["kind"] == "run_finished"
    slow = "worker=3,factor=2"
    again = simulate(
        f"--calibrate={workdir}", f"--write_scenario={fitted}", "--plan=asp", "--workers=6", f"--stragglers={slow}"
    )
    assert again.returncode == 0, again.stderr
    assert "devices, secs of a unit" in again.stdout
    assert f"6 workers, 1 server, 300 units; equal workers, stragglers {slow}, fitted to" in again.stdout
    (device,) = load_scenario(fitted).cluster.devices
    assert device.secs == pytest.approx(0.05, rel=0.05)


def test_two_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", name)
        flags = ("--scenario=configs/scenarios/churn.py", "--set=workload=400")
        assert simulate("--config=configs/tally.py", *flags, f"--events={tmp_path / name}").returncode == 0
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_an_interrupted_simulation_says_so_in_one_line(tmp_path: Path) -> None:
    events = tmp_path / "events"
    os.mkfifo(events)
    flags = ("--config=configs/tally.py", "--set=workload=1000000", "--plan=asp", f"--events={events}")
    command = [sys.executable, "-m", "launch.simulate", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with events.open() as told:
            assert "run_started" in told.readline()
            process.send_signal(signal.SIGINT)
            told.read()
        printed, said = process.communicate(timeout=100)
    assert (process.returncode, printed) == (130, "")
    assert said == "interrupted: nothing was simulated to its end\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("printed"), "simulate") as simulated:
        yield simulated


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "nothing was named to simulate"),
        (("--config=",), "nothing was named to simulate"),
        (("--config=configs/talli.py",), "/configs/tally.py'"),
        ((*SMALL, "--seeds=0"), "--seeds must be at least 1, got 0"),
        ((*SMALL, "--seeds=0", "--gradients=real"), "--seeds must be at least 1, got 0"),
        ((*SMALL, "--plan=localsgd", "--gradients=compiled"), "'localsgd': its workers make updates of their own"),
        ((*SMALL, "--scenario=configs/scenarios/stragler.py"), "/configs/scenarios/straggler.py'"),
        ((*SMALL, "--scenario=configs/scenarios/straggler.py", "--workers=2"), "names worker 3, but the run has"),
        ((*SMALL, "--plan=asp", "--compare=bsp;asp"), "give one of them"),
        ((*SMALL, "--compare=bsp;asp;bsp"), "is there twice"),
        ((*SMALL, "--compare=; ;"), "no plan"),
        ((*SMALL, "--plan=abc"), "abc"),
        ((*SMALL, "--workers=0"), "workers must be at least 1"),
        ((*SMALL, "--write_scenario=x.py"), "--calibrate=RUN"),
        ((*SMALL, "--events="), "--events is empty"),
        ((*SMALL, "--set=workloat=3"), "did you mean 'workload'"),
        ((*SMALL, "asp"), "unexpected argument 'asp'"),
        (("--calibrate=absent",), "there is no workdir /"),
    ],
)
def test_bad_input_is_refused_in_one_line(simulated: CommandLines, flags: tuple[str, ...], said: str) -> None:
    done = simulated(*flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
