"""What each role could find out in a cell's run: its first round, recorded and audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.evidence.recorded import recorded
from secure_fl.algorithms.base import Algorithm
from secure_fl.audits import suite
from secure_fl.audits.attacks import token_bag
from secure_fl.audits.conclusions import matrix
from secure_fl.data.silo import Silo
from secure_fl.settings import Section

Leakage = dict[str, dict[str, str]]  # what is looked for, in which role's hands: what came of it


def leakage(
    silos: Sequence[Silo], algorithm: Algorithm, found: Mapping[str, Section], seed: int
) -> Leakage:
    """Run one round of this federation with all views recorded, and attack them.

    Of the attacks, those that take seconds with any model: reading, and words by moved rows.
    """
    once = algorithm.model_copy(update={"rounds": 1})
    with recorded(silos, once, found, seed) as (_, audit):
        evidence, words = audit.evidence, suite.RECONSTRUCTION[token_bag.NAME]
        trials = (
            *suite.reading_trials(evidence, audit.prior),
            *suite.reconstruction_trials(words, evidence, audit.prior),
        )
    roles = list(dict.fromkeys(trial.role for trial in trials))
    return {
        row.what: {cell.role: f"{cell.access}: {cell.note}".strip(": ") for cell in row.cells}
        for row in matrix(trials, roles)
    }
