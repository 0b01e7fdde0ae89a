"""What a result promises must not be more than what holds: draws of parties, and hosts under DP."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secure_fl import Federation, ProtectionSettings, Silo, TrainingSettings
from secure_fl.algorithms.baselines.settings import DSFL
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.public_coins import sampled
from secure_fl.errors import SettingsError
from secure_fl.federation.outcome import protection_of
from secure_fl.settings import DPSettings
from secure_fl.testing.hospitals import HOST, hosted, members
from tests.support.raising import raises

SEED = 0


def drawing(share: float, parties: int, counted: Any = "parties", mode: Any = "secagg") -> Any:
    cfg = FedID(rounds=1, sample=share, counted=counted)
    protection = ProtectionSettings(mode=mode)
    return hosted(cfg, silos=members(parties, size=2), protection=protection)


def read_by(colluders: set[str], adds: set[str]) -> set[str]:
    """Whose part of a sum these know: that of the only other one who adds anything."""
    others = adds - colluders
    return others if len(others) == 1 else set()


@pytest.mark.parametrize("parties", [5, 10])
def test_the_bound_of_a_run_that_draws_parties_is_that_of_the_drawn_ones(parties: int) -> None:
    """Non-drawn parties add zeros, and all know it: the bound of all parties was broken."""
    run = drawing(0.1, parties)
    names = {silo.name for silo in run.silos if silo.name != HOST}
    t, spare = run.rules.threshold, parties - run.rules.threshold
    drawn = set(sampled(SEED, 1, sorted(names), 0.1, run.rules.min_cohort + spare))
    everybody = protection_of(drawing(1.0, parties).outline)["collusion_bound"]
    said = protection_of(run.outline)["collusion_bound"]
    assert len(drawn) < parties and everybody["honest_coordinator"] == min(t - 1, parties - 2)

    def broken(c: int, lost: int) -> bool:
        left = [drawn - set(gone) for gone in combinations(sorted(drawn), lost)]
        found = (read_by(set(c_), adds) for adds in left for c_ in combinations(sorted(adds), c))
        return any(found)

    assert broken(min(everybody["honest_coordinator"], len(drawn) - 1), 0)  # what was printed
    assert not any(broken(c, 0) for c in range(said["honest_coordinator"] + 1))
    assert broken(said["honest_coordinator"] + 1, 0)  # and it is no smaller than it must be
    assert not any(broken(c, spare) for c in range(said["lying_coordinator"] + 1))
    assert (
        f"{len(drawn)} of the {parties} parties are drawn"
        in protection_of(run.outline)["statement"]
    )


def test_draws_that_count_records_would_tell_them_and_are_refused() -> None:
    parties, rounds = [f"hospital-{i}" for i in range(1, 6)], range(1, 31)
    run = drawing(0.1, 5)
    least = run.rules.min_cohort + 5 - run.rules.threshold
    records = np.array([7.0, 31, 12, 25, 90])
    draws = [sampled(SEED, r, parties, 0.1, least) for r in rounds]
    asked = np.array([[name in drawn for name in parties] for drawn in draws], float)
    solved = np.linalg.lstsq(asked, asked @ records, rcond=None)[0]  # from the sums alone
    np.testing.assert_allclose(solved, records, atol=1e-6)
    for wrong in (
        lambda: FedID(sample=0.9, counted="records"),
        lambda: InclusiveFL(sample=0.9, weights="samples"),
    ):
        with pytest.raises(SettingsError, match="how many each hospital has"):
            wrong()


def private(algorithm: Any) -> Federation:
    dp = DPSettings(epsilon=50.0, noise_multiplier=1.0, accountant="rdp", delta=1e-3)
    training = TrainingSettings(batch_size=8, dp=dp, device="cpu")
    silos = [Silo(s.name, s.train, role=s.role, public=s.public) for s in members(size=8)]
    return hosted(algorithm, silos=silos, training=training)


def test_a_host_whose_records_no_dp_sgd_saw_is_named_and_no_overall_epsilon_is_claimed() -> None:
    """A host that gives feedback asks its records, without noise; others train by DP-SGD."""
    asking = FedID(rounds=1, feedback="scalar", labelled=False)
    said = private(asking).run().document["privacy"]
    assert said["epsilon"][HOST] is None and said["epsilon"]["hospital-1"] > 0
    assert said["uncovered"] == [HOST] and said["overall_epsilon"] is None
    assert f"nothing is promised for the training records of {HOST}" in said["assumes"]
    for covered in (DSFL(rounds=1), FedID(rounds=1)):
        said = private(covered).run().document["privacy"]
        assert said["uncovered"] == [] and said["overall_epsilon"] == max(said["epsilon"].values())
        assert "nothing is promised" not in said["assumes"]


def test_a_host_that_trains_by_dp_sgd_gives_no_feedback_without_noise() -> None:
    """Its spent ε would be claimed for records that feedback tells of."""
    both = FedID(rounds=1, feedback="scalar")
    with raises(SettingsError, field="algorithm.feedback"):
        private(both).run()
