import json
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.reading import shown_records
from tests.lab.report.workdirs import WrittenRun, completed


def _refusal(workdir: Path) -> str:
    with pytest.raises(WorkdirError) as refused:
        shown_records([workdir])
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_that_is_not_there_or_holds_no_run_is_refused_by_name(tmp_path: Path) -> None:
    assert f"no folder {tmp_path / 'gone'}" in _refusal(tmp_path / "gone")
    assert f"{tmp_path} holds no run" in _refusal(tmp_path)


def test_a_folder_of_runs_or_searches_is_refused_with_what_there_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "simulator").mkdir()
    (tmp_path / "simulator" / "search.json").write_text("{}")
    completed(tmp_path / "bsp")
    assert _refusal(tmp_path).endswith("; it has some in bsp, simulator")
    for number in range(4):
        completed(tmp_path / f"asp{number}")
    assert _refusal(tmp_path).endswith("; it has some in asp0, asp1, asp2, asp3, bsp, ...")


def test_a_run_that_has_entered_no_phase_has_nothing_to_show_yet(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    assert "nothing to show yet" in _refusal(written_run.workdir)
    written_run.start()
    written_run.close()
    assert "nothing to show yet" in _refusal(written_run.workdir)


def test_a_run_that_failed_before_its_first_phase_has_its_error_to_show(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.finish("failed", "no worker came", applied=0)
    (record,) = shown_records([written_run.workdir])
    assert record.summary is not None
    assert record.summary["error"] == "no worker came"


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("events.jsonl", '{"t":1.0,"ki', "events.jsonl is damaged in line 1"),
        ("metrics.jsonl", "[1, 2]", "metrics.jsonl is damaged in line 1"),
        ("events.jsonl", '{"t":1.0,"wall":1,"phase":1,"kind":"phase_ended"}'.replace('"phase":1,', ""), "lacks phase"),
        ("events.jsonl", '{"t":1.0,"wall":1,"phase":1,"kind":"rollback","to_units":3}', "lacks rolled_back"),
        ("metrics.jsonl", '{"t":1.0,"units":3}', "lacks examples"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, file: str, damage: str, said: str) -> None:
    path = completed(tmp_path / "run") / file
    path.write_text(damage + "\n" + path.read_text())
    assert said in _refusal(path.parent)


@pytest.mark.parametrize("file", ["config.json", "summary.json", "timeline.json", "simulation.json"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str) -> None:
    workdir = completed(tmp_path / "run")
    (workdir / file).write_text('{"trace')
    assert file in _refusal(workdir)


def test_a_timeline_of_something_else_is_named(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    (workdir / "timeline.json").write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "step", "cat": "sync"}]}))
    assert "no timeline of this run" in _refusal(workdir)


def test_a_torn_last_line_and_absent_files_are_no_damage(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"t":1')
    for name in ("timeline.json", "summary.json"):
        (workdir / name).unlink()
    (record,) = shown_records([workdir])
    assert (len(record.metrics), record.trace, record.summary) == (4, [], None)


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    runs = [completed(tmp_path / folder / "run") for folder in ("a", "b")]
    assert [record.name for record in shown_records(runs)] == [str(path) for path in runs]
    assert [record.name for record in shown_records(runs[:1])] == ["run"]
