"""A site's record of answered questions, and of the members of each answer's sum.

The same question over four hospitals and then over three gives, as a difference, one hospital's
part. So each site notes every such question, over all runs, before it reveals a share of the sum,
and lets it be opened again over exactly the same sites or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from secure_fl.errors import CohortError
from secure_fl.files import Lines
from secure_fl.party.hooks import RoundHook

FILE = "questions.jsonl"


class OpenedQuestions(RoundHook):
    """A site's permanent notes on opened questions, in the folder of its ledger."""

    def __init__(self, folder: Path, cards: Mapping[str, str]) -> None:
        """`cards`: fingerprints of sites by name, because a name can pass to another site."""
        self._lines = Lines(folder / FILE, "which question is opened")
        self._cards = cards

    def admit(self, questions: Sequence[str], survivors: Sequence[str]) -> None:
        """Note the parties of opened answers; refuse a change of parties.

        `questions`: digests of everything but the parties that an answer depends on.
        """
        for question in questions:
            self._admit(question, survivors)

    def _admit(self, question: str, names: Sequence[str]) -> None:
        now = sorted(self._cards.get(name, name) for name in names)
        for line in self._lines:
            if line["question"] != question:
                continue
            if line["sites"] == now:
                return
            before = ", ".join(line["names"])
            raise CohortError(
                f"the same was asked over {before}, and opened; over {', '.join(sorted(names))} "
                "the difference would be what single hospitals hold",
                fix="ask with exactly those hospitals, or with records that are new",
                field="survivors",
            )
        self._lines.append({"question": question, "sites": now, "names": sorted(names)})
