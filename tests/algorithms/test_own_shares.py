"""Predictions less a party's own class shares: what Bayes' rule and DP say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from secure_fl.algorithms.baselines.settings import DSFL
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.public_distillation import (
    PublicRecords,
    class_shares,
    logits,
    party_logits,
)
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.errors import SettingsError
from secure_fl.learning.site import Site
from secure_fl.settings import DPSettings, TrainingSettings
from secure_fl.testing.hospitals import HOST, LABELS, hosted, members
from tests.support.equality import equal, weights
from tests.support.hands import LOCAL, site_of
from tests.support.raising import raises


def lopsided(silo: Silo, often: int = 6, rarely: int = 1) -> Silo:
    """A hospital with more records of the first class than of the second."""
    kept = [e for e in silo.train if isinstance(e, Text)]
    labels = [LABELS[0]] * often + [LABELS[1]] * rarely
    return replace(
        silo, train=[replace(e, label=label) for e, label in zip(kept, labels, strict=False)]
    )


def private(**changes: Any) -> TrainingSettings:
    dp = DPSettings(epsilon=8.0, delta=1e-3)
    return TrainingSettings(batch_size=8, device="cpu", dp=dp, **changes)


def test_a_class_as_frequent_as_the_others_is_left_alone_and_a_frequent_one_is_said_less() -> None:
    site = site_of(lopsided(members(size=7)[0]))
    assert class_shares(site).tolist() == pytest.approx([6.5 / 8, 1.5 / 8])
    records, model = PublicRecords(site), site.model()
    rows, cfg = records.every(), FedID()
    kept = logits(site, model, records, rows).softmax(-1)
    found = party_logits(site, cfg, model, records, rows).softmax(-1)
    bayes = kept / class_shares(site)
    torch.testing.assert_close(found, bayes / bayes.sum(-1, keepdim=True))
    even = site_of(lopsided(members(size=8)[0], 4, 4))
    torch.testing.assert_close(party_logits(even, cfg, model, records, rows).softmax(-1), kept)
    plain = party_logits(site, FedID(own_shares="kept"), model, records, rows).softmax(-1)
    assert torch.equal(plain, kept)


def test_a_class_that_a_party_never_saw_is_not_certain() -> None:
    site = site_of(lopsided(members(size=7)[0], 7, 0))
    assert class_shares(site).tolist() == pytest.approx([7.5 / 8, 0.5 / 8])


@pytest.mark.parametrize("method", [FedID, DSFL])
def test_shares_change_what_the_host_learns(method: Any) -> None:
    silos = [lopsided(silo) if silo.role == "party" else silo for silo in members(size=7)]
    runs = [
        hosted(method(rounds=1, own_shares=way), silos=silos).run() for way in ("kept", "divided")
    ]
    assert not equal(weights(runs[0]), weights(runs[1]))
    usual = hosted(method(rounds=1), silos=silos).run()
    assert equal(weights(usual), weights(runs[method is FedID]))


def test_counts_are_kept_out_of_what_dp_sgd_covers() -> None:
    silo = lopsided(members(size=7)[0])
    site: Site = site_of(silo, private())
    records, model = PublicRecords(site), site.model()
    kept = logits(site, model, records, records.every())
    assert torch.equal(party_logits(site, FedID(), model, records, records.every()), kept)
    silos = [lopsided(s) if s.role == "party" else s for s in members(size=7)]
    with raises(SettingsError, field="algorithm.own_shares"):
        hosted(FedID(rounds=1, own_shares="divided"), silos=silos, training=private()).run()


def test_the_hosts_own_shares_are_never_asked() -> None:
    """Its model's predictions are its own; only parties' are pooled."""
    silos = members(size=7)
    turned = [*silos[:3], replace(silos[3], train=lopsided(silos[3], 3, 3).train)]
    cfg = FedID(rounds=1, labelled=False)
    one, two = (hosted(cfg, silos=each).run() for each in (silos, turned))
    assert silos[3].name == HOST
    assert all(equal(weights(one, n), weights(two, n)) for n in ("model", *LOCAL))
