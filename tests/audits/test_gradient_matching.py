"""Words of one record, found by matching its gradient (TAG, LAMP)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secure_fl.audits.attacks import gradient_matching as attack
from secure_fl.audits.attacks.gradient_matching import gradient_matching, guess_words
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Text
from secure_fl.learning.tasks import make_task
from secure_fl.settings import TaskSettings
from tests.support.readings import hospital, moved, outsiders, permuted, prior_of, sgd, view_of

RECORD = hospital()[3:4]  # five words
PRIOR = prior_of({"h": RECORD}, sgd(weight_decay=0.0))


@pytest.fixture(scope="module")
def step():
    return moved(PRIOR, RECORD, dropout=False)


@pytest.fixture(scope="module")
def control(step):
    return gradient_matching(view_of((["h"], step)), PRIOR)


def test_a_short_record_far_beyond_chance(control):
    assert control.value is not None and control.value >= 0.8
    assert control.succeeded and control.value > control.chance + 0.4
    assert control.samples == 5 and control.evidence == ("wire/0",)


def test_a_record_with_several_labels_far_beyond_chance():
    """The signs of the bias' moves are its labels."""
    record = (Text("1", "Pmh gout; known asthma.", label=("M10", "J45")),)
    task = make_task(TaskSettings(kind="multilabel", labels=LABELS, max_length=32))
    prior = prior_of({"h": record}, sgd(weight_decay=0.0), task=task, public=outsiders("codes"))
    values = moved(prior, record, dropout=False)
    (bias,) = (b for b in values.values() if b.shape == (len(LABELS),))
    assert {LABELS[k] for k in np.flatnonzero(bias > 0)} == {"M10", "J45"}
    finding = gradient_matching(view_of((["h"], values)), prior)
    assert finding.succeeded and (finding.value or 0.0) > finding.chance + 0.2


def with_noise(step, times):
    """Gaussian noise on each tensor, of so many times its norm."""
    rng, noisy = np.random.default_rng(0), {}
    for name, δ in step.items():
        noise = rng.normal(size=δ.shape)
        noisy[name] = δ + times * noise * np.linalg.norm(δ) / np.linalg.norm(noise)
    return noisy


def test_noise_of_the_same_norm_is_far_too_little(step):
    """A text has few degrees of freedom and a gradient many: the noise averages out."""
    finding = gradient_matching(view_of((["h"], with_noise(step, 1.0))), PRIOR)
    assert finding.succeeded


def test_much_noise_hides_it(step):
    finding = gradient_matching(view_of((["h"], with_noise(step, 100.0))), PRIOR)
    assert finding.value is not None and finding.value <= finding.chance + 0.2
    assert not finding.succeeded


def test_a_null_is_silent_and_a_broken_attack_fails(step, monkeypatch):
    seen = view_of((["h"], step))
    null = gradient_matching(permuted(seen), PRIOR)
    assert null.value is not None and not null.succeeded
    monkeypatch.setattr(attack, "guess_words", lambda values, prior: ())
    assert not gradient_matching(seen, PRIOR).succeeded


def test_same_seed_same_words_and_the_process_is_left_alone(step, monkeypatch):
    monkeypatch.setattr(attack, "STEPS", 2)
    monkeypatch.setattr(attack, "SWEEPS", 0)
    before = torch.get_rng_state()
    assert guess_words(step, PRIOR) == guess_words(step, PRIOR)
    assert torch.equal(before, torch.get_rng_state())


def test_without_the_encoder_there_is_nothing_to_match(step):
    only_head = {n: v for n, v in step.items() if n == "classifier.bias"}
    finding = gradient_matching(view_of((["h"], only_head)), PRIOR)
    assert finding.value is None and finding.note
    assert guess_words(only_head, PRIOR) == ()
