"""The authority is exchanged in three steps, and at each of them whoever has taken the last one meets the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.core.errors import CredentialsError
from hybridsync.security.authority_exchange import NEXT_FILE, NEXT_KEY_FILE, STEPS, exchange
from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import Credentials
from tests.security.roles import Role, dialled, messages, outcome, served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "head")
    return tmp_path / "head"


def meets(caller: Credentials, callee: Credentials) -> bool:
    with served(Role(), callee) as address, dialled(address, caller, "chief") as channel:
        return outcome(channel, "Chief/Status", messages("Chief/Status"))[0] != "UNAVAILABLE"


def test_those_of_two_steps_in_a_row_meet_and_at_the_end_the_former_authority_is_nobody(folder: Path) -> None:
    issued = [(Authority.load(folder).issue("user"), Authority.load(folder).issue("chief"))]
    for step in STEPS:
        exchange(folder, step)
        authority = Authority.load(folder)
        issued.append((authority.issue("user"), authority.issue("chief")))
        for one, other in ((issued[-2], issued[-1]), (issued[-1], issued[-2]), (issued[-1], issued[-1])):
            assert meets(one[0], other[1]), (step, "dates and names are good")
    assert not meets(issued[0][0], issued[-1][1]) and not meets(issued[-1][0], issued[0][1])
    assert issued[-1][0].authority.count("BEGIN CERTIFICATE") == 1
    assert {path.name for path in folder.iterdir()} == {"ca.pem", "ca.key"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("done", "step", "reason"),
    [
        ((), "use", r"no next authority; the first step is begin"),
        ((), "end", r"no former authority to take out; the next step is begin"),
        (("begin",), "begin", r"has two authorities already"),
        (("begin",), "end", r"the next step is use"),
        (("begin", "use"), "use", r"no next authority"),
        (("begin", "use"), "begin", r"has two authorities already"),
    ],
)
def test_a_step_that_is_not_due_changes_nothing(folder: Path, done: tuple[str, ...], step: str, reason: str) -> None:
    for each in done:
        exchange(folder, each)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CredentialsError, match=reason):
        exchange(folder, step)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_step_that_was_interrupted_is_made_again(folder: Path) -> None:
    exchange(folder, "begin")
    left = {name: (folder / name).read_text() for name in (NEXT_FILE, NEXT_KEY_FILE)}
    exchange(folder, "use")
    own = Authority.load(folder).certificate
    for name, text in left.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    exchange(folder, "use")
    assert Authority.load(folder).certificate == own and not (folder / NEXT_FILE).exists()


def test_a_use_that_was_interrupted_behind_its_change_is_followed_by_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange(folder, "begin")
    unlink, removed = Path.unlink, []

    def once(path: Path, missing_ok: bool = False) -> None:
        if path.name in ("next.pem", "next.key"):
            if removed:
                raise KeyboardInterrupt
            removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", once)
        exchange(folder, "use")
    exchange(folder, "end")
    Authority.load(folder)
