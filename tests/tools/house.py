"""Counts what makes the house hard to read, and prints each count with its bound and its goal.

    python -m tests.tools.house [--run] [--where=NAME]

`test_house.py` holds the bounds. Whoever lowers a count lowers its bound. With `--run` the digits recipe runs over
processes, and `files_crossed` counts the files that a push, a unit's life and a switch go through. `--where=NAME` says
where the rows stand whose name contains NAME. Generated files do not count.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.multiprocess.job import ROOT
from tests.tools import files_crossed

GENERATED = ("_pb2.py", "_pb2_grpc.py")
MOST_PARAMETERS = 8
MOST_POSITIONAL = 5
CALLS_BETWEEN_ROLES = frozenset({"push_pull", "pull", "idle", "upload_opt_state"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """A file that was read.

    Attributes:
      name: Path from the root of the repository.
      lines: The file's text.
      classes, functions, calls: All of them, those within others too.
      docstrings: Numbers of the lines that docstrings take, and texts that document a constant or a field.
      within_strings: Numbers of the lines that begin within a string.
      uses: How often each name and each attribute stands in the file.
    """

    name: str
    lines: list[str]
    classes: list[ast.ClassDef] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)
    docstrings: set[int] = field(default_factory=set)
    within_strings: set[int] = field(default_factory=set)
    uses: Counter[str] = field(default_factory=Counter)

    def place(self, node: ast.stmt | ast.expr, what: str) -> Place:
        return Place(self.name, node.lineno, what)


class Place(NamedTuple):
    """Something that counts: its file, its line, and what stands there."""

    file: str
    line: int
    what: str


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      name: What is counted.
      goal: What the count should become.
      find: Finds what counts.
      bound: The count may not exceed it; None holds nothing.
    """

    name: str
    goal: str
    find: Callable[[File], Iterator[Place]]
    bound: int | None = None

    def places(self, files: Iterable[File]) -> list[Place]:
        return [place for file in files for place in self.find(file)]


def read(path: Path) -> File:
    text = path.read_text(encoding="utf-8")
    file = File(str(path.relative_to(ROOT)), text.splitlines())
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                file.uses[name] += 1
            case ast.Call():
                file.calls.append(node)
            case ast.Constant(value=str()) | ast.JoinedStr():
                file.within_strings.update(range(node.lineno + 1, last_line(node) + 1))
            case ast.Expr(value=ast.Constant(value=str())):
                file.docstrings.update(range(node.lineno, last_line(node) + 1))
            case ast.ClassDef():
                file.classes.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                file.functions.append(node)
    return file


def last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def package() -> list[File]:
    """Return the files of `hybridsync/`, generated ones left out."""
    return [read(path) for path in sorted((ROOT / "hybridsync").rglob("*.py")) if not path.name.endswith(GENERATED)]


def lines(file: File) -> Iterator[Place]:
    for at, text in enumerate(file.lines, start=1):
        yield Place(file.name, at, text)


def docstring_lines(file: File) -> Iterator[Place]:
    return (line for line in lines(file) if line.line in file.docstrings)


def comment_lines(file: File) -> Iterator[Place]:
    for line in lines(file):
        if line.what.lstrip().startswith("#") and line.line not in file.within_strings:
            yield line


def code_lines(file: File) -> Iterator[Place]:
    """Find the lines that are neither empty nor a docstring nor a comment alone."""
    others = file.docstrings | {comment.line for comment in comment_lines(file)}
    return (line for line in lines(file) if line.what.strip() and line.line not in others)


def classes(file: File) -> Iterator[Place]:
    return (file.place(node, node.name) for node in file.classes)


def protocols(file: File) -> Iterator[Place]:
    """Find the classes of `typing.Protocol`. A protocol of synchronisation has a base of that name, too."""
    if file.name.startswith("hybridsync/protocols/"):
        return
    for node in file.classes:
        if any(ast.unparse(base).partition("[")[0] in ("Protocol", "typing.Protocol") for base in node.bases):
            yield file.place(node, node.name)


def one_statement(file: File) -> Iterator[Place]:
    """Find the functions of one statement. A body of `...`, which only declares a function, has none."""
    for node in file.functions:
        if sum(not is_constant(statement) for statement in node.body) == 1:
            yield file.place(node, node.name)


