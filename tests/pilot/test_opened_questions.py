"""The same question over other hospitals is refused for good; without notes, a difference tells."""

from __future__ import annotations

from pathlib import Path

from secure_fl.errors import CohortError
from secure_fl.pilot.site_memory import OpenedQuestions
from tests.support.raising import raises

CARDS = {"north": "1", "south": "2", "west": "3"}


def test_a_question_is_answered_over_the_same_sites_or_not_at_all(tmp_path: Path) -> None:
    notes = OpenedQuestions(tmp_path, CARDS)
    notes.admit(("how many",), ("south", "north", "west"))
    again = OpenedQuestions(tmp_path, CARDS)  # the process was started again
    again.admit(("how many",), ("north", "south", "west"))
    again.admit(("how old",), ("north", "south"))
    with raises(CohortError, "north, south, west", field="survivors"):
        again.admit(("how many",), ("north", "south"))


def test_a_name_that_has_passed_to_another_site_is_another_one(tmp_path: Path) -> None:
    OpenedQuestions(tmp_path, CARDS).admit(("how many",), tuple(CARDS))
    with raises(CohortError, field="survivors"):
        OpenedQuestions(tmp_path, {**CARDS, "west": "4"}).admit(("how many",), tuple(CARDS))
