"""What docs/clusters.md and the job templates say of commands, flags and variables is what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hybridsync.cli import COMMANDS
from hybridsync.cluster import discovery
from hybridsync.cluster.job import BELONGS, CLUSTERS
from hybridsync.submission import ray_hosts
from hybridsync.submission.programs import PYTHON

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "clusters.md"
EXAMPLES = ROOT / "examples"
PAGES = [PAGE, *sorted(EXAMPLES.glob("*/README.md"))]
TEMPLATES = {"slurm/train.sbatch", "ssh/train.sh"}


def commands(page: Path) -> list[str]:
    """Return the command lines of a page's blocks."""
    return re.findall(r"^ {4,}(\S.*)$", page.read_text(), re.MULTILINE)


@cache
def flags_of(command: str) -> frozenset[str]:
    """Return the flags that a subcommand's help names; host takes those of train, too."""
    told = subprocess.run(
        [sys.executable, "-m", "hybridsync", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    ).stdout
    own = frozenset(re.findall(r"^ +(?:-\w,)?--(?:\[no\])?(\w+):", told, re.MULTILINE))
    return own | flags_of("train") if command == "host" else own


def unknown_flags(line: str) -> set[str]:
    """Return the flags of a command line that its command has not."""
    line = re.sub(r'--sbatch="[^"]*"', "--sbatch=", line)  # what is inside is sbatch's own
    named = set(re.findall(r"--([a-z_-]+)", line.split("|")[0]))
    if re.search(r"examples/(ssh|slurm)/train", line):
        return named - flags_of("host") - {"nodes"}  # sbatch's own
    found = re.search(r"hybridsync ([a-z]+)", line)
    return named - flags_of(found[1]) if found else set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_flag_of_a_page_s_commands_is_one(page: Path) -> None:
    lines = commands(page)
    assert lines
    assert {line: unknown for line in lines if (unknown := unknown_flags(line))} == {}
    assert {name for line in lines for name in re.findall(r"hybridsync ([a-z]+) ", line)} <= set(COMMANDS)


def test_a_flag_that_is_none_would_be_found() -> None:
    assert unknown_flags("hybridsync host --head=a:1 --hots=2") == {"hots"}
    assert unknown_flags("sbatch examples/slurm/train.sbatch certs --nodes=2 --wrkdir=run") == {"wrkdir"}


def test_every_flag_of_a_template_is_one_of_the_agent_s() -> None:
    for name in TEMPLATES:
        text = (EXAMPLES / name).read_text()
        passed = set(re.findall(r"--(head|index|hosts|address|certs|config|workdir)=", text))
        assert passed and passed <= flags_of("host"), name
    by_ray = set(re.findall(r"--([a-z_]+)=", Path(ray_hosts.__file__).read_text()))
    assert {"head", "index", "hosts", "certs"} <= by_ray <= flags_of("host") | flags_of("train") | {"cluster"}
    manifest = (EXAMPLES / "kubernetes" / "jobset.yaml").read_text()
    assert set(re.findall(r"^ +- --(\w+)=", manifest, re.MULTILINE)) <= flags_of("host")


def test_every_cluster_and_its_flags_are_on_the_page_and_in_the_help() -> None:
    text = PAGE.read_text()
    own = {name for name, clusters in BELONGS.items() if len(clusters) == 1}
    assert all(f"| `{cluster}`" in text for cluster in CLUSTERS)
    assert all(f"`--{name}`" in text for name in own)
    assert {"cluster", *BELONGS} <= flags_of("train")


def test_every_template_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert all(f"examples/{name}" in text for name in TEMPLATES)
    linked = set(re.findall(r"\(\.\./examples/(\w+)/README\.md\)", text))
    assert linked == {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()}


def test_the_variables_of_the_table_are_those_that_are_read() -> None:
    code = Path(discovery.__file__).read_text()
    named = set(re.findall(r"`((?:HYBRIDSYNC|JOBSET|JOB|SLURM|SLURMD)_[A-Z_]+)`", PAGE.read_text()))
    assert {"HYBRIDSYNC_INDEX", "JOBSET_COORDINATOR", "SLURMD_NODENAME"} <= named
    own = {f"HYBRIDSYNC_{name}" for name in re.findall(r'"(HEAD|INDEX|HOSTS)"', code)}
    assert named <= own | {PYTHON} | set(re.findall(r'"([A-Z]+_[A-Z_]+)"', code))
