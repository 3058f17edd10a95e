"""The report page in a real browser, Chromium from Debian's packages: its script's handlers, and its style sheet."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from tests.integration.debian import environment, unpacked
from tests.lab.report.test_page import seeds
from tests.lab.report.workdirs import completed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class Browser:
    """A page in a browser that is told what to do over two pipes, by Chromium's DevTools protocol."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self.commands, self.answers = commands, answers
        self.session: dict[str, str] = {}
        self.number = 0
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": values, **self.session}
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self._read()).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, file: Path) -> None:
        self.call("Page.navigate", url=file.as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return what an expression comes to in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, selector: str, x: float = 0.5, y: float = 0.5, clicks: int = 0) -> None:
        """Move, press or release the mouse at shares of an element's width and height, from its top left."""
        box = self.value(
            f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect().toJSON()))"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        at = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        button = {"button": "left", "buttons": 1, "clickCount": clicks} if clicks else {}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", **at, **button)

    def key(self, name: str) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name)

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message = json.loads(text)
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(json.dumps(message["params"]))
        return message


@contextmanager
def running(program: Path, variables: dict[str, str]) -> Iterator[Browser]:
    """Run a browser, which reads commands from its file 3 and writes answers to its file 4."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory() as profile, open(our_out, "wb") as commands, open(our_in, "rb") as answers:
        options = f"--no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={profile}"
        browser = subprocess.Popen(
            ["bash", "-c", f"exec {program} {options} 3<&{their_in} 4>&{their_out}"],
            env=variables,
            pass_fds=(their_in, their_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        try:
            yield Browser(commands, answers)
        finally:
            browser.terminate()
            browser.wait(60)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    root = unpacked(("chromium-headless-shell",), tmp_path_factory.mktemp("chromium"), with_needed=True)
    with running(root / "usr/lib/chromium/chromium-headless-shell", environment(root)) as found:
        yield found
    assert found.errors == []


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    (folder / "page.html").write_text(page(shown_records([completed(folder / "run")])))
    return folder / "page.html"


TIP = "getComputedStyle(tip).display === 'block' ? tip.innerText : ''"
AREA = ".chart.over-time .area"


def test_pointer_and_arrow_keys_show_a_charts_figures(browser: Browser, one_run: Path) -> None:
    browser.open(one_run)
    browser.mouse("Moved", AREA, x=0.5)
    assert browser.value(TIP).splitlines()[1:] and browser.value("document.querySelectorAll('.cursor').length") == 1
    browser.mouse("Moved", "h1")
    assert browser.value(TIP) == ""
    browser.value(f"document.querySelector('{AREA}').focus()")
    for _ in range(3):
        browser.key("ArrowRight")
    by_keys = browser.value(TIP)
    browser.mouse("Moved", AREA, x=1.0)
    assert by_keys and by_keys != browser.value(TIP)


def test_frame_enlarges_a_chart_and_escape_or_a_double_click_shows_the_whole(browser: Browser, one_run: Path) -> None:
    browser.open(one_run)
    view = f"document.querySelector('{AREA} svg').getAttribute('viewBox')"
    zoomed = f"document.querySelector('{AREA}').closest('figure').classList.contains('zoomed')"
    ticks = "[...document.querySelectorAll('.near')].filter(tick => tick.offsetWidth).length"
    for back in ("key", "double click"):
        browser.mouse("Moved", AREA, 0.25, 0.25)
        browser.mouse("Pressed", AREA, 0.25, 0.25, clicks=1)
        browser.mouse("Moved", AREA, 0.75, 0.75, clicks=1)
        browser.mouse("Released", AREA, 0.75, 0.75, clicks=1)
        assert [float(each) for each in browser.value(view).split()] == pytest.approx([250, 250, 500, 500], abs=5)
        assert browser.value(zoomed) and browser.value(ticks) == 8
        if back == "key":
            browser.value(f"document.querySelector('{AREA}').focus()")
            browser.key("Escape")
        else:
            for clicks in (1, 2):
                browser.mouse("Pressed", AREA, clicks=clicks)
                browser.mouse("Released", AREA, clicks=clicks)
        assert browser.value(view) == "0 0 1000 1000" and not browser.value(zoomed) and not browser.value(ticks)


def test_head_of_a_column_sorts_and_a_box_hides(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        page(shown_records(seeds(tmp_path, ["ssp(staleness=2)", "asp", "ssp(staleness=10)"])))
    )
    browser.open(tmp_path / "page.html")
    column = "[...document.querySelectorAll('header tbody tr td:first-child')].slice(0, 3).map(cell => cell.innerText)"
    orders = []
    for _ in range(2):
        for kind in ("Pressed", "Released"):
            browser.mouse(kind, "thead th", clicks=1)
        orders.append(browser.value(column))
    assert orders == [["asp", "ssp(staleness=2)", "ssp(staleness=10)"], orders[0][::-1]]
    each = "[...document.querySelectorAll('main path[data-run], main section[data-run]')]"
    shown = f"{each}.filter(e => e.getClientRects().length).length"
    before = browser.value(shown)
    browser.value("document.querySelector('.runs input').click()")
    assert 0 < browser.value(shown) < before


def test_name_in_the_legend_brings_out_its_lines_and_stays_in_sight(browser: Browser, tmp_path: Path) -> None:
    plans = [f"ssp(staleness={lead})" for lead in range(9)]
    (tmp_path / "page.html").write_text(page(shown_records(seeds(tmp_path, plans, 2))))
    browser.open(tmp_path / "page.html")
    opacities = (
        "Object.fromEntries(['line', 'spread'].map(kind => [kind, [...new Set([...document.querySelectorAll("
        "`.over-time .${kind}`)].map(e => `${e.dataset.run === '2'} ${getComputedStyle(e).opacity}`))].sort()]))"
    )
    assert browser.value(opacities) == {"line": ["false 1", "true 1"], "spread": ["false 0", "true 0"]}
    browser.mouse("Moved", "#name2")
    assert browser.value(opacities) == {"line": ["false 0.1", "true 1"], "spread": ["false 0", "true 0.2"]}
    browser.value("document.querySelector('.charts').lastChild.scrollIntoView()")
    assert browser.value("document.querySelector('#name2').getBoundingClientRect().top >= 0")


def test_printed_page_has_no_controls(browser: Browser, one_run: Path) -> None:
    browser.open(one_run)
    control = "getComputedStyle(document.querySelector('.theme')).display"
    assert browser.value(control) != "none"
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value(control) == "none"
    browser.call("Emulation.setEmulatedMedia", media="")
