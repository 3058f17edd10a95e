"""The code blocks of the pages for a first job of one's own run, and no page has blocks that nothing runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.cli import COMMANDS
from hybridsync.config import RunConfig
from hybridsync.config.typing import annotations
from hybridsync.protocols import REGISTRY
from tests.doc_pages import ROOT, RUN_SECS, TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]


def figures(shown: str) -> dict[str, float]:
    """Return the last number of each line, by what stands before the first one."""
    return {re.split(r"[:\d]", line)[0].strip(): float(re.findall(r"[\d.]+", line)[-1]) for line in shown.splitlines()}


def test_own_models_and_losses_of_each_kind_train(tmp_path: Path) -> None:
    code = blocks("docs/own_model.md")
    file = next(at for at, block in enumerate(code) if "def config()" in block)
    shown = figures(output([*code[:file], *code[file + 1 :]], tmp_path))
    assert min(shown["nnx accuracy"], shown["linen accuracy"]) >= 0.85
    assert shown["absolute error"] <= 0.1 and shown["loss a token"] <= 0.5


def test_the_file_of_the_page_about_own_models_trains(tmp_path: Path) -> None:
    (file,) = [block for block in blocks("docs/own_model.md") if "def config()" in block]
    (tmp_path / "job.py").write_text(file)
    command = ["-m", "hybridsync", "train", "--config=job.py", "--workdir=run", "--runtime=inprocess"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=RUN_SECS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["final"]["accuracy"] >= 0.85


def test_pretrained_weights_are_tuned_whole_in_part_and_by_lora(tmp_path: Path) -> None:
    shown = output(blocks("docs/fine_tuning.md"), tmp_path)
    accuracies = dict(re.findall(r"^([\w ]+): accuracy ([\d.]+)", shown, re.MULTILINE))
    assert accuracies.keys() == {"all weights", "the head", "LoRA", "linen", "init_from"}
    assert {name for name, value in accuracies.items() if float(value) < 0.7} == set()
    assert re.findall(r"trained (\d+)$", shown, re.MULTILINE) == [f"{128 * 10 + 10}", f"{8 * (64 + 128 + 128 + 10)}"]


def test_jobs_as_other_systems_have_them_train(tmp_path: Path) -> None:
    lines = output(blocks("docs/coming_from.md"), tmp_path).splitlines()
    diloco = re.fullmatch(r"diloco: bsp to diloco\(steps=20\), ([\d.]+)", lines[0])
    fsdp = re.fullmatch(r"fsdp: (\d+) evaluations, ([\d.]+)", lines[1])
    assert diloco is not None and fsdp is not None, lines
    assert int(fsdp[1]) >= 1 and min(float(diloco[1]), float(fsdp[2])) >= 0.85
    assert lines[-1] == "left: preempted"
    assert all(re.fullmatch(r"reported \d+ [\d.]+", line) for line in lines[2:-1])


def values(group: type, prefix: str = "") -> set[str]:
    """Return the dotted names of a configuration's values."""
    found = set()
    for name, kind in annotations(group).items():
        found |= {f"{prefix}{name}", *(values(kind, f"{prefix}{name}.") if hasattr(kind, "__post_init__") else ())}
    return found


def test_what_a_word_is_called_here_is_there() -> None:
    page = (ROOT / "docs" / "in_your_words.md").read_text()
    cells = [row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and not row.startswith("| you say")]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    dotted = {name for name in named if re.fullmatch(r"[a-z_]+\.[a-z_]+", name)} - {"hybridsync.read_run"}
    dotted -= {"hybridsync.compare", "result.history"}
    assert len(dotted) >= 6 and dotted <= values(RunConfig)
    assert {name for name in named if re.fullmatch("hybridsync [a-z]+", name)} <= {f"hybridsync {c}" for c in COMMANDS}
    protocols = {name.partition("(")[0] for name in named if re.fullmatch(r"[a-z]+(\([a-z_=0-9]+\))?", name)}
    assert {"bsp", "asp", "ssp", "backup", "localsgd", "diloco", "adpsgd", "preduce"} <= protocols & REGISTRY.keys()


def test_every_page_with_blocks_is_run() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    with_blocks = [name for page in pages if blocks(name := str(page.relative_to(ROOT)))]
    assert len(with_blocks) >= 10
    assert [name for name in with_blocks if f'blocks("{name}")' not in tests] == []
