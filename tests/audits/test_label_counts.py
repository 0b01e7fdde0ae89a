"""Shares of labels, out of the output layer's move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secure_fl import TaskSettings
from secure_fl.audits import suite
from secure_fl.audits.attacks import label_counts as attack
from secure_fl.audits.attacks import simulated_training
from secure_fl.audits.attacks.label_counts import (
    _first_slope,
    _guess,
    _start,
    label_counts,
    label_shares,
)
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import Verdict
from secure_fl.config.load import loads
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Text
from secure_fl.federation.federation import Federation
from secure_fl.learning.tasks import make_task
from tests.support.audited_runs import settings_text
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
    start = _start(prior, ("classifier.weight", "classifier.bias"))
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
    other = moved(prior, others, dropout=False)
    mean = {name: (value + other[name]) / 2 for name, value in step.items()}
    finding = label_counts(view_of((["h", "other"], mean)), prior)
    assert finding.target == "the sum of 2" and finding.samples == 64
    assert finding.details["worst_error"] < 0.1


CODES = make_task(TaskSettings(kind="multilabel", labels=LABELS, max_length=32))


def codes_of(record):
    assert isinstance(record, Text) and isinstance(record.label, tuple)
    return record.label


def coded(training, epochs=1):
    """A hospital whose notes often have the fifth code, and seldom the first."""
    every = [r for k in range(5) for r in hospital(k, corpus="codes")]
    common = [r for r in every if "N17" in codes_of(r)][:24]
    records = [*common, *[r for r in every if not codes_of(r)][:8]]
    known = {"h": records}
    return prior_of(known, training, task=CODES, public=outsiders("codes"), epochs=epochs), records


def test_shares_of_several_labels_of_one_step():
    prior, records = coded(PLAIN)
    truth = label_shares(records, prior)
    assert truth is not None
    assert truth.tolist() == [np.mean([name in codes_of(r) for r in records]) for name in LABELS]
    step = moved(prior, records, dropout=False)
    guess = guess_shares(step, prior)
    assert np.abs(guess - truth).max() <= 0.05 and guess.sum() > 1
    finding = label_counts(view_of((["h"], step)), prior)
    assert finding.succeeded and finding.details["commonest_right"] == 1.0
    assert finding.value is not None and finding.chance < finding.threshold < finding.value
    for seed in range(5):
        assert not label_counts(permuted(view_of((["h"], step)), seed), prior).succeeded


def test_the_usual_training_shows_which_of_several_labels_is_commonest():
    prior, records = coded(adamw(), epochs=2)
    step = moved(prior, records, epochs=2)
    guess = guess_shares(step, prior)
    assert LABELS[guess.argmax()] == "N17"


def test_simulations_have_the_shares_of_labels_that_were_asked_for():
    prior, _ = coded(PLAIN)
    public = label_shares(prior.outsiders, prior)
    assert public is not None
    asked = np.where(np.array(LABELS) == "G40", 0.8, public)
    drawn = label_shares(simulated_training.drawn(prior, asked, "test"), prior)
    assert drawn is not None and np.abs(drawn - asked).max() < 0.12


def test_the_number_of_records_that_was_read_sets_the_scale():
    """Two steps on half of the public records, and not four."""
    training = sgd(max_grad_norm=None, batch_size=16)
    prior, records = coded(training)
    step = moved(prior, records, dropout=False)
    known = label_counts(view_of((["h"], step | {"records": np.array([32.0])})), prior)
    guessed = label_counts(view_of((["h"], step)), prior)
    assert known.value is not None and guessed.value is not None
    assert known.value > 0.97 > guessed.value


@pytest.mark.parametrize(
    ("mode", "verdict"), [("none", Verdict.LEAKS), ("he+secagg", Verdict.HOLDS)]
)
def test_a_run_with_several_labels_leaks_their_shares_unless_its_sums_are_sealed(
    tmp_path, mode, verdict
):
    text = settings_text(kind="multilabel", corpus="codes", size=48, frozen="false", mode=mode)
    plain = text.replace("learning_rate = 1e-3", 'optimizer = "sgd"\nlearning_rate = 0.1')
    Federation.of(loads(plain), tmp_path / "run").run()
    audited = AuditedRun(tmp_path / "run")
    attack = suite.RECONSTRUCTION["label counts"]
    trials = suite.reconstruction_trials(attack, audited.evidence, audited.prior)
    assert {trial.role: trial.verdict for trial in trials}["coordinator"] is verdict


def test_no_head_and_no_labels_are_no_result(step):
    body = {n: v for n, v in step.items() if not n.startswith("classifier")}
    finding = label_counts(view_of((["h"], body)), PRIOR)
    assert finding.value is None and finding.note
    ranking = replace(PRIOR, task=replace(PRIOR.task, kind="regression", labels=()))
    assert label_counts(view_of((["h"], step)), ranking).value is None


def test_a_null_is_silent_and_a_broken_attack_fails(step, monkeypatch):
    seen = view_of((["h"], step))
    for seed in range(5):  # with two classes, shuffled biases are often the very same
        null = label_counts(permuted(seen, seed), PRIOR)
        assert null.value is not None and not null.succeeded
    monkeypatch.setattr(attack, "_guess", lambda *given: np.array([0.5, 0.5]))
    assert not label_counts(seen, PRIOR).succeeded
