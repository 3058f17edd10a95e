"""The job history: what is written stays, whoever writes, and what is damaged is told by name."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HistoryError
from hybridsync.lab.tuning.job_history import AnswerRecord, History, RunRecord, Where, default_place
from hybridsync.lab.tuning.recurring_job import Job
from tests.access import no_access

JOB = Job("digits", '{"workload": 100}')
OTHER = Job("digits", '{"workload": 200}')
WHERE = Where("inprocess")
RUN = RunRecord(Fraction(1, 16), 3, 0.91, 12.5, "host")
DIVERGED = RunRecord(Fraction(1, 2), 4, None, 1.0, "host")
ANSWER = AnswerRecord(Fraction(1, 16), 0.92, 0.915, 0.01, 4, 5, 17, 6.5, 9, 0.97)
ROOT = Path(__file__).resolve().parents[3]

WRITER = """
import sys
from fractions import Fraction
from pathlib import Path
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.lab.tuning.job_history import History, RunRecord, Where
from hybridsync.lab.tuning.recurring_job import Job

path, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with History(path, SYSTEM_CLOCK) as history:
    for seed in range(first, first + count):
        run = RunRecord(Fraction(1, 2), seed, 0.5, float(seed), "host")
        history.record(Job("digits", '{"workload": 100}'), Where("inprocess"), run)
        print(seed, flush=True)
