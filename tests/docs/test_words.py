"""Words that the project has given up stay out of its identifiers, files, flags and documents (docs/glossary.md)."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("hybridsync", "launch", "configs", "benchmarks", "docs", "tests")
PAGES = ("README.md", "WORKSPACE.md", "docs")

GIVEN_UP = {
    "Borrowed": "PooledBuffer",
    "Course": "StageSchedule",
    "Deal": "StepAssignment",
    "Dealt": "WeightedShares",
    "Desk": "SimulatedChief",
    "Epoch": "PhaseId",
    "Heart": "Heartbeat",
    "Held": "StateVersion",
    "Holding": "SnapshotBuffer",
    "Instead": "TemporaryProtocol",
    "Keeper": "CommittedSource",
    "Kept": "CommittedState",
    "LastingChief": "ReconnectingChiefClient",
    "Leg": "Segment",
    "Loan": "LentView",
    "Meet": "JoinRound",
    "Meeting": "VirtualAllReduce",
    "Meetings": "GroupHistory",
    "Mix": "AverageReplicas",
    "Seed": "ForkServer",
    "Standing": "RoleState",
    "Story": "DecisionLog",
    "Tale": "Transcript",
    "Without": "ExcludeWorkers",
    "World": "ProcessGroup, SimulatedCluster",
    "Worlds": "ProcessGroups",
    "student": "student_t",
}
"""Names -> what is said instead."""

WORDS = {
    "deposit": "upload",
    "deposits": "uploads",
    "desk": "chief, harness",
    "epoch": "phase",
    "epochs": "phases",
    "heart": "heartbeat",
    "intake": "reports",
    "meeting": "group round",
    "meetings": "group rounds",
    "mixer": "averager",
    "nursery": "fork server",
    "standing": "role state",
    "standings": "role states",
    "steering": "policy driver",
    "world": "process group, simulated cluster",
    "worlds": "process groups",
}
"""Parts of identifiers, of files' names and of flags -> what is said instead."""

SAID = {"epoch", "epochs", "intake", "mixer", "nursery", "steering"}
"""Those that no page and no text in the code says either."""

OF_THE_FIELD = {
    "benchmarks/peers/scripts/torch_ddp.py": {"world"},
    "benchmarks/peers/scripts/torch_rpc.py": {"world"},
    "docs/glossary.md": {"epoch"},
    "docs/in_your_words.md": {"epoch"},
    "tests/lab/simulator/event_logs.py": {"epoch"},
    "tests/lab/simulator/test_event_logs.py": {"epoch"},
    "tests/docs/test_words.py": SAID,
}
"""Files that may say a word: an argument of PyTorch's is called so, two pages say what the field calls it, and
logs are compared across a renaming."""

RECORDED = {"world_renewed"}
"""Kinds of events that other programs read; they keep their names."""


def listed(*folders: str) -> list[str]:
    """Return the files of these folders that git knows."""
    found = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in found.stdout.split("\0") if path and (ROOT / path).is_file()]


def parts(name: str) -> Iterator[str]:
    """Yield the words of an identifier, in small letters.

    >>> [*parts("_next_PhaseId"), *parts("MAX_EPOCHS")]
    ['next', 'phase', 'id', 'max', 'epochs']
    """
    for part in re.split(r"_+", name):
        yield from (word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", part))


def old_in_name(name: str) -> set[str]:
    """Return what an identifier, a file's name or a flag has kept of the old words."""
    return set() if name in RECORDED else {name} & GIVEN_UP.keys() | set(parts(name)) & WORDS.keys()


def old_in_text(text: str) -> set[str]:
    """Return what prose says of the old words."""
    return {word.lower() for word in re.findall(r"[A-Za-z_]+", text)} & SAID


TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Kinds of tokens with prose. From Python 3.12 on an f-string is several tokens."""


def old_in_code(source: str) -> set[str]:
    """Return what a Python file has kept, in names, comments and strings."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            found |= old_in_name(token.string)
        elif token.type in TEXTS:
            found |= old_in_text(token.string)
    return found


def checked(found: set[str], path: str) -> str:
    """Return what is to be said instead, "" where nothing old was found."""
    old = found - OF_THE_FIELD.get(path, set())
    return "; ".join(f"{path} says {word!r}: say {(GIVEN_UP | WORDS)[word]}" for word in sorted(old))


@pytest.mark.parametrize("folder", CODE)
def test_no_python_file_says_an_old_word(folder: str) -> None:
    files = [path for path in listed(folder) if path.endswith(".py") and not path.endswith("_pb2.py")]
    assert files, f"there is no code in {folder}"
    assert [*filter(None, (checked(old_in_code((ROOT / path).read_text()), path) for path in files))] == []


def test_no_file_is_named_by_an_old_word() -> None:
    names = ((path, set().union(*(old_in_name(part) for part in re.split(r"[/.]", path)))) for path in listed(*CODE))
    assert [*filter(None, (checked(found, path) for path, found in names))] == []


def test_no_page_and_no_message_of_the_wire_says_an_old_word() -> None:
    pages = [path for path in listed(*PAGES, "hybridsync") if path.endswith((".md", ".proto"))]
    texts = {path: (ROOT / path).read_text() for path in pages}
    spans = {path: set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", text)))) for path, text in texts.items()}
    found = {path: old_in_text(text) | spans[path] & GIVEN_UP.keys() for path, text in texts.items()}
    assert [*filter(None, (checked(old, path) for path, old in found.items()))] == []


def test_no_flag_is_an_old_word() -> None:
    for path in listed("hybridsync/cli", "launch", "benchmarks"):
        flags = re.findall(r"(?:DEFINE_\w+\(\s*|add_argument\(\s*)\"-{0,2}([\w-]+)\"", (ROOT / path).read_text())
        assert not [flag for flag in flags if old_in_name(flag.replace("-", "_"))], path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("next_epoch = 1", {"epoch"}),
        ("class Nursery: ...", {"nursery"}),
        ('raise ValueError(f"epoch {number}")', {"epoch"}),
        ("x = 1  # the intake", {"intake"}),
        ("Held = heartbeat", {"Held"}),
        ("held, kept, told = world_renewed", set()),
    ],
)
def test_an_old_word_would_be_found(source: str, found: set[str]) -> None:
    assert old_in_code(source) == found
