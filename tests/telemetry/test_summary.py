import json
from pathlib import Path

import pytest

from hybridsync.config import RunConfig, to_json
from hybridsync.telemetry.summary import (
    Summary,
    Units,
    read_config,
    read_summary,
    write_config,
    write_summary,
)

UNITS = Units(workload=10, issued=12, applied=10, dropped=2, outstanding=0, rolled_back=1)


def test_a_summary_holds_exactly_the_promised_names(tmp_path: Path) -> None:
    switch = {"kind": "switch", "from": "bsp", "to": "asp", "phase": 2}
    summary = Summary(
        exit="completed",
        units=UNITS,
        examples=320,
        seconds=1.5,
        plan="bsp:50%,asp",
        switches=[switch],
        final={"accuracy": 0.97, "loss": float("inf")},
        staleness={"mean": 1.0, "p95": 2, "max": 3},
        start_up_secs=2.5,
    )
    write_summary(tmp_path, summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "exit": "completed",
        "units": {
            "workload": 10,
            "issued": 12,
            "applied": 10,
            "dropped": 2,
            "outstanding": 0,
            "rolled_back": 1,
        },
        "examples": 320,
        "seconds": 1.5,
        "plan": "bsp:50%,asp",
        "switches": [switch],
        "final": {"accuracy": 0.97, "loss": None},
        "staleness": {"mean": 1.0, "p95": 2, "max": 3},
        "error": None,
        "quarantined_workers": {},
        "units_by_host": {},
        "start_up_secs": 2.5,
        "stop_reason": "",
        "callback_secs": {},
    }
    assert read_summary(tmp_path) == json.loads((tmp_path / "summary.json").read_text())


def test_units_that_do_not_add_up_are_our_bug() -> None:
    with pytest.raises(AssertionError, match="do not add up"):
        Units(workload=10, issued=11, applied=10, dropped=2, outstanding=0, rolled_back=0)


def test_a_fresh_workdir_has_neither_summary_nor_configuration(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    assert read_config(tmp_path) is None


def test_the_resolved_configuration_lands_with_the_versions_of_what_ran_it(tmp_path: Path) -> None:
    config = RunConfig(workload=10, unit_size=1)
    write_config(tmp_path, config, Path("configs/tally.py"))
    record = read_config(tmp_path)
    assert record is not None
    assert record["file"] == "configs/tally.py"
    assert record["config"] == to_json(config)
    assert record["versions"]["jax"] and record["versions"]["python"].startswith("3.")
