"""A call that its test gives up leaves its answer to nobody else."""

import sys
from pathlib import Path
from subprocess import PIPE, Popen

from tests.command_lines import CommandLines

ANSWERS_THE_GIVEN_UP_CALL_FIRST = """
import json, sys
number, _, out, err = json.loads(input())
for path in (out, err):
    open(path, "w").write("printed")
print(number - 1, 70, flush=True)
print(number, 3, flush=True)
"""


def test_an_answer_to_a_call_that_was_given_up_is_not_taken_for_the_next_one_s(tmp_path: Path) -> None:
    with Popen([sys.executable, "-c", ANSWERS_THE_GIVEN_UP_CALL_FIRST], stdin=PIPE, stdout=PIPE, text=True) as server:
        done = CommandLines(server, tmp_path)("--help")
    assert (done.returncode, done.stdout, done.stderr) == (3, "printed", "printed")
