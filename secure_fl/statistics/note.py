"""A site's record of questions and releases, written before each of them happens.

    asked      before a sum over the records is opened: counts for the day, binds to the hospitals
    released   before an answer leaves: the partition that it tells the sizes of

Kept for good: a later question is held against all that was released before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.errors import QuestionRefused
from secure_fl.files import Lines
from secure_fl.statistics.atoms import Release
from secure_fl.statistics.questions import KINDS, Question

NOTE = "statistics.jsonl"


class Note:
    """One site's note about one set of records; without a file it ends with the process."""

    def __init__(self, file: Path | None = None) -> None:
        self._lines = Lines(file, "what is asked of the records") if file is not None else None
        self._kept: list[dict[str, Any]] = list(self._lines or ())

    def require_hospitals(self, hospitals: tuple[str, ...]) -> None:
        """Refuse a change of hospitals: two answers would differ by one hospital's records."""
        before = next((line["over"] for line in self._of("asked")), None)
        if before is not None and sorted(before) != sorted(hospitals):
            raise QuestionRefused(
                f"these records were asked about together with those of {', '.join(before)}, and "
                f"now {', '.join(hospitals)}: two answers would differ by one hospital's records",
                fix="ask across the same hospitals. The person responsible for the records may "
                "begin a new note when they have changed permanently",
                field="hospitals",
            )

    def asked_today(self, today: date | None = None) -> int:
        """How many questions were asked on this day, in UTC."""
        day = str(today or datetime.now(UTC).date())
        return sum(line["day"] == day for line in self._of("asked"))

    def ask(self, question: Question, hospitals: tuple[str, ...]) -> None:
        """Note a question, before anything of it is opened."""
        day = str(datetime.now(UTC).date())
        self._add({"what": "asked", "day": day, "over": hospitals, "question": _plain(question)})

    def release(self, release: Release) -> None:
        """Note a partition, before the sizes of its blocks leave."""
        blocks, question = release.blocks.tolist(), _plain(release.question)
        found = {"question": question, "blocks": blocks, "patients": release.patients}
        self._add({"what": "released", **found})

    @property
    def releases(self) -> list[Release]:
        """Return all partitions so far, without repetitions."""
        found: dict[str, Release] = {}
        for line in self._of("released"):
            question = KINDS[line["question"]["kind"]].model_validate(line["question"])
            key = json.dumps([line["question"] | {"name": ""}, line["blocks"]], sort_keys=True)
            found[key] = Release(question, np.array(line["blocks"]), line["patients"])
        return list(found.values())

    def fingerprint(self) -> bytes:
        """A digest of all that was released, which must be equal at all sites."""
        lines = list(self._of("released"))
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).digest()

    def _of(self, what: str) -> Iterator[dict[str, Any]]:
        return (line for line in self._kept if line["what"] == what)

    def _add(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append(line)
        self._kept.append(line)


def _plain(question: Question) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(question.model_dump_json())
    return found
