"""What loads JAX and what must not: each question asked of a fresh interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hybridsync

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "flax", "optax", "orbax", "grain", "sklearn")

pytestmark = pytest.mark.timeout(300)  # a machine that is busy with other things takes a minute for all imports

PURE_PACKAGES = ("hybridsync.protocols", "hybridsync.policies", "hybridsync.config")
PURE_MODULES = (
    "hybridsync",
    "hybridsync.lab.tuning.auto_plan",
    "hybridsync.chief.ledger",
    "hybridsync.core.clock",
    "hybridsync.storage.durable",
    "hybridsync.core.errors",
    "hybridsync.lab.tuning.job_history",
    "hybridsync.interfaces.messages",
    "hybridsync.core.plan",
    "hybridsync.interfaces.ports",
    "hybridsync.phases.state_machine",
    "hybridsync.telemetry.recorder",
    "hybridsync.lab.report.results",
    "hybridsync.lab.report.page",
    "hybridsync.lab.report.reading",
    "hybridsync.lab.report.stalls",
    "hybridsync.lab.tuning.process_runner",
    "hybridsync.lab.tuning.session",
    "hybridsync.core.units",
)


def _loaded_by(program: str) -> list[str]:
    """Run `program` in a fresh interpreter and return which heavy packages it has loaded."""
    return _printed_by(program, f"[name for name in {HEAVY!r} if name in sys.modules]")


def _loaded_of_the_lab(program: str) -> list[str]:
    return _printed_by(program, "[name for name in sys.modules if name.startswith('hybridsync.lab')]")


def _printed_by(program: str, names: str) -> list[str]:
    report = f"\nimport json, sys\nprint(json.dumps({names}))"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
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
        assert "orbax" not in _loaded_by(f"import hybridsync.runtime.role.{role}_main"), role


def test_the_whole_pure_layer_and_the_supervisor_load_no_jax() -> None:
    modules = [
        *PURE_MODULES,
        "hybridsync.runtime.agent.agent_connection",
        "hybridsync.runtime.supervisor.agent_sessions",
        "hybridsync.runtime.supervisor.supervisor",
        "hybridsync.transport.grpc.transport",
        *(name for package in PURE_PACKAGES for name in _modules(package)),
    ]
    assert _loaded_by("\n".join(f"import {name}" for name in modules)) == []


@pytest.mark.parametrize("launcher", ["simulate", "train", "tune"])
def test_a_launcher_loads_no_jax_before_it_has_something_to_compute(launcher: str) -> None:
    assert _loaded_by(f"import hybridsync.cli.{launcher}") == []


@pytest.mark.parametrize("program", ["trainer", "cli.train", "cli.host", "cli.status"])
def test_a_training_run_loads_no_lab(program: str) -> None:
    assert _loaded_of_the_lab(f"import hybridsync.{program}, hybridsync.runtime.inprocess") == []


def test_the_roles_of_a_run_load_no_lab() -> None:
    roles = ("supervisor.supervisor", "role.chief_main", "role.server_main", "role.worker_main")
    assert _loaded_of_the_lab("\n".join(f"import hybridsync.runtime.{role}" for role in roles)) == []


def test_the_question_would_notice_the_lab() -> None:
    assert "hybridsync.lab.report.results" in _loaded_of_the_lab("import hybridsync\nhybridsync.read_run")


def test_the_question_would_notice_jax() -> None:
    assert "jax" in _loaded_by("import jax")


def test_every_configuration_file_loads_without_jax() -> None:
    files = [f"configs/{file.name}" for file in sorted((ROOT / "configs").glob("*.py")) if file.stem != "__init__"]
    load = (
        f"import sys\nfrom hybridsync.config import load_config\n"
        f"for file in {files!r}:\n"
        f"    load_config(file)\n"
        f"    assert not [name for name in {HEAVY!r} if name in sys.modules], file"
    )
    assert _loaded_by(load) == []


IMPORTS_JAX = """
import dataclasses
import flax.linen
import my_model
from hybridsync import RunConfig
@dataclasses.dataclass(frozen=True)
class Model:
    hidden: tuple[int, ...] = (3, 2)
def config(): return RunConfig(workload=my_model.WORKLOAD, model=Model())
def task(config): ...
def optimizer(config): ...
"""


@pytest.fixture
def imports_jax(tmp_path: Path) -> Path:
    """Write a configuration file that imports flax and a module beside it, which imports jax."""
    (tmp_path / "my_model.py").write_text("import jax\nWORKLOAD = 7\n")
    (tmp_path / "user.py").write_text(IMPORTS_JAX)
    return tmp_path / "user.py"


def test_a_supervisor_reads_the_values_of_a_file_that_imports_jax_and_loads_none(imports_jax: Path) -> None:
    read = (
        f"from hybridsync.config import load_values, to_json\n"
        f"config = load_values({str(imports_jax)!r}, ['model.hidden=5,4', 'workers=2']).config\n"
        "assert (config.workload, config.workers, config.model.hidden) == (7, 2, (5, 4)), config\n"
        "assert to_json(config)['model'] == {'hidden': [5, 4]}"
    )
    assert _loaded_by(read) == []


def test_the_values_read_elsewhere_are_those_read_here(imports_jax: Path) -> None:
    both = (
        "from hybridsync.config import load_config, load_values, to_json\n"
        f"there = load_values({str(imports_jax)!r}).config\n"
        "import sys\nassert 'jax' not in sys.modules\n"
        f"here = load_config({str(imports_jax)!r}).config\n"
        "assert to_json(here) == to_json(there), (here, there)"
    )
    assert "flax" in _loaded_by(both)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("import jax\nWORKLOAD = 1 / 0\n", "my_model.py, line 2: ZeroDivisionError: division by zero"),
        ("import jax\nWORKLOAD = = 1\n", "my_model.py, line 2: invalid syntax; correct the file"),
        ("import jax\nWORKLOAD = -1\n", "user.py, line 9: workload must be at least 1 unit, got -1"),
        ("import jax\nprint('hello')\nimport absent\n", "my_model.py, line 3: ModuleNotFoundError: No module named"),
    ],
)
def test_what_is_wrong_in_a_file_that_imports_jax_is_named_with_its_line(
    imports_jax: Path, beside: str, said: str
) -> None:
    (imports_jax.parent / "my_model.py").write_text(beside)
    read = (
        f"from hybridsync.config import load_values\nfrom hybridsync.core.errors import ConfigError\n"
        f"try: load_values({str(imports_jax)!r})\n"
        f"except ConfigError as error: assert {said!r} in str(error), error\n"
        f"else: raise AssertionError('taken')"
    )
    assert _loaded_by(read) == []


def test_a_refused_override_is_named_where_the_file_imports_jax(imports_jax: Path) -> None:
    read = (
        f"from hybridsync.config import load_values\nfrom hybridsync.core.errors import ConfigError\n"
        f"try: load_values({str(imports_jax)!r}, ['model.hiden=3'])\n"
        f"except ConfigError as error: assert 'did you mean \\'model.hidden\\'?' in str(error), error\n"
        f"else: raise AssertionError('taken')"
    )
    assert _loaded_by(read) == []


@pytest.mark.parametrize("name", hybridsync.__all__)
def test_every_public_name_can_be_reached(name: str) -> None:
    assert getattr(hybridsync, name).__module__.startswith("hybridsync.")
    assert name in dir(hybridsync)


def test_a_name_that_is_not_public_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'hybridsync' has no attribute 'Trianer'"):
        hybridsync.__getattr__("Trianer")
