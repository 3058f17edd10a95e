"""What loads JAX and what must not: each question asked of a fresh interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hybridsync

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "flax", "optax", "orbax", "grain", "sklearn")

PURE_PACKAGES = ("hybridsync.protocols", "hybridsync.policies", "hybridsync.config")
PURE_MODULES = (
    "hybridsync",
    "hybridsync.autoplan",
    "hybridsync.chief.ledger",
    "hybridsync.clock",
    "hybridsync.durable",
    "hybridsync.errors",
    "hybridsync.history",
    "hybridsync.messages",
    "hybridsync.plan",
    "hybridsync.ports",
    "hybridsync.switching.machine",
    "hybridsync.telemetry.recorder",
    "hybridsync.telemetry.report.page",
    "hybridsync.telemetry.report.reading",
    "hybridsync.telemetry.stalls",
    "hybridsync.tuning.processes",
    "hybridsync.tuning.session",
    "hybridsync.units",
)


def _loaded_by(program: str) -> list[str]:
    """Run `program` in a fresh interpreter and return which heavy packages it has loaded."""
    report = f"\nimport json, sys\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _modules(package: str) -> list[str]:
    folder = ROOT / package.replace(".", "/")
    return [
        package,
        *(f"{package}.{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem != "__init__"),
    ]


def test_a_worker_and_a_server_load_no_orbax_so_that_a_new_process_is_there_soon() -> None:
    for role in ("worker", "server"):
        assert "orbax" not in _loaded_by(f"import hybridsync.runtime.{role}_process"), role


def test_the_whole_pure_layer_and_the_supervisor_load_no_jax() -> None:
    modules = [
        *PURE_MODULES,
        "hybridsync.runtime.supervisor",
        *(name for package in PURE_PACKAGES for name in _modules(package)),
    ]
    assert _loaded_by("\n".join(f"import {name}" for name in modules)) == []


@pytest.mark.parametrize("launcher", ["simulate", "train", "tune"])
def test_a_launcher_loads_no_jax_before_it_has_something_to_compute(launcher: str) -> None:
    assert _loaded_by(f"import hybridsync.cli.{launcher}") == []


def test_the_question_would_notice_jax() -> None:
    assert "jax" in _loaded_by("import jax")


@pytest.mark.parametrize(
    "file",
    [file for file in sorted((ROOT / "configs").glob("*.py")) if file.stem != "__init__"],
    ids=lambda file: file.stem,
)
def test_a_configuration_file_loads_without_jax(file: Path) -> None:
    assert (
        _loaded_by(f"from hybridsync.config import load_config\nload_config({str(file.relative_to(ROOT))!r})")
        == []
    )


@pytest.mark.parametrize("name", hybridsync.__all__)
def test_every_public_name_can_be_reached(name: str) -> None:
    assert getattr(hybridsync, name).__module__.startswith("hybridsync.")
    assert name in dir(hybridsync)


def test_a_name_that_is_not_public_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'hybridsync' has no attribute 'Trianer'"):
        hybridsync.__getattr__("Trianer")
