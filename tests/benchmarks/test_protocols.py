"""The grid of protocols: its runs, its record that a broken-off grid goes on from, and what it says of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import protocols
from benchmarks.grid.aggregate import CLAIMS, claims, figures, pairs, sooner, speed
from benchmarks.grid.cells import COMPUTE_SECS, PROTOCOLS, WORKERS, Cell, Outcome, grid, scenario
from benchmarks.grid.page import page
from benchmarks.grid.runs import Runner
from benchmarks.protocols import RECORD, WORKLOAD
from hybridsync.core.errors import ConfigError
from hybridsync.protocols import REGISTRY
from hybridsync.storage.jsonl import LineFile


def outcome(protocol: str = "bsp", seed: int = 200, straggler: str = "uniform", **values) -> Outcome:
    curve = ((1.0, 0.9), (2.0, 0.25), (3.0, 0.4))
    made = Outcome(Cell(protocol, straggler, "free", seed), WORKLOAD, 16.0, 100.0, 0, 0.9, 1.0, 3, None, curve)
    return dataclasses.replace(made, **values)


def record(workdir: Path, *outcomes: Outcome) -> None:
    lines = LineFile(workdir / RECORD)
    for each in outcomes:
        lines.append(each.to_json())
    lines.close()


def test_every_protocol_has_a_row_and_every_paper_that_claims_is_one_of_theirs() -> None:
    assert sorted(PROTOCOLS) == sorted(REGISTRY)
    assert set(CLAIMS) <= set(PROTOCOLS)
    cells = grid()
    assert len(set(cells)) == len(cells) == len(PROTOCOLS) * 4 * 4 * 5


@pytest.mark.parametrize(
    "part", [{"protocols": ["bps"]}, {"stragglers": ["one3x"]}, {"links": ["2"]}], ids=["protocol", "straggler", "link"]
)
def test_a_part_that_the_grid_has_not_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="which the grid has not"):
        grid(**part)


@pytest.mark.parametrize(("link", "ratio"), [("0.25", 0.25), ("1", 1.0), ("4", 4.0)])
def test_a_link_makes_the_pushes_of_all_workers_take_their_share_of_a_unit(link: str, ratio: float) -> None:
    port = scenario(Cell("asp", "uniform", link, 0), 69_056).cluster.server_link
    assert WORKERS * 69_056 / port.bytes_per_sec == pytest.approx(ratio * COMPUTE_SECS)


def test_transient_stragglers_are_slow_a_tenth_of_the_time_and_the_same_for_every_protocol() -> None:
    slow = scenario(Cell("asp", "transient", "free", 7), 1).slow
    assert slow == scenario(Cell("bsp", "transient", "free", 7), 1).slow
    assert slow != scenario(Cell("asp", "transient", "free", 8), 1).slow
    for worker in range(WORKERS):
        bursts = sorted((each.start_secs, each.stop_secs) for each in slow if each.worker == worker)
        assert sum(stop - start for start, stop in bursts) == pytest.approx(0.1 * 300)
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(bursts))


def test_the_time_to_a_loss_is_the_first_at_which_it_was_that_low() -> None:
    assert [outcome().secs_to(loss) for loss in (0.9, 0.3, 0.1)] == [1.0, 2.0, None]


def test_a_run_reads_back_from_the_record_as_it_was() -> None:
    for each in (outcome(), outcome(seconds=None, units_per_sec=None, error="RoleLost: gone"), outcome(bound=4)):
        assert Outcome.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_figures_are_of_all_seeds_and_a_loss_that_one_never_reached_makes_no_ratio() -> None:
    runs = [outcome(seed=200), outcome(seed=201, units_per_sec=200.0, accuracy=0.8)]
    runs += [outcome("asp", 200, units_per_sec=450.0), outcome("asp", 201, units_per_sec=450.0, curve=((1.0, 0.9),))]
    block = figures(runs, loss=0.3)["uniform", "free"]
    assert block["bsp"].units_per_sec == 150 and block["bsp"].accuracy == pytest.approx(0.85)
    assert speed(block, "asp", "bsp") == 3
    assert sooner(block, "bsp", "bsp") == 1
    assert block["asp"].reached == 1 and str(sooner(block, "asp", "bsp")) == "nan"


def test_pairs_are_of_the_same_seed_and_their_claims_are_held_against_their_targets() -> None:
    runs = [outcome("bsp", 200, "one5x"), outcome("bsp", 201, "one5x", units_per_sec=50.0)]
    runs += [outcome("preduce", seed, "one5x", units_per_sec=150.0, accuracy=0.85) for seed in (200, 201, 202)]
    found = pairs(runs, ("one5x", "free"), "preduce", "bsp")
    assert [(seed, ratio) for seed, ratio, _ in found] == [(200, 1.5), (201, 3.0)]
    faster, accuracy = claims(runs)
    assert faster.figure == pytest.approx(2.25) and faster.met
    assert accuracy.figure == pytest.approx(-5.0) and accuracy.met is False


def test_a_grid_goes_on_with_what_is_missing_or_has_failed() -> None:
    done, failed = outcome("asp"), outcome("ssp", error="RoleLost: gone")
    exceeded, new = outcome("gba", bound=2), outcome("hsp").cell
    known = {each.cell: each for each in (done, failed, exceeded)}
    assert protocols.missing([*known, new], known) == [failed.cell, exceeded.cell, new]


def test_a_workdir_with_runs_of_another_workload_is_refused(tmp_path: Path) -> None:
    record(tmp_path, outcome(workload=60))
    with pytest.raises(ConfigError, match=r"runs of 60 units, but --workload is 1,600"):
        protocols.read_record(tmp_path / RECORD, WORKLOAD)


def test_what_is_there_is_told_and_a_bound_that_was_exceeded_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, outcome(), outcome("gba"), outcome("gba", bound=4))
    arguments = [f"--workdir={tmp_path}", "--report-only"]
    assert protocols.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "uniform: eight equal workers" in printed and "2.4x sync" in printed and "3 / 4" in printed
    found = json.loads((tmp_path / "protocols.json").read_text())
    assert [row["protocol"] for row in found["blocks"][0]["rows"]] == ["bsp", "gba"]
    record(tmp_path, outcome("gba", bound=2))
    assert protocols.main(arguments) == 1
    assert "a staleness of 3 is above the protocol's bound of 2" in capsys.readouterr().out


def test_the_page_draws_every_block_and_hides_protocols_by_their_boxes() -> None:
    text = page([outcome(), outcome("preduce"), outcome("preduce", straggler="one5x")])
    assert text.count("<h2>uniform") == text.count("<h2>one5x") == 1
    assert "Training loss over time" in text and 'id="show12"' in text and "light-dark(" in text


@pytest.mark.parametrize("flag", ["--seeds=two", "--jobs=0", "--links=slow", "--cells=none_such"])
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, outcome())
    assert protocols.main([f"--workdir={tmp_path}", "--report-only", flag]) == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["bsp", "ssp", "psplus", "preduce"])
def test_a_short_run_of_each_path_has_its_figures(runner: Runner, protocol: str) -> None:
    found = runner.measure(Cell(protocol, "one2x", "1", 3))
    assert found.fault == "" and found.workload == 160
    assert found.seconds and found.units_per_sec == pytest.approx(160 / found.seconds)
    assert 0 < found.accuracy < 1
    assert len(found.curve) == 7 and all(0 < secs < found.seconds for secs, _ in found.curve)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(workload=160)


def test_a_part_of_the_grid_is_simulated_by_a_process_of_its_own_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = ["--protocols=asp,bsp", "--stragglers=one5x", "--links=free", "--seeds=1", "--workload=80"]
    assert protocols.main([f"--workdir={tmp_path}", *part]) == 0
    lines = (tmp_path / RECORD).read_text().splitlines()
    assert [json.loads(line)["protocol"] for line in lines] == ["asp", "bsp"]
    assert protocols.main([f"--workdir={tmp_path}", *part]) == 0
    assert (tmp_path / RECORD).read_text().splitlines() == lines
