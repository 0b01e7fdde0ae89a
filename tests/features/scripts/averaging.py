"""A script that tests run in threads and in processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_fl import ScriptCohort


def learn(cohort: ScriptCohort, state: dict[str, Any]) -> tuple[list[float], int]:
    """Sum before the loop, and average in each round."""
    n = cohort.sum({"n": cohort.index + 1})["n"]
    state["w"] = np.full(3, float(n))
    for round in cohort.rounds(shared=state):
        moved = state["w"] + np.arange(3) * (cohort.index + 1) / round.number
        state["w"] = cohort.mean({"w": moved}, weight=cohort.index + 1, base=state)["w"]
    return state["w"].tolist(), n
