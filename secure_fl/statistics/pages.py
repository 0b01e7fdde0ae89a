"""Where answers are written: a document for programs, a page for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secure_fl.files import write_whole
from secure_fl.runs.folder import write_json
from secure_fl.statistics.answers import Answer
from secure_fl.statistics.pictures import answers_page

SCHEMA = "secure-fl/statistics/1"
DOCUMENT, PAGE = "answers.json", "answers.html"


def document_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """Answers as JSON."""
    return {"schema": SCHEMA, "answers": [answer.to_json() for answer in answers]}


def write_answers(folder: Path, answers: Sequence[Answer], protection: str) -> None:
    """Write both into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / DOCUMENT, document_of(answers))
    write_whole(folder / PAGE, answers_page(answers, protection))
