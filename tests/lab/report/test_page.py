import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.lab.report.charts import Chart, Line, draw
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from hybridsync.telemetry.summary import write_config
from tests.lab.report.workdirs import CONFIG, WrittenRun, completed

EMPTY = {"meta", "input"}


class Outline(HTMLParser):
    """Checks that every element is closed, and collects what the page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.captions: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "figcaption":
            self.captions.append(data)
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


def _page(*workdirs: Path) -> str:
    return page(shown_records(workdirs))


def charts(text: str) -> list[dict]:
    return [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def test_one_run_has_every_part_and_every_chart(tmp_path: Path) -> None:
    outline = Outline(_page(completed(tmp_path / "run")))
    assert outline.captions == [
        "Examples per second over time",
        "Examples per second of each worker over time",
        "Staleness in updates over time",
        "Learning rate over time",
        "Loss over time, logarithmic",
        "Accuracy over time",
        "Loss over units, logarithmic",
        "Accuracy over units",
        "Loss over examples, logarithmic",
        "Accuracy over examples",
    ]
    for part in (
        "Phases and incidents",
        "What switching cost",
        "Where the workers' time went",
        "Every unit accounted for",
    ):
        assert part in outline.text
    assert "worker 1 lost: signal SIGKILL" in outline.text
    assert "403" in outline.text and "adds up" in outline.text
    assert any(
        value.startswith("phase 2: asp (planned), workers 0-1, unit 100 to 400") for _, value in outline.attributes
    )


def test_one_of_a_kind_is_not_written_as_several(tmp_path: Path) -> None:
    assert "<dd>2 workers, 1 server</dd>" in _page(completed(tmp_path / "run"))


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    text = _page(completed(tmp_path / "run"))
    names = {name for name, _ in Outline(text).attributes}
    assert not names & {"src", "href", "srcset"}
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "url(" not in text


def test_several_runs_share_every_chart_and_each_can_be_hidden(tmp_path: Path) -> None:
    runs = [completed(tmp_path / name) for name in ("first", "second")]
    text = _page(*runs)
    outline = Outline(text)
    assert len(outline.captions) == 10
    assert {run for chart in charts(text) for _, run, _, _ in chart["lines"]} == {0, 1}
    assert all({run for _, run, _, _ in chart["lines"]} == {0, 1} for chart in charts(text))
    for at in range(2):
        assert ("id", f"show{at}") in outline.attributes
        assert f'body:has(#show{at}:not(:checked)) main [data-run="{at}"]' in text
    assert "second, p95" in outline.text


def test_charts_carry_the_figures_that_the_pointer_shows(tmp_path: Path) -> None:
    loss = charts(_page(completed(tmp_path / "run")))[-2]
    assert loss["lines"] == [
        ["training", 0, "solid k0", [[800, 2.0], [1600, 0.1], [3200, 0.05]]],
        ["evaluated", 0, "dots k0", [[1600, 0.3]]],
    ]


@pytest.mark.parametrize("error", ["<script>alert(1)</script>", "a \"quoted\" & 'odd' </style> line"])
def test_what_a_run_says_is_shown_as_text(tmp_path: Path, error: str) -> None:
    written_run = WrittenRun(tmp_path / "<b>run")
    written_run.start()
    written_run.phase("asp(<i>=1)", 0, 'why "so"')
    written_run.metrics(10)
    written_run.event("role_lost", role="server", id=0, reason=error)
    written_run.finish("failed", error)
    outline = Outline(_page(written_run.workdir))
    assert outline.text.count(error) == 2  # among the facts, and among the incidents
    assert "<b>run" in outline.text
    assert "asp(<i>=1)" in outline.text


def test_an_unfinished_run_without_metrics_has_a_page_that_says_so(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.close()
    outline = Outline(_page(written_run.workdir))
    assert "unfinished" in outline.text
    assert outline.text.count("nothing yet") == 10
    assert "known at the run's end" in outline.text


def test_a_run_that_failed_before_its_first_phase_has_a_page_with_the_reason(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.finish("failed", "no worker came", applied=0)
    outline = Outline(_page(written_run.workdir))
    assert "no worker came" in outline.text
    assert "Every phase" not in outline.text


def test_an_account_that_does_not_add_up_is_called_out(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    summary = json.loads((workdir / "summary.json").read_text())
    summary["units"]["issued"] += 1
    (workdir / "summary.json").write_text(json.dumps(summary))
    assert "does not add up" in Outline(_page(workdir)).text


def test_a_long_run_of_many_workers_stays_a_small_page(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    for units in range(3_000):
        written_run.metrics(units, 0.5 + units % 7)
    written_run.finish()
    assert len(_page(written_run.workdir)) < 500_000


def test_of_many_switches_the_longest_are_drawn_and_all_are_in_the_table(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    for at in range(30):
        written_run.phase("asp", at)
        written_run.switch(at, 0.1 + 0.01 * at)
    written_run.finish()
    text = _page(written_run.workdir)
    assert "The 20 longest of 30." in text
    assert text.count('class="row"') == 20
    assert text.count("<td>bsp to asp</td>") + text.count("<td>asp to asp</td>") == 30


def test_stall_within_one_units_time_says_how_long_its_stages_took(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.phase("asp", 100)
    written_run.switch(100, 0.0)
    written_run.finish()
    assert "stall 0 ms beyond one unit's time, its stages took 65 ms" in Outline(_page(written_run.workdir)).text


def test_events_are_named_in_words(tmp_path: Path) -> None:
    text = Outline(_page(completed(tmp_path / "run"))).text
    assert "straggler flagged" in text and "role lost" in text and "role_lost" not in text


def test_axis_of_accuracy_begins_where_runs_have_settled(tmp_path: Path) -> None:
    points = [(0.0, 0.1), (4.0, 0.94), (8.0, 0.97)]
    chart = Chart("Accuracy", "time", [Line("a", 0, 0, "marked", points)], from_zero=False, settled=True)
    text = Outline(draw(chart)).text
    assert "0.94" in text and "0.2" not in text
    early = Chart(
        "Accuracy", "time", [Line("a", 0, 0, "marked", points[:1])], x_high=8.0, from_zero=False, settled=True
    )
    assert "0.1" in Outline(draw(early)).text, "where there is nothing later"


@pytest.mark.parametrize(("most", "is_share"), [(0.97, True), (1.05, False)])
def test_axis_of_a_share_ends_at_one_whatever_its_spread(most: float, is_share: bool) -> None:
    line = Line("a", 0, 0, "solid", [(0.0, 0.8), (4.0, most)], edges=[(0.0, 0.7, 0.9), (4.0, 0.9, 1.12)])
    drawn = draw(Chart("Accuracy", "time", [line], from_zero=False, settled=True))
    assert (max(map(float, re.findall(r">([\d.]+)<", drawn))) == 1.0) == is_share


def test_a_stopped_run_says_why_and_how_long_its_callbacks_took(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    file = workdir / "summary.json"
    values = {"exit": "stopped", "stop_reason": "accuracy <.97>", "callback_secs": {"WandB": 3.0, "odd": "long"}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    text = Outline(_page(workdir)).text
    assert "by a callback: accuracy <.97>" in text
    assert re.search(r"WandB 3(\.\d)? s, in a thread of their own", text)


def seeds(folder: Path, plans: Sequence[str], num_seeds: int = 3) -> list[Path]:
    """Leave completed runs of several plans and seeds."""
    runs = []
    for plan, seed in itertools.product(plans, range(num_seeds)):
        workdir = completed(folder / f"{plan}-{seed}")
        write_config(workdir, dataclasses.replace(CONFIG, plan=plan, seed=seed))
        runs.append(workdir)
    return runs


def test_more_runs_than_colours_are_drawn_as_groups_with_mean_and_band(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ["asp", "bsp", "preduce"])
    text = _page(*runs)
    outline = Outline(text)
    assert "<h1>9 runs by plan" in text
    for chart in charts(text):
        assert [(label, run) for label, run, _, _ in chart["lines"]] == [
            ("asp", 0),
            ("bsp", 3),
            ("preduce", 6),
        ]
    lines = [points for chart in charts(text) for _, _, _, points in chart["lines"]]
    assert text.count('class="spread') == sum(len(points) > 1 for points in lines) > 0
    assert [value for name, value in outline.attributes if name == "id" and value.startswith("show")] == [
        "show0",
        "show3",
        "show6",
    ]
    assert 'body:has(#show3:not(:checked)) main :is([data-run="3"],[data-run="4"],[data-run="5"]){display:none}' in text
    assert "Examples per second of each worker over time" not in outline.captions
    assert text.count('<section data-run="') == 9, "each run has its lane"
    assert "3 of 3" in outline.text and "0.9 ± 0" in outline.text


def test_the_runs_table_has_what_differs_and_says_the_rest_once(tmp_path: Path) -> None:
    text = Outline(_page(*seeds(tmp_path, ["asp", "bsp"], 2))).text
    assert "runseedasp-0completed0asp-1completed1bsp-0completed0bsp-1completed1" in text
    together = text[text.index("The same in all 4 runs:") :]
    assert "units applied400 of 400" in together and "roles2 workers, 1 server" in together
    assert text.count("2 workers, 1 server") == 1


def test_runs_are_grouped_by_what_is_asked_for(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ["asp", "bsp"], 2)
    assert 'id="name1"' in _page(*runs)
    text = page(shown_records(runs), by=("plan",))
    assert "4 runs by plan" in text and 'id="name2"' in text and 'id="name1"' not in text
    with pytest.raises(ConfigError, match="did you mean 'plan'"):
        page(shown_records(runs), by=("plam",))


def test_groups_stand_in_the_order_of_their_numbers_under_the_part_in_which_they_differ(tmp_path: Path) -> None:
    names = {str(lead): 2 * at for at, lead in enumerate((1, 2, 3, 10, 20, *range(30, 39)))}
    text = _page(*reversed(seeds(tmp_path, [f"ssp(staleness={lead})" for lead in sorted(names)], 2)))
    assert all([(label, run) for label, run, _, _ in chart["lines"]] == [*names.items()] for chart in charts(text))
    looks = {look for _, _, look, _ in charts(text)[0]["lines"]}
    assert len(looks) == len(names), "each has a colour or dashes of its own"
    legend = re.search(r'<fieldset class="runs">.*?</fieldset>', text)
    assert legend and "plan ssp(staleness=…)" in legend[0] and len(re.findall("<input", legend[0])) == len(names)
    assert 'class="legend"' not in text[text.index("Speed and learning") : text.index("What switching cost")]
    assert 'class="charts crowded"' in text and 'class="charts crowded"' not in _page(completed(tmp_path / "run"))


def test_loss_and_accuracy_are_there_over_time_units_and_examples(tmp_path: Path) -> None:
    text = _page(completed(tmp_path / "run"))
    for x in ("time", "units", "examples"):
        assert text.count(f'class="chart over-{x}"') == 2
        assert f'id="over-{x}"' in text and f"body:not(:has(#over-{x}:checked)) .over-{x}" in text


def test_an_older_run_that_was_given_its_optimizer_shows_none_of_the_configuration(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    assert "optimizersgd, rate 0.05" in Outline(_page(workdir)).text
    write_config(workdir, CONFIG)  # without a file
    assert "optimizersgd" not in Outline(_page(workdir)).text


def test_a_chart_carries_what_an_enlarged_part_is_labelled_by(tmp_path: Path) -> None:
    loss, accuracy = charts(_page(completed(tmp_path / "run")))[-2:]
    assert (loss["over"], loss["log"], accuracy["log"]) == ("examples", True, False)
    assert loss["y"][0] < 0.05 < 2.0 < loss["y"][1] and accuracy["y"][0] < 0.8 < accuracy["y"][1]


def test_the_page_says_how_many_evaluations_there_are_and_what_passed_without_one(tmp_path: Path) -> None:
    assert "evaluations1" in Outline(_page(completed(tmp_path / "run"))).text
    written_run = WrittenRun(tmp_path / "passed")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.event("evaluation_skipped", first=10, last=20, places=2, units=31, why="a save was under way")
    written_run.close()
    assert "evaluations0; 2 places passed without one" in Outline(_page(written_run.workdir)).text
