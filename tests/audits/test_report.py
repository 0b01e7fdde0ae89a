"""The report says what the document says: nothing invented, nothing lost, and no markup let in."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from secure_fl.audits.document import ENTITIES, AuditDocument, json_schema
from secure_fl.audits.report import markdown, render
from secure_fl.audits.report.matrix_cells import compared
from secure_fl.audits.report.sentences import (
    NO_PRIVACY,
    NO_TRIALS,
    WITHOUT,
    contradictions,
    standing,
)
from secure_fl.audits.report.terms import ACCESS, STATUS, VERDICTS
from tests.support.documents import document, finding, three, trial
from tests.support.hostile import hostile
from tests.support.pages import Page

ROOT = Path(__file__).parent.parent.parent
PLOTS = ("accuracy", "roc", "budget", "traffic", "spectra")
EMPTY: dict[str, Any] = dict.fromkeys(("points", "roc", "budget", "traffic", "spectra"), ())


@pytest.fixture(scope="module")
def one() -> Page:
    return Page(render([document()]))


@pytest.fixture(scope="module")
def several() -> Page:
    return Page(render(three()))


def test_the_published_schema_is_current() -> None:
    made = json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    file = ROOT / "docs" / "audit-schema.json"
    if os.environ.get("WRITE_SCHEMA"):
        file.write_text(made)
    assert file.read_text() == made, "run this test with WRITE_SCHEMA=1, and commit the file"


def test_the_page_refers_to_nothing_outside(several: Page) -> None:
    html = render(three())
    assert "http" not in html.replace("http-equiv", "")
    assert not re.search(r"@import|url\((?!#)", html)
    policy = next(e for e in several.all("meta") if "http-equiv" in e.attributes)
    assert policy.attributes["content"].startswith("default-src 'none'")


@pytest.mark.parametrize("documents", [[document()], three(), [document()] * 2, [hostile()]])
def test_every_reference_resolves(documents: list[AuditDocument]) -> None:
    page = Page(render(documents))
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    links = [e.attributes["href"] for e in page.elements if "href" in e.attributes]
    labels = [
        e.attributes[n] for e in page.elements for n in e.attributes if n == "aria-labelledby"
    ]
    clips = [m for e in page.elements for m in re.findall(r"url\(#(.*?)\)", str(e.attributes))]
    assert links and labels and clips
    assert {link.removeprefix("#") for link in links} | {*labels, *clips} <= set(ids)


def test_a_field_links_to_its_own_trials(one: Page) -> None:
    made = document()
    trials = {t.id: t for t in made.trials}
    cells = [c for row in made.matrix for c in row.cells]
    shown = one.all("td", "cell")
    assert len(shown) == len(cells)
    for cell, element in zip(cells, shown, strict=True):
        targets = [e.attributes["href"][1:] for e in one.within(element) if e.tag == "a"]
        wanted = [f"{trials[name].attack}, {trials[name].role}" for name in cell.evidence]
        titles = [
            e.text for t in targets for e in one.elements if e.attributes.get("id") == f"{t}-title"
        ]
        assert len(titles) == len(wanted)
        assert all(t.lower().startswith(w.lower()) for t, w in zip(titles, wanted, strict=True))


def test_fields_need_no_colour(one: Page) -> None:
    cells = [c for row in document().matrix for c in row.cells]
    for cell, element in zip(cells, one.all("td", "cell"), strict=True):
        uses = [e.attributes["href"] for e in one.within(element) if e.tag == "use"]
        assert uses == [f"#icon-{ACCESS[cell.access].icon}"]
        assert element.text.startswith(ACCESS[cell.access].word)
    for words in (ACCESS, VERDICTS, STATUS):
        for of in (lambda t: t.icon, lambda t: t.symbol, lambda t: t.word):
            assert len({of(term) for term in words.values()}) == len(words)


def test_the_status_comes_first_in_words() -> None:
    for status in STATUS:
        page = Page(render([document(status=status, reasons=("of this",))]))
        banner = page.all("div", "status")[0]
        said = standing(document(status=status)).lower()
        assert banner.text.lower().startswith(f"{status} {said}")
        assert banner.text.endswith("of this")


def test_it_never_says_that_all_was_tested_where_something_was_not() -> None:
    found = msgspec.structs.replace(three()[0], status="within policy")
    verdicts = {one.verdict for one in found.trials}
    assert verdicts & {"not tested", "inconclusive"} and "leaks" in verdicts
    assert "Every limit of the policy is kept" not in standing(found)
    assert "came to no verdict" in standing(found) and "leaks all the same" in standing(found)
    held = tuple(one for one in found.trials if one.verdict == "holds")
    whole = msgspec.structs.replace(found, trials=held)
    assert standing(whole) == STATUS["within policy"].meaning


def test_what_is_told_of_entities_is_told_by_type() -> None:
    made = three()[0]
    told = replace(finding(0.984), details={ENTITIES: {"Drug": 0.984, "Dose": 0.5}})
    trials = (replace(made.trials[0], deployed=told), *made.trials[1:])
    said = "Words of entities that it names, by type: Dose 50 %, Drug 98 %."
    assert said in render([replace(made, trials=trials)]) and said not in render([made])


def test_tables_are_labelled(several: Page) -> None:
    for table in several.all("table"):
        inside = several.within(table)
        assert [e.tag for e in inside].count("caption") == 1
        heads = [e for e in inside if e.tag == "th"]
        assert heads and all("scope" in e.attributes for e in heads)
    assert several.all("html")[0].attributes["lang"] == "en"
    assert len(several.all("h1")) == 1 and len(several.all("main")) == 1


def test_compared_fields_that_differ_are_marked() -> None:
    documents = three()
    page = Page(render(documents))
    table = next(e for e in page.all("table") if e.attributes.get("id") == "all-matrix")
    marked = [e for e in page.within(table) if "differs" in e.classes]
    columns = zip(*([c.access for r in d.matrix for c in r.cells] for d in documents), strict=True)
    wanted = sum(len(column) for column in columns if len(set(column)) > 1)
    assert wanted == len(marked) > 0
    assert all("≠ differs" in e.text for e in marked)
    assert markdown(documents).count("≠ differs") == wanted
    same = Page(render([documents[0]] * 2))
    assert not same.all("td", "differs")


def test_what_one_audit_alone_has_is_not_compared() -> None:
    first, second, third = three()
    alone = replace(third.matrix[0], what="one hospital's counts in a question")
    cut = replace(first.matrix[0], cells=first.matrix[0].cells[:-1])
    documents = [
        replace(first, matrix=(cut, *first.matrix[1:])),
        second,
        replace(third, matrix=(*third.matrix, alone)),
    ]
    page = Page(render(documents))
    table = next(e for e in page.all("table") if e.attributes.get("id") == "all-matrix")
    text = " ".join(e.text for e in page.within(table))
    assert "counts in a question" not in text and "not stated" in text
    assert render(documents).count("counts in a question") == 1  # in its own section
    last = [line[-1] for line in compared(documents, first.matrix[0].what)]
    assert [cell.term.word for cell in last] == ["not stated", "not tested", "not tested"]
    assert not any(cell.differs for cell in last)


def test_compared_runs_have_a_line_each(several: Page) -> None:
    table = several.all("table")[0]
    rows = [e.text for e in several.within(table) if e.tag == "tr"][1:]
    for row, made in zip(rows, three(), strict=True):
        deployed = next(p for p in made.points if p.deployed)
        assert made.run.name in row and made.status in row
        assert str(deployed.accuracy) in row and str(deployed.leakage) in row
    assert "∞" in rows[0] and "3.2" in rows[2]


def test_empty_series_become_sentences() -> None:
    made = document(**EMPTY, trials=(), matrix=(), privacy=(), untested=(), accuracy={})
    html, text = render([made]), markdown([made])
    assert not Page(html).all("figure")
    for sentence in (*WITHOUT.values(), NO_TRIALS, NO_PRIVACY):
        assert sentence in html and sentence in text


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_has_words_and_numbers(name: str, one: Page) -> None:
    label = f"run1-{name}-alternative"
    svg = next(e for e in one.all("svg") if e.attributes.get("aria-labelledby") == label)
    caption = next(e for e in one.all("figcaption") if e.attributes["id"] == label)
    assert svg.attributes["role"] == "img" and len(caption.text) > 40
    place = one.elements.index(svg)
    assert one.all("table")[-1] in one.elements[place:]
    made = document()
    series = {"accuracy": made.points}.get(name) or getattr(made, name)
    for item in series:
        assert item.label in svg.text and item.label in caption.text


def test_a_verdict_without_its_controls_is_not_printed() -> None:
    alone = trial("token bag", "coordinator", None, finding(0.0), finding(0.0))
    broken = trial("span check", "coordinator", finding(0.1), finding(0.0), finding(0.0))
    lucky = trial("LiRA", "coordinator", finding(0.9), finding(0.0), finding(0.9))
    claims = [msgspec.structs.replace(t, verdict="holds") for t in (alone, broken, lucky)]
    made = document(trials=tuple(claims), matrix=())
    assert [t.verdict for t in (alone, broken, lucky)] == ["not tested", *["inconclusive"] * 2]
    assert len(contradictions(made)) == 3
    page = Page(render([made]))
    verdicts = [e.text for h in page.all("h4") for e in page.within(h) if "term" in e.classes]
    assert verdicts == ["not tested", "inconclusive", "inconclusive"]
    assert "contradicts itself" in page.all("div", "alarm")[0].text
    assert "holds" not in [e.text for e in page.all("td")]


def test_nothing_is_not_claimed_against_a_leak() -> None:
    leak = three()[0]
    rows = document().matrix  # it says "nothing" where the trials of `leak` say otherwise
    assert not contradictions(document()) and not contradictions(leak)
    found = contradictions(msgspec.structs.replace(leak, matrix=rows))
    assert any("one party's update, coordinator" in sentence for sentence in found)
    lost = contradictions(document(trials=()))
    assert any("is no trial" in sentence for sentence in lost)


def test_nothing_to_work_on_is_no_success() -> None:
    made = trial(
        "token bag", "coordinator", finding(0.9), finding(None, note="No frame."), finding(0)
    )
    html = render([document(trials=(made,), matrix=())])
    assert "the attack had nothing to work on. No frame." in html and ">holds<" in html


def test_strange_figures_do_not_stop_the_report() -> None:
    made = document()
    curve = made.traffic[0]
    odd = msgspec.structs.replace(curve, label="東京 $\\frac$", y=(float("nan"), 0.0), x=(1.0, 2.0))
    flat = msgspec.structs.replace(made.spectra[0], y=(), x=())
    lost = msgspec.structs.replace(made.points[0], accuracy=None)
    html = render([document(traffic=(odd,), spectra=(flat,), points=(lost,))])
    assert "東京 $\\frac$</text>" in html
    assert WITHOUT["spectra"] in html and WITHOUT["accuracy"] in html


def test_a_report_is_about_something() -> None:
    for make in (render, markdown):
        with pytest.raises(ValueError, match="one run at least"):
            make([])
