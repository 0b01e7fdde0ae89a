"""Questions of new readers: from README, two clicks lead to a section with the command.

Each question has the links that a reader follows, the section that answers, and a text that the
section must contain. If the text is a command of secure-fl, the program must have it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from posixpath import normpath
from typing import NamedTuple

import pytest

from tests.support.command_line import parse
from tests.support.names import ROOT

MOST_CLICKS = 2
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Question(NamedTuple):
    """A question, the pages on the way, the section that answers, and a text in it."""

    asked: str
    pages: tuple[str, ...]
    section: str
    text: str


QUESTIONS = (
    Question("Install it", ("docs/installation.md",), "from-a-checkout", "pip install"),
    Question("A smaller installation", ("docs/installation.md",), "cpu-or-gpu", "--index-url"),
    Question("Is it installed well", ("docs/installation.md",), "check-the-installation",
             "secure-fl doctor"),
    Question("Train on my data", ("docs/own-data.md",), "from-a-settings-file",
             "secure-fl train own.toml"),
    Question("Check my records", ("docs/own-data.md",), "from-a-settings-file",
             "secure-fl preflight own.toml"),
    Question("Use my model", ("docs/own-data.md",), "your-own-model", "secure-fl tune own.toml"),
    Question("Choose the protection", ("docs/quickstart.md",), "choose-the-protection",
             "he+secagg"),
    Question("What leaks to whom", ("docs/threat-model.md",), "who-sees-what", "he+secagg"),
    Question("Run a pilot", ("docs/pilot.md",), "5-run", "secure-fl join site.toml"),
    Question("Rules of a hospital", ("docs/pilot.md",), "rules", "max_rounds"),
    Question("Resume a run", ("docs/quickstart.md",), "stop-and-continue",
             "secure-fl train my-study/federation.toml --resume"),
    Question("Resume a pilot", ("docs/operations.md",), "stop-and-resume", "coordinate"),
    Question("Train with differential privacy", ("docs/differential-privacy.md",),
             "dp-sgd-records-or-patients", "secure-fl train study.toml"),
    Question("Plan a privacy budget", ("docs/differential-privacy.md",),
             "dp-sgd-records-or-patients", "secure-fl budget --records 5000"),
    Question("See the spent budget", ("docs/differential-privacy.md",), "the-ledger",
             "secure-fl ledger"),
    Question("Cite it", ("CITATION.cff",), "", "cff-version"),
    Question("Its licence", ("LICENSE",), "", "Apache License"),
    Question("Reproduce a row", ("docs/results.md",), "reproduce-a-row", "python -m benchmarks"),
    Question("Add an algorithm", ("docs/architecture.md",), "add-an-algorithm", "registry.py"),
    Question("Tune", ("docs/evaluation.md",), "tuning", "secure-fl tune study.toml"),
    Question("Evaluate a model", ("docs/evaluation.md",), "shortest-example", "secure-fl evaluate"),
    Question("Attack a run", ("docs/audits.md",), "shortest-example", "secure-fl audit runs/study"),
    Question("Report a weakness", ("SECURITY.md",), "report-a-weakness", "privately"),
    Question("Back up and replace keys", ("docs/operations.md",), "keys", "secure-fl keys"),
    Question("Understand an error", ("docs/troubleshooting.md",), "data",
             "secure-fl data describe"),
    Question("Count records first", ("docs/statistics.md",), "shortest-example",
             "secure-fl stats codebook.toml"),
    Question("Publish a model", ("docs/models.md",), "the-models-folder", "secure-fl push"),
    Question("Translate Flower", ("docs/coming-from.md",), "from-flower", "num_supernodes"),
    Question("The words", ("docs/concepts.md",), "glossary", "roster"),
    Question("Papers for the officer", ("docs/governance/README.md", "docs/governance/dpia.md"),
             "", "risk"),
    Question("Contribute", ("CONTRIBUTING.md",), "tests", "tests/conformance/"),
)  # fmt: skip


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the site and GitHub make it."""
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip()
    return re.sub(r"[ ]", "-", text)


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading, without the text of subsections' parents."""
    text = re.sub(r"^```.*?^```", lambda m: m[0].replace("\n#", "\n\\#"),
                  page.read_text(encoding="utf-8"), flags=re.M | re.S)  # fmt: skip
    parts = re.split(r"^#+ (.*)$", text, flags=re.M)
    found = {slug(head): body for head, body in zip(parts[1::2], parts[2::2], strict=True)}
    return found | {"": text}


def linked(page: str) -> set[str]:
    """Return the files that a page links to, relative to the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    folder = Path(page).parent.as_posix()
    targets = (link.partition("#")[0] for link in LINK.findall(text))
    return {normpath(f"{folder}/{target}") for target in targets if target}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_two_clicks_lead_to_the_answer(question: Question) -> None:
    here = "README.md"
    assert len(question.pages) <= MOST_CLICKS
    for page in question.pages:
        assert page in linked(here), f"{here} has no link to {page}"
        here = page
    answer = sections(ROOT / here)
    assert question.section in answer, sorted(answer)
    assert question.text in answer[question.section], answer[question.section]
    if question.text.startswith("secure-fl "):
        parse(shlex.split(question.text)[1:])


def test_there_are_at_least_twenty() -> None:
    assert len({question.asked for question in QUESTIONS}) == len(QUESTIONS) >= 20


@pytest.mark.parametrize(
    "page",
    ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))],
)
def test_anchors_exist(page: str) -> None:
    """Each link to a section of a page leads to a heading."""
    folder = Path(page).parent.as_posix()
    for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        file = ROOT / (normpath(f"{folder}/{target}") if target else page)
        if anchor and "://" not in link and file.exists():
            assert anchor in sections(file), link
