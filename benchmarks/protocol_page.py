"""Writes what is made of `docs/protocols.md`: `python -m benchmarks.protocol_page`.

The page is written by hand, but for the blocks between `<!-- made: NAME -->` and `<!-- end -->`: of each protocol its
figure and its parameters with the defaults of the code. A test holds page and figures against what this makes now.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.grid.cells import PROTOCOLS
from benchmarks.protocol_figure import draw
from benchmarks.protocol_timeline import timeline_of
from hybridsync import protocols
from hybridsync.protocols.server_protocol import ServerProtocol

SHOWN = {"localsgd": "localsgd(steps=4)", "diloco": "diloco(steps=4)"}
"""What a figure shows where rounds of the default would fill it."""
SHOWN_SECS = 2.0
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "protocols.md"
BLOCK = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def figure_of(name: str) -> str:
    """Return the SVG of a protocol."""
    return draw(timeline_of(SHOWN.get(name, name), SHOWN_SECS), SHOWN_SECS)


def refreshed(page: str) -> str:
    """Return the page with its made blocks as the code is now."""
    return BLOCK.sub(lambda block: f"{block[1]}{_made(block[2])}\n{block[3]}", page)


def _made(name: str) -> str:
    if name == "rules":
        return _parameters(ServerProtocol, _fields(ServerProtocol))
    protocol = protocols.parse(name)
    own = [field for field in _fields(protocol) if field.name not in _shared()]
    parts = [f"![what four workers do under {name}](figures/{name}.svg)"]
    if own:
        parts.append(_parameters(type(protocol), own))
    return "\n\n".join(parts)


def _parameters(cls: type, fields: Iterable[dataclasses.Field[Any]]) -> str:
    told = _told(cls)
    rows = [f"| `{field.name}` | `{_written(field.default)}` | {told[field.name]} |" for field in fields]
    return "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


def _shared() -> set[str]:
    """Return the names of the parameters that all protocols share whose workers push gradients."""
    return {field.name for field in _fields(ServerProtocol)}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _told(cls: type) -> dict[str, str]:
    """Return what a class's docstring says of each of its arguments."""
    text = inspect.getdoc(cls) or ""
    arguments = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in (arguments[1] if arguments else "").splitlines():
        began = re.match(r" {2,6}(\w+): (.*)", line)
        if began:
            name, found[began[1]] = began[1], began[2]
        elif line.strip():
            found[name] += f" {line.strip()}"
    return {name: said.rstrip(".") for name, said in found.items()}


def main() -> int:
    """Write the figures, and the page's made blocks."""
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in PROTOCOLS:
        (DOCS / "figures" / f"{name}.svg").write_text(figure_of(name), encoding="utf-8")
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE} and {len(PROTOCOLS)} figures beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
