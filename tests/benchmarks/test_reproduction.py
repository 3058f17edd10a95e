"""The experiments of the reproduction: results that a run goes on from, and a page that says what they say."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import syncswitch_scenarios
from benchmarks.published_runs import Made
from benchmarks.reproduction import __main__ as command
from benchmarks.reproduction import page, searching
from benchmarks.reproduction.clusters import Even, Gridded
from benchmarks.reproduction.definition import NOT_RUN, Cell, Claim, Experiment, Given, Row, Value
from benchmarks.reproduction.experiments import EXPERIMENTS, hsp_bearing
from benchmarks.reproduction.jobs import HURT, RECIPE_RATE, Job
from benchmarks.reproduction.plot import Line, Panel, Point, draw
from benchmarks.reproduction.record import (
    FOLDER,
    add,
    complete,
    missing,
    path_of,
    read,
    rows,
    told,
    whole_seeds,
    write,
)
from benchmarks.reproduction.scenarios import Late
from benchmarks.reproduction.searching import expected, ours
from benchmarks.reproduction.training import Training, secs_to, way_of
from hybridsync.core.errors import ConfigError, RoleLost
from hybridsync.lab.tuning.search_rules import Rules

EVERY_COLUMN: dict[str, Value] = {
    "accuracy": 0.9,
    "loss": 0.2,
    "seconds": 20.0,
    "units_per_sec": 80.0,
    "secs_to_loss": 5.0,
    "units_to_loss": 400,
    "staleness_mean": 1.0,
    "staleness_max": 3,
    "switches": 1,
    "dropped": 0,
    "diverged": 0,
    "way": "5:0.5 20:0.9",
    "changes": 2,
    "stall_secs": 0.1,
    "load": 1.0,
    "precision": 1.0,
    "recall": 1.0,
    "windows": 2.0,
    "right_answer": 6.25,
    "cost_bsp_runs": 6.0,
    "break_even_runs": 9,
    "chance_right": 0.5,
    "chance_within_twice": 1,
    "runs": 60,
    "published_secs": 20.0,
    "published_bsp_secs": 99.0,
    "published_accuracy": 0.9,
    "published_runs": 4,
    "slowdown": 0.1,
    "lock_step_secs": 526.0,
    "flagged_after": "2.2 2.6",
}
"""Of a row of any experiment."""
TINY = Job("tiny", "configs/digits_async_hurts.py", ("workload=40",), loss=5.0)


@dataclass(frozen=True)
class Doubled:
    """Doubles a number, unless it is told to fail."""

    number: int
    fails: bool = False

    def definition(self) -> Any:
        return self

    def needs(self, given: Given) -> str:
        return "--cifar" if self.number < 0 and given.cifar is None else ""

    def measure(self, given: Given) -> Row:
        if self.fails:
            raise RoleLost("gone")
        return {"double": 2 * self.number, "note": None}


def experiment(*measures: Doubled) -> Experiment:
    cells = [Cell({"number": each.number}, each) for each in measures]

    def claims(found: Any) -> list[Claim]:
        return [Claim("a", "1", str(len(found)), "here", bool(found))]

    return Experiment("doubled", "HSP", "To see.", cells, claims, lambda found: f"{len(found)} rows")


def test_a_run_measures_what_is_missing_and_what_is_defined_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Given(folder=tmp_path)
    first = experiment(Doubled(1), Doubled(2, fails=True), Doubled(3))
    assert command.run([first], given) == 1
    assert "doubled: 2: FAILED: gone" in capsys.readouterr().out
    assert [row["double"] for row in rows(first, tmp_path)] == [2, 6]
    assert complete(first, tmp_path) == []
    second = experiment(Doubled(1), Doubled(2), Doubled(4))
    assert [cell.key["number"] for cell in missing(second, tmp_path)] == [2, 4]
    assert command.run([second], given) == 0
    assert [row["double"] for row in complete(second, tmp_path)] == [2, 4, 8]
    assert "doubled: 1" not in capsys.readouterr().out
    assert command.run([second], given) == 0
    assert "doubled: nothing is missing in" in capsys.readouterr().out
    assert path_of(second, tmp_path).read_text().count("\n") == 4, "the row of the cell that is gone went with it"


def test_a_run_ends_after_as_many_cells_as_it_may_measure(tmp_path: Path) -> None:
    asked = experiment(Doubled(1), Doubled(2))
    assert command.run([asked], Given(folder=tmp_path), most=1) == 1
    assert len(rows(asked, tmp_path)) == 1


def test_cells_that_need_what_is_not_given_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = experiment(Doubled(-1))
    assert command.run([asked], Given(folder=tmp_path)) == 1
    assert capsys.readouterr().out == "doubled: left out, it needs --cifar\n"
    assert command.run([asked], Given(cifar=tmp_path, folder=tmp_path)) == 0
    some = experiment(Doubled(-2), Doubled(-3), Doubled(4))
    assert command.run([some], Given(folder=tmp_path)) == 1
    assert "doubled: -2; -3 left out, it needs --cifar" in capsys.readouterr().out
    assert [row["double"] for row in rows(some, tmp_path)] == [8]


def test_what_several_cells_fail_of_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run([experiment(Doubled(1, fails=True), Doubled(2, fails=True))], Given(folder=tmp_path)) == 1
    assert capsys.readouterr().out == "doubled: 1: FAILED: gone\ndoubled: 2: FAILED, likewise\n"


def test_a_file_that_is_no_table_of_results_is_refused(tmp_path: Path) -> None:
    path_of(experiment(Doubled(1)), tmp_path).write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="has no column 'digest'"):
        read(experiment(Doubled(1)), tmp_path)


def test_an_unknown_experiment_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list", "--only=hps"]) == 1
    assert "--only names 'hps'" in capsys.readouterr().err


def test_a_cell_is_another_one_where_its_definition_differs() -> None:
    training = Training(TINY, "bsp", Even(), 0)
    cell = Cell({"seed": 0}, training)
    others = {
        "plan": dataclasses.replace(training, plan="asp"),
        "parameter": dataclasses.replace(training, plan="hsp(rho=0.4)"),
        "cluster": dataclasses.replace(training, conditions=Even(ratio=1.0)),
        "value": dataclasses.replace(training, sets=("policy.momentum=zero",)),
        "job": dataclasses.replace(training, job=HURT),
    }
    digests = [Cell(cell.key, each).digest for each in (training, *others.values())]
    assert len(set(digests)) == len(digests)
    assert cell.digest == Cell({"seed": 0}, Training(TINY, "bsp", Even(), 0)).digest


def test_a_cell_trains_and_says_what_came_of_it(tmp_path: Path) -> None:
    tiny = Training(TINY, "bsp:50%,asp", Even(), 0, evaluations=4)
    row = tiny.measure(Given())
    assert tiny.measure(Given()) == row, "the same cell gives the same figures"
    assert row["switches"] == 1 and row["diverged"] == 0 and float(row["seconds"] or 0) > 0
    way = way_of(row)
    assert way == sorted(way) and len(way) >= 2
    asked = Experiment("tiny", "HSP", "", [Cell({"seed": 0}, tiny)], lambda _: [], lambda _: "")
    add(asked, asked.cells[0], row, tmp_path)
    (kept,) = rows(asked, tmp_path)
    assert {name: kept[name] for name in row} == row


def test_a_run_that_diverges_counts_as_guessing() -> None:
    wild = ("optimizer.learning_rate=1e30", "optimizer.clip=none")
    row = Training(TINY, "asp", Even(), 0, sets=wild, evaluations=0).measure(Given())
    assert (row["accuracy"], row["diverged"]) == (TINY.guessing, 1)


def test_a_cell_in_compiled_blocks_is_another_one_with_the_same_figures() -> None:
    real = Training(dataclasses.replace(TINY, loss=None), "bsp:50%,asp", Even(), 0, evaluations=4)
    compiled = dataclasses.replace(real, gradients="compiled")
    assert Cell({"seed": 0}, compiled).digest != Cell({"seed": 0}, real).digest
    row, other = compiled.measure(Given()), real.measure(Given())
    measured = {"accuracy", "loss", "way"}  # from states whose last bits differ
    assert {name: row[name] for name in {*row} - measured} == {name: other[name] for name in {*other} - measured}
    assert float(row["accuracy"] or 0) == pytest.approx(float(other["accuracy"] or 0), abs=0.02)
    assert [at for at, _ in way_of(row)] == [at for at, _ in way_of(other)]


def test_a_cell_in_compiled_blocks_that_diverges_is_measured_one_by_one() -> None:
    wild = ("optimizer.learning_rate=1e30", "optimizer.clip=none")
    real = Training(dataclasses.replace(TINY, loss=None), "asp", Even(), 0, sets=wild, evaluations=0)
    assert dataclasses.replace(real, gradients="compiled").measure(Given()) == real.measure(Given())


def test_the_time_to_an_accuracy_is_that_from_which_on_it_stayed() -> None:
    assert secs_to({"way": "1:0.9 2:0.7 3:0.95"}, 0.9) == 3.0
    assert secs_to({"way": "1:0.9 2:0.7"}, 0.9) is None


def test_the_answer_without_noise_is_the_smallest_share_within_the_tolerance() -> None:
    accuracies = {0: 0.8, 0.125: 0.88, 0.25: 0.915, 0.5: 0.92, 1: 0.92}
    runs = {share: [Made(accuracy, 1.0)] * 3 for share, accuracy in accuracies.items()}
    fractions = {type(Rules().finest)(share): made for share, made in runs.items()}
    assert expected(fractions, Rules(0.92, settings=3)) == 0.25


PUBLISHED = """note,converged_accuracy,seconds_without_switch_gap,bsp_share
a,,,0
b,0.90,305,0.0625
c,0.91,475,0.25
d,nan,,0.5
e,0.92,1300,1
"""
"""Of another setup: other times, shares that are missing, runs that diverged, another order of columns."""


def test_other_published_runs_are_predicted_and_searched_as_far_as_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search_often = searching.search_often
    monkeypatch.setattr(
        searching, "search_often", lambda runs, rules, searches, *rest: search_often(runs, rules, searches // 50, *rest)
    )
    (tmp_path / "runs.csv").write_text(PUBLISHED)
    flags = [f"--published={tmp_path / 'runs.csv'}", f"--folder={tmp_path / 'results'}"]
    asked = ["run", "--only=syncswitch_times,syncswitch_search", "--most=8"]  # all but the searches in our own runs
    assert command.main([*asked, *flags]) == 1
    said = capsys.readouterr().out
    assert "syncswitch_times: 2; 4; 5; 10; 15; 20; 50 left out" in said, "and a share whose runs all diverged"
    assert f"benchmarks.syncswitch_times --runs={tmp_path / 'runs.csv'}" in said and "FAILED" not in said
    times = {row["share"]: row for row in rows(EXPERIMENTS["syncswitch_times"], tmp_path / "results")}
    assert set(times) == {6.25, 25}
    assert times[25]["seconds"] == pytest.approx(504, abs=10), "on the line through the shares of 6.25 % and 1"
    assert [row["runs"] for row in rows(EXPERIMENTS["syncswitch_search"], tmp_path / "results")] == [5] * 6


def test_a_folder_for_other_published_runs_need_not_hold_ours(tmp_path: Path) -> None:
    runs = ours("syncswitch_frontier", Given(folder=tmp_path))
    assert len(runs) == 10 and all(len(made) == 10 for made in runs.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PUBLISHED.replace("bsp_share", "share"), "names no column 'bsp_share', but note, converged_accuracy"),
        (PUBLISHED.replace("0.0625", "6.25 of 100"), "line 3 of .*: the column 'bsp_share' has '6.25 of 100'"),
        (PUBLISHED.replace("0.0625", "6.25"), "line 3 of .*: the BSP share '6.25' is not in"),
        (PUBLISHED.replace("0.90", "90.1"), "line 3 of .*: the accuracy '90.1' is not in"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "runs.csv").write_text(text)
    flags = [f"--published={tmp_path / 'runs.csv'}", f"--folder={tmp_path / 'results'}"]
    assert command.main(["run", "--only=syncswitch_times,syncswitch_search", *flags]) == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and re.search(said, told.err)


def test_every_measurement_of_a_claim_stands_in_a_row_with_its_verdict() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    measured = [(claim, each) for each in EXPERIMENTS.values() for claim in each.claims(told(each))]
    for claim, each in measured:
        assert any(f"| {claim.text} | {claim.published} |" in row for row in rows) or any(
            f" {claim.text}; paper: {claim.published} |" in row for row in rows
        )
        found = (f"| {claim.verdict} | {claim.ours} |", f"| {claim.verdict}: {claim.ours} |")
        assert any(f"](reproduction/{each.name}.csv)" in row and any(cell in row for cell in found) for row in rows)
    assert sum(map(int, re.findall(r" (\d+) (?=\|)", page.made("verdicts")))) == len(measured)


def test_claims_and_tables_are_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["show", "--only=hsp_rates,hsp"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^## (\w+)$", shown, re.MULTILINE) == ["hsp_rates", "hsp"]
    assert "| faster convergence | up to 1.67x |" in shown
    assert EXPERIMENTS["hsp"].table(told(EXPERIMENTS["hsp"])) in shown


def test_results_in_another_folder_leave_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = page.PAGE.read_bytes()
    assert command.main(["page", f"--folder={tmp_path}"]) == 1
    assert "has no results" in capsys.readouterr().err
    each = EXPERIMENTS["psplus"]
    write(each, {cell.digest: {**cell.key, **EVERY_COLUMN} for cell in each.cells}, tmp_path)
    assert command.main(["page", f"--folder={tmp_path}"]) == 0
    written = (tmp_path / "reproduction.md").read_text()
    assert "## psplus" in written and "](psplus.svg)" in written and (tmp_path / "psplus.svg").exists()
    assert "## hsp" not in written and page.PAGE.read_bytes() == before


def test_hsp_is_measured_at_the_largest_rate_at_which_asynchrony_needs_few_more_units() -> None:
    def made(units: dict[int, int | None]) -> list[Row]:
        found: list[Row] = []
        for part, asynchrony in units.items():
            for plan, needed in (("bsp_server", 100), ("asp", asynchrony)):
                where = {"job": "MLP", "part": part, "protocol": plan, "units_to_loss": needed}
                found += [{**where, "seed": seed} for seed in hsp_bearing.SEEDS]
        return found

    assert hsp_bearing.chosen(made({2: 120, 4: 110, 8: 90}), "MLP") == 4
    assert hsp_bearing.chosen(made({2: None, 4: 111, 8: 100}), "MLP") == 8, "it never came there at a half"
    assert hsp_bearing.chosen(made({2: 120, 4: 120, 8: 120}), "MLP") is None
    found = complete(hsp_bearing.RATES)
    by_rule = {job: hsp_bearing.chosen(found, job) or hsp_bearing.PARTS[-1] for job in hsp_bearing.JOBS}
    assert by_rule == hsp_bearing.CHOSEN


def test_an_experiment_by_seeds_tells_of_whole_seeds_alone_and_says_how_many(tmp_path: Path) -> None:
    each = EXPERIMENTS["syncswitch_resnet"]
    made = {cell.digest: {**cell.key, **EVERY_COLUMN} for cell in each.cells}
    seeds = {cell.digest: cell.key["seed"] for cell in each.cells}
    kept = {digest: row for digest, row in made.items() if seeds[digest] == 401 or row["share"] == 0}
    write(each, {digest: row for digest, row in kept.items() if row["share"] != 25}, tmp_path)
    assert whole_seeds(each, tmp_path) == [] and told(each, tmp_path) == []
    assert all(claim.verdict == "not run yet" for claim in each.claims(told(each, tmp_path)))
    assert "Not run yet: 7 of 18 cells" in page.made(each.name, tmp_path)
    write(each, kept, tmp_path)
    assert whole_seeds(each, tmp_path) == [401]
    assert {row["seed"] for row in told(each, tmp_path)} == {401} and len(told(each, tmp_path)) == 6
    assert complete(each, tmp_path) == [], "searches draw from whole experiments"
    assert all("1 of 3 seeds" in claim.conditions for claim in each.claims(told(each, tmp_path)))
    assert "1 of 3 seeds are measured whole" in page.made(each.name, tmp_path)
    assert "20.0 s, 1 of 1" in page.made(each.name, tmp_path)
    write(each, made, tmp_path)
    assert "measured whole" not in page.made(each.name, tmp_path)


def test_a_scenario_in_which_nobody_is_late_is_what_no_policy_surpasses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncswitch_scenarios, "PLAN", "bsp:99%,asp")
    monkeypatch.setattr(syncswitch_scenarios, "WORKLOAD", 800)
    late, on_time = (Late(2, "baseline", is_late=is_late).measure(Given()) for is_late in (True, False))
    assert on_time["seconds"] == pytest.approx(100 * 1.317, rel=0.02) and on_time["flagged_after"] == ""
    assert isinstance(late["seconds"], float) and late["seconds"] > 1.1 * 100 * 1.317
    assert late["flagged_after"] != ""


def test_a_plan_of_the_grid_is_measured_on_its_cluster_and_seed_by_seed() -> None:
    slow = [Training(TINY, "bsp", Gridded(kind, "1", 200), 200, evaluations=0) for kind in ("uniform", "one5x")]
    even, straggled = (each.measure(Given()) for each in slow)
    assert float(straggled["seconds"] or 0) > 2 * float(even["seconds"] or 0)
    assert EXPERIMENTS["grid"].seeds == [200, 201, 202, 203, 204]


def test_where_the_rate_is_low_stale_gradients_need_no_more_units_to_a_loss_and_less_time() -> None:
    sets = ("workload=480", "optimizer.learning_rate=0.00125")
    job, alike = dataclasses.replace(RECIPE_RATE, sets=sets, loss=1.0), Even(ratio=1, spread=0.0)
    for seed in (3, 4):
        barrier, hsp = (
            Training(job, plan, alike, seed, evaluations=0).measure(Given()) for plan in ("bsp_server", "hsp(stale=1)")
        )
        units, secs = (float(barrier[name] or 0) / float(hsp[name] or 0) for name in ("units_to_loss", "secs_to_loss"))
        assert units > 0.9 and secs > 1.5
        assert float(hsp["staleness_mean"] or 0) > 0.3


def test_every_row_of_the_results_is_of_a_cell_that_is_defined() -> None:
    for path in FOLDER.glob("*.csv"):
        found = EXPERIMENTS[path.stem]
        lines = path.read_text(encoding="utf-8").count("\n") - 1
        assert len(read(found)) == lines, f"run python -m benchmarks.reproduction run --only={path.stem}"


def test_the_page_and_its_plots_are_made_of_the_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.refreshed(text) == text, "run python -m benchmarks.reproduction page, and review the difference"
    drawn = page.plots()
    assert sorted(path.stem for path in FOLDER.glob("*.svg")) == sorted(drawn)
    for name, svg in drawn.items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == svg, name


def test_the_page_links_the_results_of_every_experiment() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert [name for name in EXPERIMENTS if f"](reproduction/{name}.csv)" not in text] == []
    assert all(name == each.name for name, each in EXPERIMENTS.items())


def test_claims_without_results_say_that_nothing_was_run(tmp_path: Path) -> None:
    for each in EXPERIMENTS.values():
        assert all(claim.verdict == "not run yet" for claim in each.claims([])), each.name
    assert "not run yet" in page.made("claims_hsp", tmp_path)
    assert "0 of" in page.made("hsp", tmp_path)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_reports_whole_results(name: str, tmp_path: Path) -> None:
    each = EXPERIMENTS[name]
    write(each, {cell.digest: {**cell.key, **EVERY_COLUMN} for cell in each.cells}, tmp_path)
    found = complete(each, tmp_path)
    assert len(found) == len(each.cells)
    assert all(claim.ours != NOT_RUN and claim.conditions for claim in each.claims(found))
    head, *lines = each.table(found).splitlines()
    assert len(lines) >= 2 and {line.count("|") for line in lines} == {head.count("|")}
    if each.plot is not None:
        ElementTree.fromstring(each.plot(found))


def test_a_figure_is_drawn_whole_with_its_spread_and_legend() -> None:
    lines = [Line("one & two", 0, [Point(0, 1, 0.5, 1.5), Point(2, 3)], marks=True)]
    svg = ElementTree.fromstring(draw("Title", "note", [Panel("left", "x", "y", lines, events=[(1.0, "then")])]))
    told = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title", "note", "left: y", "x", "one & two", "then"} <= set(told)
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}circle"))) == 2


def test_a_figure_writes_the_ticks_that_it_is_given() -> None:
    line = Line("", 0, [Point(0.25, 1), Point(4, 2)])
    panels = [Panel("", "x", "y", [line], is_log=is_log, ticks=(0.25, 4)) for is_log in (False, True)]
    svg = ElementTree.fromstring(draw("Title", "note", panels))
    told = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert told.count("0.25") == told.count("4") == 2 and "0.5" not in told
