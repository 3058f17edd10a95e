"""What the README and the pages about a job and its installation tell a newcomer to type runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hybridsync.config import apply_overrides, load_config
from hybridsync.core import errors
from hybridsync.core.plan import Plan
from tests.doc_pages import ROOT, TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]

README = (ROOT / "README.md").read_text()
RUN = (ROOT / "docs" / "run.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()
COMMANDS = re.findall(r"^    hybridsync train (.*)$", README + RUN, re.MULTILINE)


def test_the_python_blocks_run_in_order_as_one_notebook(tmp_path: Path) -> None:
    shown = output(blocks("README.md"), tmp_path)
    told = re.search(r"(\d+) units, accuracy ([\d.]+)", shown)
    assert told is not None, shown
    units, accuracy = told.groups()
    assert int(units) == 2000
    assert float(accuracy) >= 0.9


def test_the_blocks_about_a_run_show_its_metrics(tmp_path: Path) -> None:
    lines = output(blocks("docs/run.md"), tmp_path).splitlines()
    hooked = [line for line in lines if line.startswith("hook ")]
    assert len(hooked) >= 2 and len(lines) - len(hooked) >= 3
    assert int(lines[-1].split()[1]) == 600


@pytest.mark.parametrize("command", COMMANDS)
def test_a_launch_command_names_a_configuration_and_values_that_exist(command: str) -> None:
    values = dict(re.findall(r'(?:--)?(\w+)[= ]"?([^\s"]+)"?', command))
    overrides = [f"{name}={values[name]}" for name in ("plan", "workers") if name in values]
    overrides += [values["set"]] if "set" in values else []
    config = apply_overrides(load_config(ROOT / values["config"]).config, overrides)
    assert Plan.parse(config.plan).ends(config.workload)[-1] == config.workload


def test_every_flag_in_the_commands_is_one_of_the_launchers(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "hybridsync", "train", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    ).stdout
    named = re.findall(r"--(\w+)", "\n".join([*COMMANDS, *re.findall(r"^\| (`--.*?) \|", RUN, re.MULTILINE)]))
    for flag in sorted({flag.partition(".")[0] for flag in named}):
        assert re.search(rf"--(\[no\])?{flag}:", told), f"--{flag} is not a flag of hybridsync train"


def test_the_exit_codes_are_those_of_the_code() -> None:
    table = re.search(r"^\| exit code \|.*\n\|[-|]+\n((?:\|.*\n)+)", RUN, re.MULTILINE)
    assert table is not None
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", table[1], re.MULTILINE)]
    assert sorted(told) == sorted(value for name, value in vars(errors).items() if name.startswith("EXIT_"))


def test_every_extra_is_in_the_table() -> None:
    table = re.search(r"^\| extra \|.*\n\|[-|]+\n((?:\|.*\n)+)", INSTALL, re.MULTILINE)
    assert table is not None
    told = {name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert told == project["optional-dependencies"].keys() - {"dev"}
