"""The cells of `benchmarks.protocol_cells`: what they ask for can be run, and what is read from a run is right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.protocol_cells import (
    CELLS,
    CLAIMS,
    LOOPBACK,
    PULL_BYTES,
    PUSH_BYTES,
    Cell,
    CellResult,
    Outcome,
    crossing,
    outcome,
    run_of,
    steady,
)
from benchmarks.protocols import main, read_cells
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.simulation import simulate, sizes_of


def result(name: str, rate: float, simulated: float, loss_secs: float | None = None) -> CellResult:
    real = Outcome(rate, 0.5, 1, 10.0, loss_secs, 0.5)
    return CellResult(CELLS[name], real, replace(real, units_per_sec=simulated, cpu_share=None), 1.0)


def test_there_are_at_most_eighteen_cells_and_every_claim_is_about_two_of_them() -> None:
    assert len(CELLS) <= 18
    for claim in CLAIMS:
        assert {claim.above, claim.below} <= CELLS.keys()
        assert hasattr(result(claim.above, 1.0, 1.0).real, claim.figure)


def test_a_push_and_a_pull_are_as_large_as_the_links_of_the_cells_are_made_for() -> None:
    sizes = sizes_of(run_of(CELLS["link_asp"]))
    assert (sizes.gradient, sizes.parameters) == (PUSH_BYTES, PULL_BYTES)


@pytest.mark.parametrize("name", CELLS)
def test_the_twin_of_a_cell_keeps_its_bound_on_staleness(name: str, tmp_path: Path) -> None:
    cell = replace(CELLS[name], units=80, loss=None)
    simulate(run_of(cell), LOOPBACK, workdir=tmp_path / "run")
    found = outcome(cell, tmp_path / "run")
    assert 0 < found.units_per_sec < 41
    assert found.staleness_max <= (80 if cell.staleness_bound is None else cell.staleness_bound)


def test_the_steady_part_leaves_out_the_first_and_the_last_units_whatever_an_update_holds() -> None:
    assert steady([(float(second), 1) for second in range(1, 101)]) == (30.0, 95.0, 65)
    assert steady([(float(second), 8) for second in range(1, 11)]) == (3.0, 10.0, 56)


def test_a_loss_is_reached_where_the_mean_of_three_lines_crosses_it() -> None:
    lines = [(0.0, 4.0), (1.0, 4.0), (2.0, 4.0), (3.0, 1.0), (4.0, 1.0)]
    assert crossing(lines, 2.5) == pytest.approx(2.5)
    assert crossing(lines, 0.5) is None


def test_a_result_is_told_as_rows_and_as_json() -> None:
    hsp, barrier = result("port_hsp", 20.0, 25.0, 8.0), result("port_bsp_server", 16.0, 16.0, 12.0)
    rows = {row.name: row for row in hsp.rows()}
    assert rows["port_hsp: error of the simulation"].met is False
    assert rows["port_hsp: staleness, max"].met is True
    told = json.loads(json.dumps(hsp.to_json()))
    assert (told["real"]["units_per_sec"], told["ratio"], told["staleness_bound"]) == (20.0, 0.8, 1)
    claims = [row for claim in CLAIMS for row in claim.rows({"port_hsp": hsp, "port_bsp_server": barrier})]
    assert [row.figure for row in claims] == pytest.approx([1.5, 1.5, 1.25, 25 / 16])


def test_a_cell_without_a_links_speed_sets_none() -> None:
    assert not any("bytes_per_sec" in override for override in Cell("plain", "asp").overrides)
    assert "emulation.port_bytes_per_sec=5.0" in Cell("slower", "asp", port=5.0).overrides


def test_real_runs_are_kept_and_told_with_the_grid(tmp_path: Path) -> None:
    found = [result("link_asp", 30.0, 32.0), result("link_psplus", 30.0, 32.0), result("link_psplus", 60.0, 64.0)]
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(each.to_json()) + "\n" for each in found))
    assert main([f"--workdir={tmp_path}", "--report-only"]) == 0
    _, latest = read_cells(tmp_path / "cells.jsonl").items()
    told = json.loads((tmp_path / "protocols.json").read_text())["cells"]
    assert latest == ("link_asp", found[0]) and [each["real"]["units_per_sec"] for each in told] == [60.0, 30.0]
    assert "link_psplus" in (tmp_path / "protocols.html").read_text()


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").write_text('{"name": "link_asp"}\n')
    with pytest.raises(ConfigError, match="no cell's"):
        read_cells(tmp_path / "cells.jsonl")
