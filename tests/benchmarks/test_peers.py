"""What `benchmarks.peers` makes of measurements: shares left out, ratios, results files, the page and its plots."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import environments, measure, page, plot
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.figures import Failure, Measurement, Results, Spread, calls_per_sec, kept
from benchmarks.peers.scripts.peer_job import Data, last_result, take_unit, units_in_a_pipe
from benchmarks.peers.systems import ENVIRONMENTS, OURS, SYSTEMS
from benchmarks.peers.work import ALL, ALL_REDUCES, ASYNC, DIGITS, LOCKSTEP, TRANSFERS, case_of

RPC = "torch_rpc"
BUSY = case_of(DIGITS[0], ASYNC)
SUM = case_of(ALL_REDUCES[0])


def results(*measurements: Measurement, failures: tuple[Failure, ...] = ()) -> Results:
    return Results({"cores": "2"}, {"torch": ["torch==1"]}, 2, list(measurements), list(failures))


def two_rounds() -> Results:
    """Ours is 2 and then 4 times as fast as PyTorch's server, and its sum takes half of the time."""
    return results(
        Measurement(BUSY, OURS, 0, 20_000.0, 1.0, 0.95),
        Measurement(BUSY, RPC, 0, 10_000.0, 1.5, 0.97),
        Measurement(BUSY, RPC, 1, 10_000.0, 2.0, 0.96),
        Measurement(BUSY, OURS, 1, 40_000.0, 2.5, 0.94),
        Measurement(SUM, OURS, 0, 0.5, 2.5),
        Measurement(SUM, "torch_ddp", 0, 1.0, 2.5),
    )


@pytest.mark.parametrize(("count", "left"), [(1, 1), (4, 4), (5, 5), (10, 8), (20, 16), (25, 21)])
def test_a_tenth_is_left_out_at_each_end_and_something_stays(count: int, left: int) -> None:
    values = list(range(count))
    assert len(kept(values)) == left
    assert kept(values)[0] == (count - left) // 2


def test_a_slow_first_and_last_call_do_not_count() -> None:
    assert calls_per_sec([100.0, *[0.25] * 8, 100.0]) == 4.0


def test_a_spread_needs_a_value() -> None:
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 1)
    with pytest.raises(ValueError, match="measure one round at least"):
        Spread.of([])


def test_a_ratio_is_of_one_round_and_means_times_as_fast() -> None:
    found = two_rounds()
    assert found.ratios(BUSY, OURS, RPC, lower_is_better=False) == [2.0, 4.0]
    assert found.ratios(SUM, OURS, "torch_ddp", lower_is_better=True) == [2.0]


def test_a_round_that_lacks_one_of_the_two_has_no_ratio() -> None:
    found = results(*two_rounds().measurements[1:])
    assert found.ratios(BUSY, OURS, RPC, lower_is_better=False) == [4.0]


@pytest.mark.parametrize("found", [two_rounds(), results(failures=(Failure("digits", "ray", 0, "no such file"),))])
def test_what_is_written_is_read_again(found: Results, tmp_path: Path) -> None:
    found.write(tmp_path / "new" / "results.json")
    assert Results.read(tmp_path / "new" / "results.json") == found


def test_a_file_of_another_shape_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"machine": {}, "pins": {}, "measurements": [], "failures": []}')
    with pytest.raises(ValueError, match="rounds"):
        Results.read(tmp_path / "old.json")


