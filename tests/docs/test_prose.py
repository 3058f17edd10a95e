"""Entries of a docstring's sections stand by themselves: "optimizer: optimizer of the run", not "optimizer: how"."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "hybridsync").rglob("*.py") if not path.stem.endswith("_pb2"))
DEPENDENT = re.compile(r"^ +[a-z_]+: (its|theirs|how|whose|who)\b.{0,25}\.$", re.MULTILINE)
"""An entry of a few words that begins with a pronoun or a question word: it says nothing without the lines before."""


def entries(text: str) -> list[str]:
    """Return the entries of a file that do not stand by themselves."""
    return [match[0].strip() for match in DEPENDENT.finditer(text)]


def test_entries_of_docstrings_stand_by_themselves() -> None:
    assert FILES
    found = {str(path.relative_to(ROOT)): entries(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}, "write a noun phrase, with type and unit"


@pytest.mark.parametrize(
    ("entry", "is_found"),
    [
        ("      optimizer: how.", True),
        ("          parameters: its.", True),
        ("      chief: who answers.", True),
        ("      role_id: its number among its kind.", True),
        ("      optimizer: optimizer of the run.", False),
        ("      howl: a sound.", False),
    ],
)
def test_an_entry_that_does_not_stand_by_itself_would_be_found(entry: str, is_found: bool) -> None:
    assert entries(f'"""Return a state.\n\n    Args:\n{entry}\n"""\n') == [entry.strip()] * is_found
