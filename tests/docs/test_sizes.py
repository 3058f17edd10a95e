"""No file of the package, and no class counted over its bases, is longer than 700 lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 700


def sources() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module, but for generated ones."""
    for path in sorted((ROOT / "hybridsync").rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text()


class Classes:
    """The classes of some modules, by module and name.

    >>> found = Classes([("a", "class A:\\n    x = 1"), ("b", "from a import A\\nclass B(A):\\n    y = 2\\n    z = 3")])
    >>> found.lines("b.B"), found.lines("a.A")
    (5, 2)
    """

    def __init__(self, modules: list[tuple[str, str]]) -> None:
        self.found: dict[str, tuple[ast.ClassDef, dict[str, str]]] = {}
        for module, text in modules:
            tree = ast.parse(text)
            names = {
                alias.asname or alias.name: f"{node.module}.{alias.name}"
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            names |= {node.name: f"{module}.{node.name}" for node in classes}
            self.found |= {f"{module}.{node.name}": (node, names) for node in classes}

    def lines(self, name: str) -> int:
        """Return the lines of a class and of its bases in these modules, each of them once."""
        wanted, seen = [name], set[str]()
        while wanted:
            each = wanted.pop()
            if each in seen or each not in self.found:
                continue
            seen.add(each)
            node, names = self.found[each]
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            wanted += [names.get(ast.unparse(base), "") for base in bases]
        return sum((node.end_lineno or 0) - node.lineno + 1 for node, _ in map(self.found.__getitem__, seen))


def test_no_file_is_longer_than_a_reader_bears() -> None:
    modules = [*sources()]
    assert len(modules) > 400
    assert {module: text.count("\n") for module, text in modules if text.count("\n") > MOST} == {}


def test_no_class_is_longer_over_its_bases() -> None:
    classes = Classes([*sources()])
    lines = {name: classes.lines(name) for name in classes.found}
    assert max(lines.values()) > 350, "bases are not found any more"
    assert {name: count for name, count in lines.items() if count > MOST} == {}
