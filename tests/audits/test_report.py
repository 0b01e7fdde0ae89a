"""The report shows what its document contains: nothing added, nothing lost, and no markup."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from secure_fl.audits.document import ENTITIES, AuditDocument, encode
from secure_fl.audits.report.page import compared_cells, render
from secure_fl.audits.report.sentences import (
    ACCESS,
    NO_PRIVACY,
    NO_TRIALS,
    STATUS,
    VERDICTS,
    WITHOUT,
    outcome,
    standing,
)
from tests.support.documents import document, finding, three, trial
from tests.support.pages import Page

EVIL = '<script>alert("x")</script> & | "> <img src=x onerror=alert(1)> $\\frac$ `_a_` _b'


def hostile() -> AuditDocument:
    """A document whose every name wants to be markup."""
    text = encode(document()).decode()
    for name in ("north", "study-he-secagg", "FedAvg", "token bag", "coordinator + 1 hospital"):
        text = text.replace(name, json.dumps(EVIL)[1:-1])
    text = text.replace("[algorithm]", json.dumps(f"[{EVIL}]\n````\n# not a title")[1:-1])
    return msgspec.json.decode(text.encode(), type=AuditDocument)


ROOT = Path(__file__).parent.parent.parent
PLOTS = ("accuracy", "roc", "budget", "spectra")
EMPTY: dict[str, Any] = dict.fromkeys(("points", "roc", "budget", "spectra"), ())


@pytest.fixture(scope="module")
def one() -> Page:
    return Page(render([document()]))


@pytest.fixture(scope="module")
def html() -> str:
    return render(three())


@pytest.fixture(scope="module")
def several(html: str) -> Page:
    return Page(html)


def test_the_page_refers_to_nothing_outside(several: Page, html: str) -> None:
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
    labelled = [e.attributes.get("aria-labelledby") for e in page.elements]
    labels = [label for label in labelled if label]
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
        places = [f"{target}-title" for target in targets]
        titles = [e.text for p in places for e in one.elements if e.attributes.get("id") == p]
        assert len(titles) == len(wanted)
        assert all(t.lower().startswith(w.lower()) for t, w in zip(titles, wanted, strict=True))


def test_fields_need_no_colour(one: Page) -> None:
    cells = [c for row in document().matrix for c in row.cells]
    for cell, element in zip(cells, one.all("td", "cell"), strict=True):
        uses = [e.attributes["href"] for e in one.within(element) if e.tag == "use"]
        assert uses == [f"#icon-{ACCESS[cell.access].icon}"]
        assert element.text.startswith(ACCESS[cell.access].word)
    for terms in (ACCESS, VERDICTS, STATUS):
        assert len({t.icon for t in terms.values()}) == len(terms)
        assert len({t.word for t in terms.values()}) == len(terms)


def test_the_status_is_in_words_with_its_reasons() -> None:
    for status, term in STATUS.items():
        made = document(status=status, reasons=("of this",), **EMPTY)
        banner = Page(render([made])).all("div", "status")[0]
        assert banner.text.lower().startswith(f"limits {term.word}. {standing(made)}".lower())
        assert banner.text.endswith("of this")
    reasons = tuple(f"reason {k}" for k in range(30))
    many = document(status="beyond policy", reasons=reasons, **EMPTY)
    assert "25 more, in audit.json" in render([many])  # the page to sign stays one page


def test_it_never_claims_that_all_was_tested_where_something_was_not() -> None:
    open_run = replace(three()[0], status="within policy")
    assert {one.verdict for one in open_run.trials} & {"not tested", "inconclusive"}
    kept = STATUS["within policy"].meaning
    assert kept not in standing(open_run)
    held = tuple(one for one in open_run.trials if one.verdict == "holds")
    assert standing(replace(open_run, trials=held)) == kept


def test_words_of_entities_are_listed_by_type() -> None:
    by_type = replace(finding(0.984), details={ENTITIES: {"Drug": 0.984, "Dose": 0.5}})
    made = trial("token bag", "coordinator", by_type, by_type, finding(0.0))
    assert outcome(made).endswith("Dose 50 %, Drug 98 %.")


def test_compared_fields_that_differ_are_marked() -> None:
    documents = [replace(d, **EMPTY) for d in three()]
    page = Page(render(documents))
    table = next(e for e in page.all("table") if e.attributes.get("id") == "all-matrix")
    marked = [e for e in page.within(table) if "differs" in e.classes]
    columns = zip(*([c.access for r in d.matrix for c in r.cells] for d in documents), strict=True)
    wanted = sum(len(column) for column in columns if len(set(column)) > 1)
    assert wanted == len(marked) > 0
    assert all("≠ differs" in e.text for e in marked)
    same = Page(render([documents[0]] * 2))
    assert not same.all("td", "differs")


def test_what_one_audit_alone_has_is_not_compared() -> None:
    first, second, third = (replace(d, **EMPTY) for d in three())
    alone = replace(third.matrix[0], what="one hospital's counts in a question")
    cut = replace(first.matrix[0], cells=first.matrix[0].cells[:-1])
    first_cut = replace(first, matrix=(cut, *first.matrix[1:]))
    documents = [first_cut, second, replace(third, matrix=(*third.matrix, alone))]
    html = render(documents)
    page = Page(html)
    table = next(e for e in page.all("table") if e.attributes.get("id") == "all-matrix")
    text = " ".join(e.text for e in page.within(table))
    assert "counts in a question" not in text and "not stated" in text
    assert html.count("counts in a question") == 1  # in its own section
    last = [line[-1] for line in compared_cells(documents, first.matrix[0].what)]
    assert [cell.term.word for cell in last] == ["not stated", "not tested", "not tested"]
    assert not any(cell.differs for cell in last)


def test_empty_series_become_sentences() -> None:
    made = document(**EMPTY, trials=(), matrix=(), privacy=(), untested=(), accuracy={})
    page = Page(render([made]))
    assert not page.all("figure")
    shown = {e.text for e in page.all("p", "without")}
    assert shown >= {*WITHOUT.values(), NO_TRIALS, NO_PRIVACY}
    with pytest.raises(ValueError, match="one run"):
        render([])


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
    claims = [replace(t, verdict="holds") for t in (alone, broken, lucky)]
    made = document(trials=tuple(claims), matrix=())
    assert [t.verdict for t in (alone, broken, lucky)] == ["not tested", *["inconclusive"] * 2]
    page = Page(render([made]))
    verdicts = [e.text for h in page.all("h4") for e in page.within(h) if "term" in e.classes]
    assert verdicts == ["not tested", "inconclusive", "inconclusive"]
    assert "holds" not in [e.text for e in page.all("td")]


def test_nothing_to_work_on_is_no_success() -> None:
    nothing = finding(None, note="No frame.")
    made = trial("token bag", "coordinator", finding(0.9), nothing, finding(0))
    html = render([document(trials=(made,), matrix=())])
    assert "the attack had nothing to work on. No frame." in html and ">holds<" in html


def test_strange_figures_do_not_stop_the_report() -> None:
    made = document()
    curve = made.budget[0]
    odd = replace(curve, label="東京 $\\frac$", y=(float("nan"), 0.0, 1.0), x=(1.0, 2.0, 3.0))
    flat = replace(made.spectra[0], y=(), x=())
    lost = replace(made.points[0], accuracy=None)
    html = render([document(budget=(odd,), spectra=(flat,), points=(lost,))])
    assert "東京 $\\frac$</text>" in html
    assert WITHOUT["spectra"] in html and WITHOUT["accuracy"] in html


# --- bytes and names ------------------------------------------------------------------------------


def test_the_same_document_gives_the_same_bytes_in_every_process(html: str) -> None:
    again = [msgspec.json.decode(encode(d), type=AuditDocument) for d in three()]
    assert render(again) == html
    code = (
        "import hashlib; from tests.support.documents import three\n"
        "from secure_fl.audits.report.page import render\n"
        "print(hashlib.sha256(render(three()).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(html.encode()).hexdigest()


def test_names_are_data_on_the_page() -> None:
    page = Page(render([hostile(), document()]))
    assert not {e.tag for e in page.elements} & {"script", "img", "iframe", "object", "link"}
    assert not [n for e in page.elements for n in e.attributes if n == "src" or n.startswith("on")]
    shown = " ".join(EVIL.split())
    assert page.all("h1")[0].text.startswith(shown)
    assert any(shown in e.text for e in page.all("dd", "lead"))
    assert any(shown in e.text for e in page.all("pre"))
    assert any(e.text == shown for e in page.all("th"))
