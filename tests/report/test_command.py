"""`python -m launch.report`: what it writes, what it refuses; each question asked of a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

from tests.report.workdirs import completed

ROOT = Path(__file__).resolve().parents[2]


def _report(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.report", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_page_lands_beside_the_run_or_where_it_is_asked_for(tmp_path: Path) -> None:
    run, other = completed(tmp_path / "run"), completed(tmp_path / "other")
    done = _report(run)
    assert (done.returncode, done.stdout) == (0, f"written: {run / 'report.html'}\n")
    assert "worker 1 lost" in (run / "report.html").read_text()
    done = _report(run, other, f"--out={tmp_path / 'both.html'}")
    assert done.returncode == 0, done.stderr
    assert "run, other" in (tmp_path / "both.html").read_text()


def test_bad_input_gets_one_line_and_exit_1(tmp_path: Path) -> None:
    run = completed(tmp_path / "run")
    for arguments, said in [
        ((), "no run was named"),
        ((tmp_path / "gone",), "there is no folder"),
        ((run / "config.json",), "config.json/search.json: Not a directory; name the --workdir of a run"),
        ((run, run / "config.json"), "there is no folder"),
        ((run, tmp_path), "holds no run"),
        ((run, f"--out={tmp_path / 'gone' / 'x.html'}"), "cannot write"),
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
    first, code, second, same = done.stderr.splitlines()
    assert (code, same) == ("1", "1")
    for line in (first, second):
        assert line.startswith("error: cannot read ") and "Permission denied; name the --workdir" in line
