"""The report in a real browser: it loads alone, reads well, and prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_fl.audits.report.page import render
from tests.support import browser
from tests.support.documents import three

FOUND = browser.find()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason=f"none of {', '.join(browser.NAMES)} is here, or starts"
)

FOCUS = "(e => e.getAttribute('href') || e.tagName + (e.textContent || '').slice(0, 30))"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render(three()), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Tab]:
    assert FOUND
    with browser.tab(FOUND, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def shown(tab: browser.Tab, page: Path) -> browser.Tab:
    tab.events.clear()
    tab.show(1200)
    tab.open(page)
    return tab


def test_it_loads_alone_and_without_complaint(shown: browser.Tab, page: Path) -> None:
    asked = [e["params"]["request"]["url"] for e in shown.events if "requestWill" in e["method"]]
    assert asked == [page.as_uri()]
    complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [e for e in shown.events if e["method"] in complaints]
    assert shown.ask("document.compatMode") == "CSS1Compat"
    assert not shown.ask("document.scripts.length")


def test_a_complaint_would_be_heard(tab: browser.Tab, page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    image = '<img src="http://example.org/x.png"><script>console.error("heard")</script>'
    broken.write_text(page.read_text().replace("</main>", f"{image}</main>", 1))
    tab.events.clear()
    tab.open(broken)
    refused = [e for e in tab.events if e["method"] == "Log.entryAdded"]
    assert any("Content Security Policy" in str(e) for e in refused)


def test_the_matrix_is_there_and_its_evidence_is_found(shown: browser.Tab) -> None:
    documents = three()
    roles = len(documents[0].matrix[0].cells)
    kinds = len(documents[0].matrix)
    for run in (1, 2, 3):
        cells = f"document.querySelectorAll('#run{run}-matrix .cell').length"
        assert shown.ask(cells) == roles * kinds
    assert shown.ask("document.querySelectorAll('#all-matrix .cell').length") == 3 * roles * kinds
    links = shown.ask("[...document.querySelectorAll('.cell a')].map(a => a.hash.slice(1))")
    wanted = sum(len(c.evidence) for d in documents for r in d.matrix for c in r.cells)
    assert len(links) == 2 * wanted  # in the runs' own sections, and compared
    lost = f"{links}.filter(id => !document.getElementById(id).classList.contains('trial'))"
    assert shown.ask(lost) == []
    shown.ask("document.querySelector('#run3-matrix .cell a').click()")
    assert shown.ask("document.querySelector(':target h4').textContent").startswith("Token bag")


def test_the_keyboard_reaches_everything(shown: browser.Tab) -> None:
    wanted = shown.ask(
        "[...document.querySelectorAll('a, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && e.getClientRects().length)"
        f".map({FOCUS})"
    )
    reached = []
    for _ in wanted:
        shown.press("Tab", 9)
        reached.append(shown.ask(f"{FOCUS}(document.activeElement)"))
    assert reached == wanted and reached[0] == "#main"


def test_readers_of_the_screen_hear_names(shown: browser.Tab) -> None:
    nodes = shown.send("Accessibility.getFullAXTree")["nodes"]
    known = [n for n in nodes if not n["ignored"]]
    named = {"table", "image", "link", "region", "article", "figure", "navigation", "heading"}
    roles = {n["role"]["value"] for n in known}
    assert {"main", "banner", "contentinfo", "columnheader", "rowheader"} <= roles
    silent = [n["role"]["value"] for n in known if n["role"]["value"] in named - {"figure"}]
    spoken = [n for n in known if n["role"]["value"] in named - {"figure"} and n["name"]["value"]]
    assert len(silent) == len(spoken)
    places = shown.ask("document.querySelectorAll('.scroll, .plot').length")
    folded = shown.ask("document.querySelectorAll('details .scroll, details .plot').length")
    regions = [n for n in spoken if n["role"]["value"] == "region" and "focusable" in str(n)]
    assert len(regions) >= places - folded > 0
