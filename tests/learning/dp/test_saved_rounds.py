"""A round of DP-SGD that is repeated sends again what it sent, and the ledger pays once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import TamperError
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.learning.site import Site
from secure_fl.runs.party_checkpoints import SavedTrainings
from secure_fl.settings import DPSettings, ProtectionSettings, TrainingSettings
from tests.support.local_pilot import plan_of, repeats_round_two
from tests.support.private import make_site
from tests.support.raising import raises

DP = DPSettings(epsilon=1e4, noise_multiplier=0.25, accountant="rdp")


def begun(folder: Path, kept: bool = True) -> Site:
    """A process of a hospital that begins: all that it knows is on the disk."""
    site = make_site(ledger=open_ledger(folder, "north"), epsilon=30.0, delta=1e-3, passes=3)
    assert site.privacy is not None
    site.privacy.trainings = SavedTrainings(folder / "trainings") if kept else None
    return site


def trained(site: Site, round: int = 1, model: Any = None, **options: Any) -> torch.Tensor:
    model = model or site.model()
    site.recorder.round = round
    fit_privately(site, model, 1, **options)
    return torch.cat([weight.detach().flatten() for weight in trainable(model).values()])


def reserved(folder: Path) -> int:
    chain = load_chain(folder / "ledger.sqlite")
    return sum(entry.state == "reserved" for entry in chain.entries)


@pytest.mark.parametrize("kept", [False, True])
def test_a_repeated_training_is_spent_once(kept: bool, tmp_path: Path) -> None:
    first, again = (trained(begun(tmp_path, kept)) for _ in range(2))
    assert torch.equal(first, again) == kept
    assert reserved(tmp_path) == (1 if kept else 2)


def test_other_weights_rounds_and_second_trainings_are_new(tmp_path: Path) -> None:
    site = begun(tmp_path)
    first, second = trained(site), trained(site)  # of one round, from the same weights
    later = trained(begun(tmp_path), 2)
    other = begun(tmp_path).model()
    with torch.no_grad():
        next(iter(trainable(other).values())).add_(1.0)
    moved = trained(begun(tmp_path), 1, other)
    assert reserved(tmp_path) == 4 and not torch.equal(first, second)
    assert not torch.equal(first, later) and not torch.equal(first, moved)
    repeated = begun(tmp_path)
    assert torch.equal(trained(repeated), first) and torch.equal(trained(repeated), second)
    assert reserved(tmp_path) == 4


def test_an_optimiser_that_lives_on_is_as_it_was(tmp_path: Path) -> None:
    states = []
    for _ in range(2):
        site = begun(tmp_path)
        model = site.model()
        optimizer = site.optimizer(model)
        trained(site, model=model, optimizer=optimizer)
        states.append(optimizer.state_dict()["state"])
    assert states[0].keys() == states[1].keys() and states[0]
    for one, other in zip(states[0].values(), states[1].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in one)


def test_rounds_that_nobody_repeats_are_dropped(tmp_path: Path) -> None:
    site = begun(tmp_path)
    for round in (1, 2, 3):
        trained(site, round)
    left = sorted(path.name[:11] for path in (tmp_path / "trainings").glob("round-*"))
    assert left == ["round-00002", "round-00003"]


def test_what_an_older_ledger_does_not_know_is_not_sent(tmp_path: Path) -> None:
    trained(begun(tmp_path), 1)
    old = (tmp_path / "ledger.sqlite").read_bytes()
    trained(begun(tmp_path), 2)
    (tmp_path / "ledger.sqlite").write_bytes(old)
    with raises(TamperError, reason="older-copy"):
        trained(begun(tmp_path), 2)


def test_hospitals_that_repeat_a_round_pay_for_it_once(tmp_path: Path) -> None:
    """One is lost after its upload; then too few are left, and all repeat the round."""
    plan = plan_of(
        FedAvg(rounds=2),
        training=TrainingSettings(batch_size=8, device="cpu", dp=DP),
        protection=ProtectionSettings(mode="secagg", min_cohort=3),
    )
    made = repeats_round_two(tmp_path, plan)
    assert {told["party"] for told in made.seen("update_resent")} == set(made.members)
    for name in made.members:
        assert reserved(tmp_path / name / "ledger" / name) == 2
