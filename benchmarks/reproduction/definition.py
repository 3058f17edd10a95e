"""What an experiment is: cells that are measured once, and what is reported of them. Pure.

>>> essence(Claim("1.7 %", "lock-step", "1.5 %", "8 workers"))
['Claim', {'text': '1.7 %', 'published': 'lock-step', 'ours': '1.5 %', 'conditions': '8 workers'}]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

DIGITS = 12
NOT_RUN = "not run yet"

Value = str | float | int | None
Row = Mapping[str, Value]
"""A row of results: column -> value."""


@dataclass(frozen=True)
class Given:
    """What is outside the repository.

    Args:
      cifar: folder of CIFAR-10's binary version; None where there is none.
      published: table of the published runs of Sync-Switch; None where there is none.
      folder: of the results, which some cells draw from.
    """

    cifar: Path | None = None
    published: Path | None = None
    folder: Path = Path()


class Measure(Protocol):
    """Measures one cell; a frozen dataclass, whose values are the cell's definition."""

    def definition(self) -> Any:
        """Return what the result follows from: values, and dataclasses of them."""
        ...

    def needs(self, given: Given) -> str:
        """Return what is missing of what is outside the repository, such as a flag; "" where nothing is."""
        ...

    def measure(self, given: Given) -> Row:
        """Return what came of it.

        Raises:
          HybridSyncError: it could not be carried out.
        """
        ...


@dataclass(frozen=True)
class Cell:
    """One row of an experiment's results.

    Args:
      key: what tells it from the other rows, column -> value.
      measure: what is measured.
    """

    key: Mapping[str, Value]
    measure: Measure

    @cached_property
    def digest(self) -> str:
        """Of the definition: a row with another one is measured again."""
        text = json.dumps([dict(self.key), essence(self.measure.definition())], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper beside what is measured here.

    Args:
      text: what is claimed; measurements of the same claim stand together.
      published: the paper's figure.
      ours: ours; NOT_RUN where the cells were not measured.
      conditions: of ours.
      met: whether ours reaches it; None where nothing was measured or the two cannot be compared.
      case: what distinguishes it from others of the same claim under the same conditions.
    """

    text: str
    published: str
    ours: str
    conditions: str
    met: bool | None = None
    case: str = ""

    @property
    def verdict(self) -> str:
        """What the page says."""
        if self.met is None:
            return NOT_RUN if self.ours == NOT_RUN else "not comparable"
        return "met" if self.met else "**not met**"


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Args:
      name: of its file and its results.
      paper: whose claims it is about.
      reason: why this job, rate and cluster: written before the runs.
      cells: of the table of results.
      claims: rows of results -> claims; called with all rows or none, or those of whole seeds (`by_seed`).
      table: likewise -> a table in Markdown.
      plot: likewise -> an SVG; None draws nothing.
      by_seed: whether the three may be called with the rows of some seeds, each of which is there with all its cells.
    """

    name: str
    paper: str
    reason: str
    cells: Sequence[Cell]
    claims: Callable[[Sequence[Row]], Sequence[Claim]]
    table: Callable[[Sequence[Row]], str]
    plot: Callable[[Sequence[Row]], str] | None = None
    by_seed: bool = False

    @property
    def seeds(self) -> list[Value]:
        """The seeds of its cells."""
        return list(dict.fromkeys(cell.key.get("seed") for cell in self.cells))


def essence(value: Any) -> Any:
    """Return a value as JSON, without what dataclasses have by default: a new default changes no digest."""
    if is_dataclass(value) and not isinstance(value, type):
        told = {}
        for field in fields(value):
            held = getattr(value, field.name)
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if default is MISSING or held != default:
                told[field.name] = essence(held)
        return [type(value).__name__, told]
    if isinstance(value, Mapping):
        return {str(key): essence(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [essence(held) for held in value]
    return value
