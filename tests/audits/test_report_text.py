"""What a report may contain: names are data in every format, and the bytes are always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import msgspec
import pytest
from markdown_it import MarkdownIt

from secure_fl.audits.document import AuditDocument, encode
from secure_fl.audits.report import markdown, render
from tests.support.documents import document, three
from tests.support.hostile import EVIL, hostile
from tests.support.pages import Page

ROOT = Path(__file__).parent.parent.parent


def test_same_document_same_bytes() -> None:
    html, text = render(three()), markdown(three())
    again = [msgspec.json.decode(encode(d), type=AuditDocument) for d in three()]
    with matplotlib.rc_context({"axes.linewidth": 9, "svg.hashsalt": "another"}):
        assert render(again) == html
    assert markdown(again) == text


def test_same_bytes_in_another_process() -> None:
    code = (
        "import hashlib; from tests.support.documents import document\n"
        "from secure_fl.audits.report import render\n"
        "print(hashlib.sha256(render([document()]).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_names_are_data_on_the_page() -> None:
    page = Page(render([hostile(), document()]))
    assert not {e.tag for e in page.elements} & {"script", "img", "iframe", "object", "link"}
    assert not [n for e in page.elements for n in e.attributes if n == "src" or n.startswith("on")]
    shown = " ".join(EVIL.split())
    assert page.all("h1")[0].text.startswith(shown)
    assert any(shown in e.text for e in page.all("p", "lead"))
    assert any(shown in e.text for e in page.all("pre"))
    assert any(e.text == shown for e in page.all("th"))


def rows_of(text: str) -> list[list[str]]:
    """The tables of Markdown as a reader sees them: each row's cells."""
    rows: list[list[str]] = []
    cell = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        cell = (cell and token.type == "inline") or token.type in ("td_open", "th_open")
        if token.type == "inline" and cell and rows:
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


@pytest.mark.parametrize("make", [document, hostile])
def test_markdown_reads_back(make: object) -> None:
    made = make()  # type: ignore[operator]
    text = markdown([made, document("none")])
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    assert not [t for t in [*tokens, *inline] if t.type in ("html_block", "html_inline", "image")]
    assert [t for t in tokens if t.type == "heading_open" and t.tag == "h1"] == tokens[:1]
    assert (
        made.run.settings.rstrip() == next(t for t in tokens if t.type == "fence").content.rstrip()
    )
    rows = rows_of(text)
    name = " ".join(made.run.name.split())
    assert rows[1][0] == f"1. {name}" and len(rows[1]) == len(rows[0]) == 7
    for t in made.trials:
        attack, role = (" ".join(part.split()) for part in (t.attack, t.role))
        assert any(row[:2] == [attack, role] for row in rows)
