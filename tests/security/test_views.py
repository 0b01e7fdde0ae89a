"""Coalitions learn nothing from a run but the agreed sums, in all scenarios of a list.

`tests.support.views` decides, over the shipped code; planted faults show that it would notice.
`python -m benchmarks views` does the same for more parties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from secure_fl.crypto.sealing import packing, secure_sum
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.runs.party_checkpoints import OpenedSumsLog
from tests.support import view_scenarios as scenarios
from tests.support.sampling import mostly_slow
from tests.support.view_scenarios import Checked, Setting

Patch = pytest.MonkeyPatch
Family = Callable[[Setting], Iterable[Checked]]


CASES = [
    (family, setting)
    for family, setting in product(scenarios.FAMILIES, scenarios.settings(4))
    if family is not scenarios.lists or setting.t < setting.n  # else nobody may drop out
]
FAST = [(family, setting) for family, setting in CASES if setting.n == 3]


@pytest.mark.parametrize(("family", "setting"), mostly_slow(CASES, *FAST))
def test_no_coalition_within_the_bound_learns_more_than_agreed_sums(
    family: Family, setting: Setting
) -> None:
    checked = list(family(setting))
    assert [one for one in checked if one.leak] == []
    assert any(one.opened for one in checked)  # sums are opened, and the checker sees them


@pytest.mark.parametrize(("n", "t"), [(3, 2), (4, 3)])
@pytest.mark.parametrize("family", [scenarios.dropouts, scenarios.stories])
def test_one_colluder_more_learns_an_input(family: Family, n: int, t: int) -> None:
    assert any(one.leak for one in family(Setting(n, t, more=1)))


def masks_twice(patch: Patch) -> None:
    """Every sum has the seeds of the first one, and its streams."""
    shipped, first = StepKeys.__init__, dict[tuple[str, str], StepKeys]()

    def init(keys: StepKeys, *rest: Any) -> None:
        shipped(keys, *rest)
        before = first.setdefault((keys.me, keys.run), keys)
        keys._self_seed, keys._mask_seed = before._self_seed, before._mask_seed
        keys._mask_key = before._mask_key

    patch.setattr(StepKeys, "__init__", init)
    patch.setattr(StreamId, "info", lambda stream, purpose: f"{stream.run} {purpose}".encode())


def no_salts(patch: Patch) -> None:
    """Masks do not depend on history that two parties alone share."""
    patch.setattr(secure_sum.SecureSumInProgress, "_salts", lambda *_: {})


def both_seeds(patch: Patch) -> None:
    """A party reveals both shares of a dropout."""
    shipped = StepKeys.reveal

    def reveal(keys: StepKeys, *rest: Any) -> Any:
        shares = shipped(keys, *rest)
        return structs.replace(
            shares, seeds=shares.seeds | {p: keys._held[p][1] for p in shares.keys}
        )

    patch.setattr(StepKeys, "reveal", reveal)


def other_survivors(patch: Patch) -> None:
    """A repeated round is opened over other parties."""
    patch.setattr(OpenedSumsLog, "admit", lambda *_: None)


def no_history(patch: Patch) -> None:
    """Masks do not depend on the totals that parties received."""
    shipped = packing.segment_key
    patch.setattr(secure_sum, "segment_key", lambda group, rule, at, _: shipped(group, rule, at))


def no_confirmation(patch: Patch) -> None:
    """Parties unmask without equal signatures of a threshold."""
    patch.setattr(StepKeys, "_check_signatures", lambda *_: None)


PLANTED: dict[Callable[[Patch], None], tuple[Family, Setting, str]] = {
    masks_twice: (scenarios.dropouts, Setting(4, 3), "combination"),
    no_salts: (scenarios.forgeries, Setting(4, 3), "unequal totals"),
    both_seeds: (scenarios.stories, Setting(4, 3), "combination"),
    other_survivors: (scenarios.restarts, Setting(4, 3), "two sums"),
    no_history: (scenarios.forgeries, Setting(4, 3), "unequal totals"),
    no_confirmation: (scenarios.lists, Setting(5, 3), "combination"),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    family, setting, what = PLANTED[plant]
    plant(monkeypatch)
    assert any(what in one.leak for one in family(setting))
