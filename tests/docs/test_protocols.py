"""docs/protocols.md says of every protocol what the code does."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.grid.cells import PROTOCOLS
from benchmarks.protocol_page import DOCS, PAGE, SHOWN, figure_of, refreshed
from benchmarks.protocol_timeline import NUM_WORKERS, cost_of, timeline_of
from hybridsync import protocols
from hybridsync.core.plan import Plan
from hybridsync.protocols.modes import GROUP
from hybridsync.protocols.server_protocol import STALENESS_RULES, ServerProtocol

TEXT = PAGE.read_text(encoding="utf-8")
NAMES = sorted(protocols.REGISTRY)
ROWS = {
    cells[0].strip("`"): cells
    for cells in ([cell.strip() for cell in line.strip("| \n").split(" | ")] for line in TEXT.splitlines())
    if len(cells) == 6 and cells[0].startswith("`")
}
"""The first table's rows: no other table has six columns."""
MOST_BYTES = 25_000


def test_every_protocol_has_its_row_its_section_and_its_figure_and_nothing_else_has() -> None:
    assert sorted(PROTOCOLS) == NAMES == sorted(ROWS)
    assert re.findall(r"^### (\w+)$", TEXT, re.MULTILINE) == list(PROTOCOLS)
    assert sorted(path.stem for path in (DOCS / "figures").glob("*")) == NAMES
    assert re.findall(r"\]\(figures/(\w+)\.svg\)", TEXT) == list(PROTOCOLS)


def test_parameters_and_defaults_are_those_of_the_code_now() -> None:
    assert refreshed(TEXT) == TEXT, "run python -m benchmarks.protocol_page, and review the difference"


def test_a_default_that_the_page_does_not_know_would_be_noticed() -> None:
    section = TEXT[TEXT.index("<!-- made: ssp -->") : TEXT.index("### dssp")]
    assert "| `staleness` | `3` |" in section
    assert refreshed(section.replace("| `staleness` | `3` |", "| `staleness` | `4` |")) == section


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_what_is_drawn_now_small_and_for_light_and_dark(name: str) -> None:
    svg = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert svg == figure_of(name), "run python -m benchmarks.protocol_page, and look at the figure"
    assert len(svg) < MOST_BYTES
    assert "prefers-color-scheme:dark" in svg
    assert ElementTree.fromstring(svg).get("aria-label", "").startswith(SHOWN.get(name, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_rows_bound_and_traffic_are_those_of_the_protocol(name: str) -> None:
    _, _, stale, moved, _, _ = ROWS[name]
    protocol, cost = protocols.parse(name), cost_of(name)
    bound = protocol.staleness_bound(NUM_WORKERS)
    if protocol.mode is GROUP:
        assert (stale, cost.staleness) == ("own replicas", None)
    else:
        assert stale.split()[-1] == ("none" if bound is None else str(bound))
        assert bound is None or (cost.staleness is not None and cost.staleness <= bound)
    parameters = re.search(r"(?:^|, )([\d.]+)(?: to ([\d.]+))? P(?!\w| /)", moved)
    assert parameters is not None, f"{moved!r} names no multiple of P"
    low, high = parameters.groups()
    computed = 1 - cost.dropped
    assert 0.97 * float(low) <= cost.traffic * computed <= 1.12 * float(high or low)


def test_every_plan_of_the_page_can_be_run() -> None:
    plans = re.findall(r'--(?:plan|compare)="([^"]+)"', TEXT) + re.findall(r"`([a-z_]+\([a-z_]+=\w+\))`", TEXT)
    assert len(plans) >= 4
    for plan in (each for several in plans for each in several.split(";")):
        for stage in Plan.parse(plan.strip()).stages:
            protocols.resolve(stage)


def test_the_readme_names_every_protocol() -> None:
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    named = re.search(r"stages, each a protocol: (.*?)\. ", readme)
    assert named is not None and sorted(re.findall(r"`(\w+)`", named[1])) == NAMES


def test_the_staleness_rules_and_whom_they_compose_with_are_all_there() -> None:
    rules = TEXT[TEXT.index("## Staleness rules") : TEXT.index("## Switching")]
    assert tuple(re.findall(r"^\| `(\w+)` \| (?!`)", rules, re.MULTILINE)) == STALENESS_RULES[1:]
    named = re.search(r"push gradients \((.*?)\)", rules, re.DOTALL)
    assert named is not None
    assert sorted(re.findall(r"`(\w+)`", named[1])) == [
        name for name in NAMES if issubclass(protocols.REGISTRY[name], ServerProtocol)
    ]


def test_a_timeline_has_every_workers_units_one_behind_another() -> None:
    for name in ("psplus", "bsp", "adpsgd"):
        stretches = timeline_of(name, 1.0).stretches
        for worker in range(NUM_WORKERS):
            computed = [each for each in stretches if each.worker == worker and each.kind == "compute"]
            assert len(computed) >= 2
            assert all(one.end <= two.begin + 1e-9 for one, two in itertools.pairwise(computed))


def test_the_figure_of_psplus_has_transfers_beside_computing_and_that_of_ssp_none() -> None:
    beside = {name: _beside(name) for name in ("psplus", "ssp")}
    assert beside["psplus"] > 20
    assert beside["ssp"] == 0


def _beside(name: str) -> int:
    """Return how many transfers of a figure begin while their worker computes."""
    stretches = timeline_of(name, 2.0).stretches
    return sum(
        unit.worker == each.worker and unit.begin - 1e-9 <= each.begin < unit.end - 1e-9
        for each in stretches
        if each.kind in ("push", "pull") and each.end - each.begin > 1e-6
        for unit in stretches
        if unit.kind == "compute"
    )