def test_every_system_begins_a_round_in_its_turn() -> None:
    assert [measure.in_turn("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(measure.in_turn("abc", 2)) == ["a", "b", "c"]
    assert measure.in_turn((), 1) == []


def test_works_and_systems_are_chosen_by_the_beginnings_of_their_names() -> None:
    names = [work.name for work in ALL]
    assert chosen("", names) == names
    assert chosen("allreduce,transfer-2MB", names) == ["transfer-2MB", *(work.name for work in ALL_REDUCES)]
    with pytest.raises(ValueError, match="digit-: there is no such name"):
        chosen("digit-,transfer", names)


def test_every_work_is_done_by_ours_and_by_a_peer() -> None:
    for work in ALL:
        assert SYSTEMS[OURS].does(work)
        assert any(system.environment and system.does(work) for system in SYSTEMS.values()), work.name


def test_the_ideal_counts_a_straggler_once_where_nobody_waits_for_it() -> None:
    busy, emulated, straggler = DIGITS
    assert busy.ideal(LOCKSTEP) is None
    assert emulated.ideal(LOCKSTEP) == emulated.ideal(ASYNC) == pytest.approx(6400)
    assert straggler.ideal(LOCKSTEP) == pytest.approx(1280)
    assert straggler.ideal(ASYNC) == pytest.approx(5120)


def test_every_script_is_there_and_every_environment_pins_what_it_installs() -> None:
    scripts = {path.stem for path in (Path(measure.__file__).parent / "scripts").glob("*.py")}
    assert {system.script for system in SYSTEMS.values() if system.script} < scripts
    for name in ENVIRONMENTS:
        assert environments.pins(name)
        assert all(pin.count("==") == 1 for pin in environments.pins(name)), "pin a version, and no address"
    with pytest.raises(ValueError, match="there is no environment 'caffe'; name one of torch"):
        environments.pins("caffe")


def test_an_environment_counts_only_with_the_pins_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    assert environments.interpreter("torch") is None
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "installed.txt").write_text("torch==0.1")
    assert environments.interpreter("torch") is None
    (tmp_path / "torch" / "installed.txt").write_text("\n".join(environments.pins("torch")))
    assert environments.interpreter("torch") == tmp_path / "torch" / "bin" / "python"


def test_a_peer_without_its_environment_is_a_failure_that_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    found = results()
    measure.measure_one(TRANSFERS[0], "ray", 1, tmp_path / "none.npz", found)
    assert found.measurements == []
    (failure,) = found.failures
    assert (failure.work, failure.system, failure.round) == ("transfer-2MB", "ray", 1)
    assert "run python -m benchmarks.peers setup ray" in failure.reason


def test_a_script_that_fails_shows_the_end_of_what_it_printed() -> None:
    with pytest.raises(RuntimeError, match=r"ended with 1(.|\n)*No module named benchmarks.peers.scripts.none"):
        measure.script(Path(sys.executable), "benchmarks.peers.scripts.none", [])


def test_a_process_that_told_nothing_is_refused_with_what_it_printed() -> None:
    assert last_result('RESULT {"a": 1}\nnoise\nRESULT {"a": 2}\n') == {"a": 2}
    with pytest.raises(ValueError, match="Segmentation fault"):
        last_result("Segmentation fault")


def test_a_pipe_gives_out_each_unit_once() -> None:
    pipe = units_in_a_pipe(3)
    assert [take_unit(pipe) for _ in range(5)] == [True, True, True, False, False]
    with pytest.raises(ValueError, match="measure fewer"):
        units_in_a_pipe(1_000_000)


def test_the_digits_that_peers_read_are_ours_with_the_parameters_that_our_job_begins_with(tmp_path: Path) -> None:
    from benchmarks.peers.ours import write_digits

    write_digits(tmp_path / "digits.npz")
    data = Data.read(str(tmp_path / "digits.npz"))
    assert data.images.shape == (1437, 64) and data.test_images.shape == (360, 64)
    assert data.images.min() == 0.0 and data.images.max() == 1.0
    shapes = [(64, 256), (256,), (256, 256), (256,), (256, 10), (10,)]
    assert [each.shape for each in data.params] == shapes
    assert data.accuracy(data.params) < 0.3, "nothing is learned yet"
    assert data.accuracy([np.zeros(shape, "f") for shape in shapes]) == pytest.approx((data.test_labels == 0).mean())


def test_the_page_says_median_spread_and_ratio() -> None:
    blocks = page.blocks(two_rounds())
    ours, rpc = [line for line in blocks["digits"].splitlines() if "asynchronous" in line]
    assert ours == "| **HybridSync** `asp` | asynchronous | 30,000 (20,000 to 40,000) |  |  |"
    assert rpc == ("| PyTorch RPC | asynchronous | 10,000 (10,000 to 10,000); 3.00 (2.00 to 4.00) x as fast |  |  |")
    assert "| PyTorch DDP | 1; 2.00 x as fast |  |  |" in blocks["allreduce"]
    head, _, row = blocks["machine"].splitlines()
    assert "| rounds of each figure | load average when a measurement ended |" in head
    assert "| 2; some have 1 | 2.2 (1.0 to 2.5) |" in row


def test_what_was_not_measured_or_failed_is_said() -> None:
    found = results(failures=(Failure("digits", "ray", 0, "a | b\nc"),))
    blocks = page.blocks(found)
    assert all("not measured" in blocks[name] for name in ("digits", "transfer", "allreduce"))
    assert "| digits | Ray actor | 0 | a / b c |" in blocks["failures"]
    assert page.plots(found) == {}


def test_only_the_made_blocks_of_a_page_change(tmp_path: Path) -> None:
    text = "# Title\n\n<!-- made: allreduce -->\nold\n<!-- end -->\n\nby hand\n"
    (tmp_path / "page.md").write_text(text)
    page.write(two_rounds(), tmp_path / "page.md", tmp_path / "plots")
    now = (tmp_path / "page.md").read_text()
    assert now.startswith("# Title\n\n<!-- made: allreduce -->\n| system, ms |") and now.endswith(
        "<!-- end -->\n\nby hand\n"
    )
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["allreduce.svg", "digits.svg"]
    with pytest.raises(KeyError, match="other"):
        page.refreshed("<!-- made: other -->\n<!-- end -->", two_rounds())


def test_a_bar_is_as_long_as_its_median_and_its_line_as_its_spread() -> None:
    bars = [plot.Bar("a & b", Spread(50.0, 25.0, 100.0, 3), True), plot.Bar("c", Spread(100.0, 100.0, 100.0, 1), False)]
    svg = plot.draw("Title", "unit", [[plot.Panel("panel", bars, ideal=200.0)]])
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    half, whole = (float(each.get("width", "")) for each in root.iter(f"{space}rect") if each.get("class") != "ground")
    assert whole == pytest.approx(2 * half, abs=0.2)
    assert [each.get("class") for each in root.iter(f"{space}rect")] == ["ground", "ours", "peer"]
    assert "a &amp; b" in svg and "ideal 200" in svg and "prefers-color-scheme:dark" in svg
    assert (root.get("aria-label") or "") == "Title; unit"
