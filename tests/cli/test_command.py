"""The command line `hybridsync`: its subcommands, and the forms in which configuration values may be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync import __version__
from hybridsync.cli import COMMANDS
from hybridsync.cli.command import with_single_values
from hybridsync.config.recipes import located
from hybridsync.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def hybridsync(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridsync", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_help_lists_every_subcommand_and_none_is_without_a_module() -> None:
    done = hybridsync("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
    files = {path.stem for path in (ROOT / "hybridsync" / "cli").glob("*.py")} - {
        "__init__",
        "cluster_flags",
        "command",
        "reason",
        "standard_streams",
    }
    assert files == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_subcommand_lists_its_own_flags(name: str) -> None:
    done = hybridsync(name, "--help")
    assert f"`hybridsync {name} " in done.stdout
    assert "\nflags:\n\nhybridsync " in done.stdout and "  --" in done.stdout


def test_the_version_is_the_packages() -> None:
    assert hybridsync("--version").stdout == f"hybridsync {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "error: no command was named; known: train, host, simulate, tune, report, export, replay, status, logs, ",
        ),
        (("trian",), "error: there is no command 'trian'; did you mean 'train'?\n"),
        (("--config=a.py",), "error: there is no command '--config=a.py'; known: train, host, simulate,"),
    ],
)
def test_an_unknown_command_is_refused_with_what_there_is(arguments: tuple[str, ...], message: str) -> None:
    done = hybridsync(*arguments)
    assert done.returncode == 1 and done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--set", "a=1"], ["--set=a=1"]),
        (["--set=a=1", "b=2", "--seed=3"], ["--set=a=1", "--set=b=2", "--seed=3"]),
        (["--set", "a=1", "b=2", "--set", "c=3"], ["--set=a=1", "--set=b=2", "--set=c=3"]),
        (["--config.a.b=x=y"], ["--set=a.b=x=y"]),
        (["--config=f.py", "--config.a=-1"], ["--config=f.py", "--set=a=-1"]),
        (["RUN", "--out=x"], ["RUN", "--out=x"]),
        (["--set", "a=1", "RUN"], ["--set=a=1", "RUN"]),
        (["a=1"], ["a=1"]),
    ],
)
def test_configuration_values_become_one_flag_each(given: list[str], expected: list[str]) -> None:
    assert with_single_values(given) == expected


def test_a_configuration_value_reaches_the_run_in_each_form(tmp_path: Path) -> None:
    flags = ["--config=configs/tally.py", f"--workdir={tmp_path / 'run'}", "--set", "workload=40", "workers=2"]
    done = hybridsync("simulate", *flags, "--config.plan=asp")
    assert done.returncode == 0, done.stderr
    assert "2 workers, 1 server, 40 units" in done.stdout and "asp" in done.stdout


def test_an_unknown_configuration_value_is_refused_by_name() -> None:
    done = hybridsync("simulate", "--config=configs/tally.py", "--config.optimizer.learning_rat=1")
    assert done.returncode == 1
    assert "learning_rat" in done.stderr and "did you mean 'optimizer.learning_rate'?" in done.stderr


def test_a_path_is_made_whole() -> None:
    assert located("configs/tally.py") == Path.cwd() / "configs" / "tally.py"


def test_a_recipe_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no recipe 'digits'; known: "):
        located("recipe:digits")


def test_recipes_and_scenarios_are_offered_where_they_can_be_used() -> None:
    assert located("recipe:scenarios/churn", kind="scenario").name == "churn.py"
    with pytest.raises(ConfigError, match="'scenarios/churn' is no recipe; known: ") as refusal:
        located("recipe:scenarios/churn")
    assert "scenarios/" not in str(refusal.value).partition("known: ")[2]
    with pytest.raises(ConfigError, match="'tally' is no scenario; known: scenarios/churn, "):
        located("recipe:tally", kind="scenario")


@pytest.mark.parametrize("flag", ["--log_dir=x", "-v=1", "--alsologtostderr", "--stderrthreshold=info"])
@pytest.mark.parametrize("name", ["train", "status"])
def test_a_flag_of_absls_logging_is_refused_since_nothing_reads_it(name: str, flag: str, tmp_path: Path) -> None:
    config = ["--config=configs/tally.py", f"--workdir={tmp_path / 'run'}"] if name == "train" else []
    done = hybridsync(name, *config, flag)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --") and "has no effect; leave it out" in done.stderr
    assert not [*tmp_path.iterdir()]
