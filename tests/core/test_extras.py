import math
import sys
from pathlib import Path

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.core.extras import imported


def test_a_module_that_is_there_is_returned() -> None:
    assert imported("math", "maths") is math


def test_a_package_that_is_not_installed_is_refused_with_the_extra_that_installs_it() -> None:
    with pytest.raises(
        ConfigError, match=r"^no_such_package cannot be imported .*pip install 'hybridsync\[figures\]'$"
    ):
        imported("no_such_package", "figures")


def test_a_package_whose_own_import_fails_is_refused_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import a_part_of_it")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^half_installed cannot be imported .*'a_part_of_it'") as raised:
        imported("half_installed", "figures")
    assert isinstance(raised.value.__cause__, ImportError)
    assert "half_installed" not in sys.modules


def test_an_error_of_the_package_itself_is_not_taken_for_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('its own')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="its own"):
        imported("broken_package", "figures")
