"""`python -m launch.report`: what it writes, what it refuses; each question asked of a fresh interpreter."""

import html
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.cli.report import write_report
from hybridsync.core.errors import WorkdirError
from tests.lab.report.workdirs import WrittenRun, completed

ROOT = Path(__file__).resolve().parents[3]


def _report(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.report", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def test_the_page_lands_beside_the_run_or_where_it_is_asked_for(tmp_path: Path) -> None:
    run, other = completed(tmp_path / "run"), completed(tmp_path / "other")
    done = _report(run)
    assert (done.returncode, done.stdout) == (0, f"written: {run / 'report.html'}\n")
    assert "worker 1 lost" in (run / "report.html").read_text()
    done = _report(run, other, f"--out={tmp_path / 'both.html'}")
    assert done.returncode == 0, done.stderr
    assert "other, run" in (tmp_path / "both.html").read_text()


def test_runs_are_compared_into_files_and_the_page_is_written_where_it_is_named(tmp_path: Path) -> None:
    runs = [completed(tmp_path / name) for name in ("a", "b")]
    table, figure = tmp_path / "table.csv", tmp_path / "figure.svg"
    done = _report(*runs, tmp_path / "gone", f"--csv={table}", f"--svg={figure}", "--group=plan,workers", "--at=0.8")
    assert (done.returncode, done.stderr) == (
        0,
        f"left out: there is no folder {tmp_path / 'gone'}; name the --workdir of a run\n",
    )
    head, row, *written = done.stdout.splitlines()
    assert head.split()[:2] == ["plan", "workers"] and row.endswith("2 of 2")
    assert written == [f"written: {table}", f"written: {figure}"]
    assert table.read_text().startswith("plan,workers,runs,") and figure.read_text().startswith("<svg ")
    assert not (runs[0] / "report.html").exists()
    done = _report(*runs, f"--svg={figure}", "--x=units", "--figure=loss", f"--out={tmp_path / 'both.html'}")
    assert done.stdout.splitlines()[2:] == [f"written: {figure}", f"written: {tmp_path / 'both.html'}"]
    assert "units applied" in figure.read_text() and ">Loss" in figure.read_text()


def test_bad_input_gets_one_line_and_exit_1(tmp_path: Path) -> None:
    run = completed(tmp_path / "run")
    for arguments, said in [
        ((), "no run was named"),
        ((tmp_path / "gone",), "there is no folder"),
        ((run / "config.json",), "config.json/search.json: Not a directory; name the --workdir of a run"),
        ((tmp_path,), "holds no run"),
        ((run, f"--out={tmp_path / 'gone' / 'x.html'}"), "cannot write"),
        ((run, f"--csv={tmp_path / 'gone' / 'x.csv'}"), "cannot write"),
        ((run, "--at=0.5", "--group=plam"), "did you mean 'plan'?"),
        ((run, "--at=nan"), "at must be a number that can be reached, got nan"),
    ]:
        done = _report(*arguments)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ") and said in line


def test_a_folder_that_nobody_may_look_into_gets_one_line_and_exit_1(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from absl import flags
from hybridsync.cli import report
from tests.access import no_access
flags.FLAGS(["report"])
with no_access(Path({str(tmp_path)!r})):
    for runs in (["run"], ["run", "other"]):
        code = report.main(["report", *({str(tmp_path)!r} + "/" + run for run in runs)])
        print(code, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    alone, code, *left_out, none, same = done.stderr.splitlines()
    assert (code, same) == ("1", "1")
    assert alone.startswith("error: cannot read ") and "Permission denied; name the --workdir" in alone
    assert [line.partition(": cannot read ")[0] for line in left_out] == ["left out"] * 2
    assert none == "error: none of the 2 runs can be shown; name one that can"


@pytest.mark.parametrize("spoiled", ["gone", "no run", "not begun", "damaged line", "damaged value"])
def test_runs_that_cannot_be_shown_are_named_and_the_page_has_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoiled: str
) -> None:
    usable, other = completed(tmp_path / "usable"), tmp_path / "other"
    if spoiled == "no run":
        other.mkdir()
    elif spoiled == "not begun":
        WrittenRun(other).close()
    elif spoiled != "gone":
        file = completed(other) / ("metrics.jsonl" if spoiled == "damaged line" else "config.json")
        file.write_text(
            "[]\n" + file.read_text() if spoiled == "damaged line" else '{"config": {"workload": 1, "unit_size": 8}}'
        )
    with pytest.raises(WorkdirError) as alone:
        write_report([str(other)], None)
    assert "WorkdirError" not in str(alone.value)
    written = write_report([str(other), str(usable)], None)
    assert written == usable / "report.html", "the first run that can be shown"
    assert capsys.readouterr().err == f"left out: {alone.value}\n"
    assert html.escape(f"left out: {alone.value}") in written.read_text()
    assert "<h1>usable " in written.read_text()


def test_runs_of_which_none_can_be_shown_are_refused_with_each_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkdirError, match="none of the 2 runs can be shown"):
        write_report([str(tmp_path / "a"), str(tmp_path / "b")], None)
    assert [line.partition(" folder ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "left out: there is no"
    ] * 2
