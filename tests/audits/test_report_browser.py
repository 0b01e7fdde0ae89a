"""The report in a real browser: it loads alone, reads well, and prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from secure_fl.audits.conclusions import ROWS
from secure_fl.audits.document import AuditDocument, CellPart, RowPart
from secure_fl.audits.report.page import render
from tests.support import browser
from tests.support.documents import document, three

FOUND = browser.find()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason=f"none of {', '.join(browser.NAMES)} is here, or starts"
)

# WCAG 2: the ratio of luminances, of a text against what is painted behind it.
FAINT = """
(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/rgba.*, 0\\)|transparent/.test(c)) return c; } };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility()) continue;
    const style = getComputedStyle(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (!(ratio >= 4.5)) found.push(`${e.tagName} ${e.textContent.slice(0, 20)} ${ratio}`);
  }
  return found;
})()
"""
CUT = """
[...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  const outside = r =>
    r.right > box.right + 1 || r.bottom > box.bottom + 1 || r.left < box.left - 1;
  return [...svg.querySelectorAll('text')].filter(t => outside(t.getBoundingClientRect()))
    .map(t => t.textContent);
})
"""
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(shown: browser.Tab, scheme: str) -> None:
    shown.show(1200, scheme)
    shown.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.ask(FAINT) == []


@pytest.mark.parametrize("width", [320, 768, 1600])
def test_no_width_scrolls_the_page_sideways(shown: browser.Tab, width: int) -> None:
    shown.show(width)
    shown.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.ask("document.documentElement.scrollWidth") <= width


def test_no_column_is_cut_on_a_phone(shown: browser.Tab) -> None:
    shown.show(390)
    shown.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    cut = (
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.getAttribute('aria-label'))"
    )
    assert shown.ask(cut) == []
    heads = "[...document.querySelectorAll('#run3-matrix .cell')].map(e => e.dataset.head)"
    assert "Coordinator + 1 hospital" in shown.ask(heads)


def test_the_first_screen_answers_what_could_leak(tab: browser.Tab, tmp_path: Path) -> None:
    """Sentences, legend and matrix are above the fold, then accuracy, then the budget."""
    file = tmp_path / "report.html"
    file.write_text(render([three()[2]]), encoding="utf-8")
    tab.show(1280)  # 900 high
    tab.open(file)
    tops = tab.ask(
        "['.leaks', '.legend', '.matrix', '.facts'].map("
        "s => document.querySelector(s).getBoundingClientRect().top)"
    )
    bottom = tab.ask("document.querySelector('.matrix').getBoundingClientRect().bottom")
    assert tops == sorted(tops) and bottom <= 900
    facts = tab.ask("[...document.querySelectorAll('.facts dt')].map(e => e.textContent)")
    assert facts[:2] == ["Accuracy", "Privacy budget"]
    above = tab.ask(
        "[...document.querySelectorAll('header, .leaks, .legend, .matrix')]"
        ".map(e => e.innerText).join(' ')"
    )
    for word in ("F1", "ε", "he+secagg", "policy", "token bag", "party", "parties"):
        assert word not in above


def full() -> AuditDocument:
    """A document with every row of the matrix and a long note in each cell, beyond its limits."""
    roles = ("coordinator", "one hospital", "coordinator + 1 hospital", "coordinator + 2 hospitals")
    note = "which vocabulary words occur: 100 %, guessing: 94 % (hospital-3)"
    cells = tuple(CellPart(role=role, access="everything", note=note) for role in roles)
    matrix = tuple(RowPart(what=row.what, cells=cells) for row in ROWS)
    reasons = tuple(f"coordinator: {row.what}, {note}" for row in ROWS)
    return document(matrix=matrix, reasons=reasons, status="beyond policy")


PAGE_HEIGHT = (297 - 2 * 16) / 25.4 * 96  # A4 without margins, in pixels
PAGE_WIDTH = int((210 - 2 * 14) / 25.4 * 96)
SHEETS = "[...document.querySelectorAll('.onepage')].map(e => e.getBoundingClientRect().height)"


def test_each_run_has_one_page_to_sign_and_the_rest_is_short(
    tab: browser.Tab, tmp_path: Path
) -> None:
    for documents, most in ((three()[2:], 8), (three(), 12), ([full()], 8)):
        file = tmp_path / "report.html"
        file.write_text(render(documents), encoding="utf-8")
        tab.show(PAGE_WIDTH, media="print")
        tab.open(file)
        header = tab.ask("document.querySelector('header').getBoundingClientRect().height")
        assert max(tab.ask(SHEETS)) + header <= PAGE_HEIGHT
        visible = "[...document.querySelectorAll('.signature')].filter(e => e.offsetHeight).length"
        assert tab.ask(visible) == len(documents)
        assert len(re.findall(rb"/Type\s*/Page\b", tab.pdf())) <= most


def test_no_name_in_a_plot_is_cut(tab: browser.Tab, tmp_path: Path) -> None:
    made = three()[2]
    name = "bert.encoder.layer.10.intermediate.dense.weight"
    spectra = tuple(replace(one, label=f"{name} {k}") for k, one in enumerate(made.spectra))
    file = tmp_path / "report.html"
    both = [replace(made, spectra=spectra)] * 2
    named = [
        replace(one, run=replace(one.run, name=f"all clinics of the north {k}"))
        for k, one in enumerate(both)
    ]
    file.write_text(render(named), encoding="utf-8")
    tab.show(1200)
    tab.open(file)
    assert tab.ask(CUT) == []
    assert tab.ask("document.querySelectorAll('.plot svg text').length") > 20
