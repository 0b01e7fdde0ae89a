"""Shares of labels, out of the output layer's move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secure_fl.audits.attacks import label_counts as attack
from secure_fl.audits.attacks.label_counts import (
    _first_slope,
    _guess,
    _start,
    label_counts,
    label_shares,
)
from secure_fl.audits.findings import AuditTrial, Verdict
from secure_fl.data.examples import Text
from tests.support.readings import (
    adamw,
    hospital,
    moved,
    ner_task,
    outsiders,
    permuted,
    prior_of,
    sgd,
    view_of,
)


def with_shares(adverse, others):
    """Records of one hospital, so many of each label."""
    every = [r for k in range(5) for r in hospital(k) if isinstance(r, Text)]
    return [
        *[r for r in every if r.label == "ade"][:adverse],
        *[r for r in every if r.label != "ade"][:others],
    ]


def flipped(records):
    """The same texts with the labels exchanged."""
    other = {"ade": "no-ade", "no-ade": "ade"}
    return [replace(record, label=other[record.label]) for record in records]


def guess_shares(values, prior):
    start = _start(prior)
    return _guess(values, prior, start, _first_slope(prior, start))


RECORDS = with_shares(26, 6)
PLAIN = sgd(max_grad_norm=None)
PRIOR = prior_of({"h": RECORDS}, PLAIN)


@pytest.fixture(scope="module")
def step():
    return moved(PRIOR, RECORDS, dropout=False)


def test_counts_of_one_step_to_within_five_percent(step):
    guess = guess_shares(step, PRIOR)
    truth = label_shares(RECORDS, PRIOR)
    assert truth is not None and truth.tolist() == [26 / 32, 6 / 32]
    assert np.abs(guess - [26 / 32, 6 / 32]).max() <= 0.05
    finding = label_counts(view_of((["h"], step)), PRIOR)
    assert finding.succeeded and finding.value == pytest.approx(1 - abs(guess[0] - 26 / 32))
    assert finding.samples == 32 and finding.details["commonest_right"] == 1.0


def test_other_labels_give_another_guess(step):
    """The guess follows the labels that were trained on, not the texts."""
    exchanged = moved(PRIOR, flipped(RECORDS), dropout=False)
    finding = label_counts(view_of((["h"], exchanged)), PRIOR)
    assert finding.value is not None and finding.value < finding.chance and not finding.succeeded
    assert np.allclose(guess_shares(exchanged, PRIOR), guess_shares(step, PRIOR)[::-1], atol=0.05)


@pytest.mark.parametrize("training", [adamw(), sgd()], ids=["adamw", "clipped"])
def test_what_loses_the_scale_still_tells_the_order(training):
    """AdamW divides by the gradient's size, and so does clipping."""
    for adverse, others in ((5, 27), (27, 5)):
        records = with_shares(adverse, others)
        prior = prior_of({"h": records}, training, epochs=2)
        guess = guess_shares(moved(prior, records, epochs=2), prior)
        assert guess.argmax() == np.argmax([adverse, others])


def test_shares_of_tags():
    records = hospital(0, 16, "ner")
    task = ner_task()
    prior = prior_of({"h": records}, PLAIN, task=task, public=outsiders("ner", 32))
    finding = label_counts(view_of((["h"], moved(prior, records, dropout=False))), prior)
    assert finding.value is not None and finding.value > 0.9
    assert finding.details["commonest_right"] == 1.0


def test_without_public_records_one_step_of_sgd_is_assumed(step):
    prior = replace(PRIOR, outsiders=())
    assert guess_shares(step, prior).argmax() == 0
    finding = label_counts(view_of((["h"], step)), prior)
    assert finding.chance == pytest.approx(1 - (26 / 32 - 1 / 2))  # both labels alike


def test_of_a_sum_it_is_the_sums_share(step):
    others = with_shares(6, 26)
    prior = prior_of({"h": RECORDS, "other": others}, PLAIN)
    mean = {
        n: (v + w) / 2
        for (n, v), w in zip(
            step.items(), moved(prior, others, dropout=False).values(), strict=True
        )
    }
    finding = label_counts(view_of((["h", "other"], mean)), prior)
    assert finding.target == "the sum of 2" and finding.samples == 64
    assert finding.details["worst_error"] < 0.1


def test_no_head_and_no_labels_are_no_result(step):
    body = {n: v for n, v in step.items() if not n.startswith("classifier")}
    finding = label_counts(view_of((["h"], body)), PRIOR)
    assert finding.value is None and finding.note
    ranking = replace(PRIOR, task=replace(PRIOR.task, kind="regression", labels=()))
    assert label_counts(view_of((["h"], step)), ranking).value is None


def test_the_gate_needs_a_working_attack_and_a_silent_null(step, monkeypatch):
    seen = view_of((["h"], step))
    control = label_counts(seen, PRIOR)
    for seed in range(5):  # with two classes, shuffled biases are often the very same
        null = label_counts(permuted(seen, seed), PRIOR)
        assert null.value is not None and not null.succeeded
    assert AuditTrial(control, null, null).verdict is Verdict.HOLDS
    monkeypatch.setattr(attack, "_guess", lambda *given: np.array([0.5, 0.5]))
    broken = label_counts(seen, PRIOR)
    assert AuditTrial(broken, broken, null).verdict is Verdict.INCONCLUSIVE