"""


def opened(path: Path) -> History:
    return History(path, SYSTEM_CLOCK)


def writer(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "history.sqlite"


# --- what is written stays ---


def test_runs_and_answers_come_back_as_they_were_recorded(path: Path) -> None:
    with opened(path) as history:
        history.record(JOB, WHERE, RUN)
        history.record(JOB, WHERE, DIVERGED)
        history.record_answer(JOB, WHERE, ANSWER)
    with opened(path) as history:
        assert history.runs(JOB, WHERE) == [RUN, DIVERGED]
        assert history.answers(JOB) == [(WHERE, ANSWER)]
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing else is left behind"


def test_jobs_runtimes_and_clusters_are_kept_apart(path: Path) -> None:
    with opened(path) as history:
        history.record(JOB, WHERE, RUN)
        history.record(JOB, Where("simulator", "a"), DIVERGED)
        assert history.runs(OTHER, WHERE) == history.runs(JOB, Where("simulator", "b")) == []
        assert history.runs(JOB, Where("simulator", "a")) == [DIVERGED]
        assert history.answers(JOB) == []


def test_a_run_that_is_recorded_already_stands(path: Path) -> None:
    with opened(path) as history:
        history.record(JOB, WHERE, RUN)
        history.record(JOB, WHERE, RunRecord(RUN.share, RUN.seed, 0.1, 99.0, "elsewhere"))
        assert history.runs(JOB, WHERE) == [RUN]


def test_whole_numbers_come_back_as_what_was_written(path: Path) -> None:
    run = RunRecord(Fraction(1), 0, 1, 7, "host")
    with opened(path) as history:
        history.record(JOB, WHERE, run)
        assert history.runs(JOB, WHERE) == [run]


def test_the_newest_answer_is_first_and_the_same_one_is_not_written_twice(path: Path) -> None:
    other = AnswerRecord(Fraction(1, 2), 0.92, None, 0.02, 4, 1, 5, None, None, None)
    with opened(path) as history:
        for answer in (ANSWER, ANSWER, other, other, ANSWER):
            history.record_answer(JOB, WHERE, answer)
        assert [answer for _, answer in history.answers(JOB)] == [ANSWER, other, ANSWER]


def test_nothing_is_made_where_somebody_only_looks(path: Path) -> None:
    assert History.existing(path, SYSTEM_CLOCK) is None
    assert not path.parent.exists()


# --- kills, and several at once ---


def test_several_processes_begin_and_write_at_once_and_nothing_is_lost(path: Path) -> None:
    writers = [writer(path, 20 * number, 20) for number in range(4)]
    for process in writers:
        process.communicate(timeout=120)
    assert [process.returncode for process in writers] == [0] * 4
    with opened(path) as history:
        assert sorted(run.seed for run in history.runs(JOB, WHERE)) == list(range(80))


def test_what_was_recorded_before_a_kill_is_there_after_it(path: Path) -> None:
    for kills in range(4):
        first = 1_000_000 * kills
        process = writer(path, first, 1_000_000)  # more than it ever comes to
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(1 + 7 * kills)]
        os.kill(process.pid, signal.SIGKILL)
        told += map(int, process.stdout)  # what is in the pipe, and in the reader's buffer
        process.stdout.close()
        assert process.wait(timeout=120) == -signal.SIGKILL
        with opened(path) as history:
            seeds = [run.seed for run in history.runs(JOB, WHERE) if run.seed >= first]
        assert seeds[: len(told)] == told
        assert len(seeds) <= len(told) + 1


# --- what cannot be used ---


def spoil_text(path: Path) -> None:
    path.write_text("no database, only words " * 100)


def spoil_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 + 512] = os.urandom(512)
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def spoil_value(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET accuracy = 0.99")
    connection.close()


def newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 3")
    connection.close()


def of_format_1(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE runs DROP COLUMN converged")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def test_a_history_of_format_1_is_read_and_goes_on_with_where_runs_converged(path: Path) -> None:
    with opened(path) as history:
        history.record(JOB, WHERE, RUN)
    of_format_1(path)
    later = replace(RUN, seed=RUN.seed + 1, converged=0.875)
    with opened(path) as history:
        history.record(JOB, WHERE, later)
    with opened(path) as history:
        assert history.runs(JOB, WHERE) == [RUN, later]


def other_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()


DAMAGED = "the job history .* is damaged: .*; move it away or bring a copy back, or name another file with --history"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_text, DAMAGED),
        (spoil_middle, DAMAGED),
        (cut_short, DAMAGED),
        (spoil_value, "the job history .* is damaged: row 1 of its runs holds other values than were written; move .*"),
        (newer, "history.sqlite has format 3, this HybridSync reads format 2: use the version that wrote it"),
        (other_program, "history.sqlite is no job history: its mark is 0, not"),
        (lambda path: path.write_bytes(b""), "history.sqlite is no job history"),
        (lambda path: (path.unlink(), path.mkdir()), "the job history .* cannot be used: unable to open"),
    ],
    ids=["words", "bytes in the middle", "cut short", "a value", "newer", "another program's", "empty", "a folder"],
)
def test_a_file_that_cannot_be_used_is_told_by_name_in_one_line(path: Path, spoil, said: str) -> None:
    with opened(path) as history:
        for seed in range(200):
            history.record(JOB, WHERE, RunRecord(RUN.share, seed, 0.9, 1.0, "host"))
    spoil(path)
    with pytest.raises(HistoryError, match=said) as refused, opened(path) as history:
        history.runs(JOB, WHERE)
    assert "\n" not in str(refused.value)


def test_a_place_that_nobody_may_look_into_is_named_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with (
        no_access(tmp_path),
        pytest.raises(HistoryError, match=r"cannot be made or read: Permission denied; name anoth"),
    ):
        History.existing(tmp_path / "history.sqlite", SYSTEM_CLOCK)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match=r"cannot be made or read: (File exists|Not a directory); name another file"):
        opened(tmp_path / "file" / "history.sqlite")


# --- where it is ---


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HYBRIDSYNC_HISTORY": "/a/b.sqlite", "XDG_DATA_HOME": "/data"}, Path("/a/b.sqlite")),
        ({"XDG_DATA_HOME": "/data"}, Path("/data/hybridsync/history.sqlite")),
        ({"XDG_DATA_HOME": "relative"}, Path.home() / ".local/share/hybridsync/history.sqlite"),
        ({}, Path.home() / ".local/share/hybridsync/history.sqlite"),
    ],
)
def test_the_place_is_the_environments_or_the_users(environment: dict[str, str], place: Path) -> None:
    assert default_place(environment) == place
