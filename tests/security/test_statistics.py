"""P10: the coordinator of statistics sees no count; a sum of plain bytes shows what it would."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.statistics.program import answer
from secure_fl.statistics.questions import Categories
from secure_fl.statistics.rules import StatisticsRules
from secure_fl.statistics.site import StatisticsSite
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.tables import hospitals

VALUES = tuple("abcdefghijkl")  # more than eight: they travel packed
QUESTION = Categories(name="q", kind="categories", field="label", values=VALUES)


def seen_by_the_coordinator(mode: Protection, tables: dict[str, pd.DataFrame]) -> list[bytes]:
    """All bulks that hospitals sent."""
    bulks: list[bytes] = []

    def tap(party: str, direction: str, frame):
        if direction == "out":
            bulks.append(bytes(frame.bulk))
        return frame

    def program(name: str):
        rules = StatisticsRules(min_patients=1)

        async def run(cohort: Cohort) -> None:
            site = StatisticsSite(name, tables[name], rules)
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
