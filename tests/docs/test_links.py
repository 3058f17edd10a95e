"""Links and file names of the documents point at something that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "WORKSPACE.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
DESIGN = ROOT / "docs" / "design"


def prose(text: str) -> str:
    """Return a page without its code: neither blocks nor spans hold links or headings."""
    fenced = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].strip("`"), re.sub(r"^    .*$", "", fenced, flags=re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Return the names under which GitHub lets a page's headings be linked to.

    >>> sorted(anchors("# The `bsp` protocol"))
    ['the-bsp-protocol']
    """
    titles = re.findall(r"^#+ +(.+?) *$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Return the relative links of `page` that point at nothing."""
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8")))
    return [link for link in links if not re.match(r"[a-z]+:", link) and not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a relative link names a file that exists, and one of its headings where it names a heading."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_points_at_a_file_and_a_heading(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_a_missing_file_or_heading_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, here\n")
    page = tmp_path / "page.md"
    links = ("other.md", "other.md#a-heading-here", "#own", "other.md#gone", "gone.md", "#gone", "https://jax.dev")
    page.write_text("## Own\n\n```\n# Code\n[code](gone.py)\n```\n\n" + "\n".join(f"[link]({link})" for link in links))
    assert broken(page) == ["other.md#gone", "gone.md", "#gone"]


def test_the_map_or_the_first_page_of_the_design_names_each_of_its_pages() -> None:
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\(docs/design/(\w+\.md)", text))
    named |= set(re.findall(r"\((\w+\.md)\)", (DESIGN / "README.md").read_text(encoding="utf-8")))
    assert named == {path.name for path in DESIGN.glob("*.md")}


@pytest.mark.parametrize("page", [ROOT / "WORKSPACE.md", *sorted(DESIGN.glob("*.md"))], ids=lambda page: page.name)
def test_every_python_file_that_the_map_or_the_design_names_exists(page: Path) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8")))
    rooms = (ROOT, ROOT / "hybridsync")
    placeholders = {name for name in named if name.endswith("/NAME.py")}
    assert {name for name in named - placeholders if not any((room / name).is_file() for room in rooms)} == set()