def is_constant(statement: ast.stmt) -> bool:
    """Tell whether a statement does nothing: a docstring, or `...`."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def called_once(file: File) -> Iterator[Place]:
    """Find the private functions that their file names in one place alone."""
    for node in file.functions:
        if node.name.startswith("_") and not node.name.startswith("__") and file.uses[node.name] == 1:
            yield file.place(node, node.name)


def calls_between_roles(file: File) -> Iterator[Place]:
    return (file.place(node, node.name) for node in file.functions if node.name in CALLS_BETWEEN_ROLES)


def num_parameters(function: Function) -> int:
    """Return how many parameters a caller of a function sees."""
    given = function.args
    by_place = [*given.posonlyargs, *given.args]
    is_method = bool(by_place) and by_place[0].arg in ("self", "cls")
    return len(by_place) - is_method + len(given.kwonlyargs) + bool(given.vararg) + bool(given.kwarg)


def many_parameters(file: File) -> Iterator[Place]:
    for node in file.functions:
        if num_parameters(node) > MOST_PARAMETERS:
            yield file.place(node, f"{node.name}: {num_parameters(node)}")


def packed_calls(file: File) -> Iterator[Place]:
    """Find the calls that pack several arguments, `call(*(a, b))`, so that they take fewer lines."""
    for node in file.calls:
        starred = [argument.value for argument in node.args if isinstance(argument, ast.Starred)]
        if any(isinstance(value, ast.Tuple | ast.List) for value in starred):
            yield file.place(node, ast.unparse(node))


def positional_calls(file: File) -> Iterator[Place]:
    for node in file.calls:
        if sum(not isinstance(argument, ast.Starred) for argument in node.args) > MOST_POSITIONAL:
            yield file.place(node, ast.unparse(node))


ROWS = [
    Row("package lines", "<= 57,000", lines, 73_600),
    Row("lines of code", "", code_lines),
    Row("lines of docstrings", "", docstring_lines),
    Row("own-line comments", ">= 1,000", comment_lines),
    Row("classes", "<= 600", classes, 870),
    Row("functions of one statement", "<= 1,000", one_statement, 1_733),
    Row("private functions with one caller", "<= 400", called_once, 755),
    Row("Protocols", "<= 40", protocols, 48),
    Row("definitions of push_pull, pull, idle, upload_opt_state", "<= 24", calls_between_roles, 52),
    Row(f"functions with more than {MOST_PARAMETERS} parameters", "0", many_parameters, 5),
    Row("calls with *(a, b)", "0", packed_calls, 0),
    Row(f"calls with more than {MOST_POSITIONAL} positional arguments", "0", positional_calls, 0),
]


@dataclass(frozen=True)
class Pages:
    """Lines of pages, with the goal and the bound."""

    name: str
    goal: int
    bound: int

    @property
    def count(self) -> int:
        pages = sorted((ROOT / self.name).rglob("*.md")) or [ROOT / self.name]
        return sum(len(page.read_text(encoding="utf-8").splitlines()) for page in pages)


PAGES = [Pages("README.md", 160, 160), Pages("CHANGELOG.md", 60, 60), Pages("docs", 3_000, 3_860)]


def outside() -> Iterator[tuple[str, int, str]]:
    """Yield name, count and goal of what stands outside the package."""
    tests = [read(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
    yield "tests", sum(node.name.startswith("test_") for file in tests for node in file.functions), "fewer"
    yield "lines of tests", sum(len(file.lines) for file in tests), "fewer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run files_crossed too, which takes minutes")
    parser.add_argument("--where", help="show where the rows stand whose name contains this")
    given = parser.parse_args()
    files = package()
    table = Table("counted", "count", "bound", "goal")
    for row in ROWS:
        places = row.places(files)
        table.add_row(row.name, f"{len(places):,}", "" if row.bound is None else f"{row.bound:,}", row.goal)
        if given.where and given.where in row.name:
            for place in places:
                print(f"{place.file}:{place.line}: {place.what[:120]}")
    for name, count, goal in outside():
        table.add_row(name, f"{count:,}", "", goal)
    for pages in PAGES:
        table.add_row(f"lines of {pages.name}", f"{pages.count:,}", f"{pages.bound:,}", f"<= {pages.goal:,}")
    if given.run:
        with tempfile.TemporaryDirectory() as folder:
            for kind, windows in files_crossed.measure(Path(folder)).items():
                count, bound, goal = (
                    files_crossed.num_crossed(windows),
                    files_crossed.BOUNDS[kind],
                    files_crossed.GOALS[kind],
                )
                table.add_row(f"files that a {kind} crosses", str(count), str(bound), f"<= {goal}")
    Console().print(table)


if __name__ == "__main__":
    main()
