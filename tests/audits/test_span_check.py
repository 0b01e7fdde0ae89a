"""Tokens of a text, out of the span of the first attention layer's update (DAGER)."""

from __future__ import annotations

import numpy as np
import pytest

from secure_fl.audits.attacks import span_check as attack
from secure_fl.audits.attacks.guess_scores import sequences, tokens
from secure_fl.audits.attacks.layer_inputs import (
    Inputs,
    InputSpan,
    attention_names,
    distances,
    inputs_of,
    span_of,
)
from secure_fl.audits.attacks.simulated_training import best_case
from secure_fl.audits.attacks.span_check import FULL, guess_texts, span_check
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

ONE = hospital()[:1]
PRIOR = prior_of({"h": ONE}, sgd())


@pytest.fixture(scope="module")
def step():
    """One step of plain SGD with weight decay on one sentence."""
    return moved(PRIOR, ONE, dropout=False)


def test_one_sentence_word_for_word(step):
    finding = span_check(view_of((["h"], step)), PRIOR)
    assert (finding.value, finding.details["precision"]) == (1.0, 1.0) and finding.succeeded
    assert (finding.details["rouge_1"], finding.details["rouge_2"]) == (1.0, 1.0)
    (row,) = sequences(ONE, PRIOR)
    assert guess_texts(step, PRIOR).texts == (row[1:-1],)


def test_the_attention_of_one_layer_suffices_without_embeddings(step):
    first = attention_names(PRIOR.model())
    assert not any("embeddings" in name for name in step)  # they are frozen, and never sent
    finding = span_check(view_of((["h"], {name: step[name] for name in first[2:]})), PRIOR)
    assert finding.value == 1.0


def test_a_right_factor_spans_the_same():
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 20)))[0]
    plain = prior_of({"h": ONE}, sgd(weight_decay=0.0))
    names = attention_names(plain.model())
    B = {n: Q.T @ v for n, v in moved(plain, ONE, dropout=False).items() if n in names}
    finding = span_check(view_of((["h"], {f"{n}|B": v for n, v in B.items()})), plain)
    assert finding.value is not None and finding.value >= 0.9


def test_dropout_blurs_the_inputs_and_hides_little():
    finding = [
        span_check(view_of((["h"], moved(PRIOR, ONE, seed=seed))), PRIOR) for seed in range(3)
    ]
    recalls = [f.value for f in finding if f.value is not None]
    assert len(recalls) == 3 and np.mean(recalls) > 0.7


def test_four_sentences_in_one_step():
    records = hospital()[:4]
    prior = prior_of({"h": records}, sgd(weight_decay=0.0))
    finding = span_check(view_of((["h"], moved(prior, records, dropout=False))), prior)
    assert finding.value is not None and finding.value >= 0.9 and finding.succeeded
    assert finding.details["precision"] >= 0.9
    assert finding.details["rank"] < 64


def test_sentences_of_a_tagger():
    records = hospital(0, 16, "ner")[:2]
    prior = prior_of({"h": records}, sgd(), task=ner_task(), public=())
    finding = span_check(view_of((["h"], moved(prior, records, dropout=False))), prior)
    assert finding.value is not None and finding.value >= 0.9


def test_adamw_over_epochs_is_beyond_it():
    """A limit of the attack, not a protection: nobody may call such updates safe for it."""
    records = hospital()
    prior = prior_of({"h": records}, adamw(), epochs=3)
    finding = span_check(view_of((["h"], moved(prior, records, epochs=3))), prior)
    assert finding.value is not None and finding.value < 0.05


def test_as_many_tokens_as_columns_leave_nothing_to_distinguish():
    rng = np.random.default_rng(0)
    # 70 inputs in 64 columns, of falling weight, so that no spectrum of noise is in sight.
    X, C = rng.normal(size=(70, 64)), rng.normal(size=(64, 70)) * np.logspace(0, -8, 70)
    name = attention_names(PRIOR.model())[0]
    finding = span_check(view_of((["h"], {name: C @ X})), PRIOR)
    assert (finding.value, finding.note) == (0.0, FULL)


def test_rank_is_that_of_the_signal_above_rounding():
    rng = np.random.default_rng(0)
    for rank, rows in ((11, 192), (41, 192), (2, 64)):
        G = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, 64))
        noisy = G + 1e-3 * rng.normal(size=G.shape)
        assert span_of({"W": noisy}, {}, 0.0).shape == (64, rank)
    noise = rng.normal(size=(192, 64))
    assert span_of({"W": noise}, {}, 0.0).shape == (64, 0)


def test_nothing_readable_is_no_result():
    finding = span_check(view_of((["h"], {"classifier.bias": np.zeros(2)})), PRIOR)
    assert finding.value is None and finding.note


def test_distances_equal_those_of_inputs_written_out():
    inputs = inputs_of(PRIOR.model())
    assert inputs is not None
    for width in (5, 50):  # the two ways of computing them
        basis = np.linalg.qr(np.random.default_rng(width).normal(size=(64, width)))[0]
        fast = distances(inputs, InputSpan(basis), range(3, 6))
        for place in range(3):
            x = inputs.rows(np.arange(len(inputs.words)), place + 3)
            outside = x - x @ basis @ basis.T
            slow = (outside**2).sum(1) / (x**2).sum(1)
            assert np.allclose(fast[place], slow, atol=1e-9)


def test_inputs_are_those_of_the_first_layer():
    import torch

    model = PRIOR.model().eval()
    ids = torch.tensor([[2, 100, 200, 3]])
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[0][0].numpy()
    inputs = inputs_of(model)
    assert isinstance(inputs, Inputs)
    assert np.allclose(inputs.rows(ids[0].numpy(), np.arange(4)), hidden, atol=1e-5)


def test_a_null_is_silent_and_a_broken_attack_fails(step, monkeypatch):
    seen = view_of((["h"], step))
    assert span_check(permuted(seen), PRIOR).value == 0.0
    nothing = attack.Guess((), (), 0)
    monkeypatch.setattr(attack, "guess_texts", lambda values, prior: nothing)
    assert not span_check(seen, PRIOR).succeeded


def test_the_best_case_is_a_control_where_training_itself_is_beyond_the_attack():
    view, prior = best_case(prior_of({"h": hospital()}, adamw(), epochs=3))
    finding = span_check(view, prior)
    assert (finding.value, finding.samples) == (1.0, len(tokens(outsiders()[:1], prior)))
    assert finding.succeeded and not span_check(permuted(view), prior).succeeded
    assert outsiders()[0] not in prior.outsiders  # the truth is not known beforehand
