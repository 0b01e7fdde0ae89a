"""P10: the coordinator of statistics sees no count; a sum of plain bytes shows what it would."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

from secure_fl.errors import QuestionRefused
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.statistics.program import answer
from secure_fl.statistics.questions import Categories
from secure_fl.statistics.rules import StatisticsRules
from secure_fl.statistics.site import StatisticsSite
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.tables import hospitals

VALUES = tuple("abcdefghijkl")  # more than eight: they travel packed
OPEN = StatisticsRules(min_patients=1)
QUESTION = Categories(name="q", kind="categories", field="label", values=VALUES)


def over(tables: dict[str, pd.DataFrame], lost_at: int) -> set[str]:
    """How the others answer if one is lost then; never over fewer than their notes say."""
    sites = {name: StatisticsSite(name, table, OPEN) for name, table in tables.items()}

    def program(name: str):
        async def run(cohort: Cohort) -> None:
            await answer(cohort, sites[name], [QUESTION])

        return run

    def lossy(sessions):
        return LossyEngine(sessions, {"hospital-4": lost_at})

    federate(
        {name: program(name) for name in tables},
        mode="he+secagg",
        bits=24,
        threshold=3,
        engine=lossy,
        catch=True,
    )
    rest = [sites[name] for name in list(tables)[:3]]
    for site in rest:
        with suppress(QuestionRefused):
            site.note.require_hospitals(tuple(tables))  # it says that all were asked
            assert {one.total for one in site.answers} <= {None, 240}
    return {one.status for site in rest for one in site.answers}


def test_whoever_is_lost_when_no_answer_is_over_the_others() -> None:
    """The coordinator chooses who is lost: an answer over all but one would tell that one's."""
    tables, statuses = hospitals(4), set()
    for lost_at in range(4, 16):
        statuses |= over(tables, lost_at)
    assert statuses == {"answered", "refused"}


def seen_by_the_coordinator(mode: Protection, tables: dict[str, pd.DataFrame]) -> list[bytes]:
    """All bulks that hospitals sent."""
    bulks: list[bytes] = []

    def tap(party: str, direction: str, frame):
        if direction == "out":
            bulks.append(bytes(frame.bulk))
        return frame

    def program(name: str):
        async def run(cohort: Cohort) -> None:
            site = StatisticsSite(name, tables[name], OPEN)
            await answer(cohort, site, [QUESTION])
            assert site.answers[0].status == "answered"

        return run

    federate(
        {name: program(name) for name in tables},
        mode=mode,
        bits=24,
        engine=lambda sessions: LossyEngine(sessions, tap=tap),
    )
    return bulks


@pytest.mark.parametrize(("mode", "seen"), [("none", True), ("he+secagg", False)])
def test_a_hospitals_counts_are_in_no_message(mode: Protection, seen: bool) -> None:
    tables = hospitals(3)
    counts = tables["hospital-1"].label.value_counts()
    own = np.array([counts.get(value, 0) for value in VALUES], "<f4").tobytes()
    assert any(own in bulk for bulk in seen_by_the_coordinator(mode, tables)) == seen
