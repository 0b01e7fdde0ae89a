"""Words of a party, out of the rows of its embedding's update."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secure_fl.algorithms.fedkd.lowrank import factorise
from secure_fl.audits.attacks import token_bag as attack
from secure_fl.audits.attacks.guess_scores import tokens
from secure_fl.audits.attacks.token_bag import entity_shares, entity_words, guess_tokens, token_bag
from secure_fl.audits.document import ENTITIES
from secure_fl.data.examples import Tagged
from secure_fl.learning.tasks import make_task
from secure_fl.settings import TaskSettings
from tests.support.readings import (
    EMBEDDING,
    adamw,
    hospital,
    moved,
    ner_task,
    outsiders,
    permuted,
    prior_of,
    view_of,
)

PARTIES = {f"hospital-{k}": hospital(k)[:16] for k in range(5)}
PRIOR = prior_of(PARTIES, adamw(), frozen=False, epochs=2)


@pytest.fixture(scope="module")
def moves():
    """What each of five hospitals' AdamW training does to the embedding."""
    finding = {}
    for name, records in PARTIES.items():
        Δ = moved(PRIOR, records, frozen=False, epochs=2)
        finding[name] = {EMBEDDING: Δ[EMBEDDING]}
    return finding


def test_every_word_of_a_plain_update_and_no_other(moves):
    name = "hospital-0"
    truth = tokens(PARTIES[name], PRIOR)
    # Weight decay moves nearly all rows: without subtracting it, the guess is the vocabulary.
    assert np.any(moves[name][EMBEDDING], axis=1).sum() > 5 * len(truth)
    finding = token_bag(view_of(([name], moves[name])), PRIOR)
    assert guess_tokens(moves[name], PRIOR) == truth
    assert finding.value == finding.details["precision"] == finding.details["recall"] == 1.0
    assert finding.succeeded and finding.target == name and finding.samples == len(truth)
    assert finding.evidence == ("wire/0",)


def test_one_truncated_factor_is_enough(moves):
    G = torch.from_numpy(moves["hospital-0"][EMBEDDING])
    U, _, _ = factorise(G, 1e-9, 1, torch.Generator().manual_seed(0))
    assert U.shape == (len(G), 1)
    finding = token_bag(view_of((["hospital-0"], {f"{EMBEDDING}|U": U.numpy()})), PRIOR)
    assert finding.details["precision"] >= 0.98 and finding.details["recall"] >= 0.98


@pytest.mark.parametrize("named", [EMBEDDING, f"{EMBEDDING}|Y", "probed"])
def test_a_random_projection_keeps_the_rows(moves, named):
    Ω = np.random.default_rng(0).normal(size=(64, 6)) / 8
    Y = moves["hospital-0"][EMBEDDING] @ Ω
    finding = token_bag(view_of((["hospital-0"], {named: Y})), PRIOR)
    assert finding.details["precision"] >= 0.98 and finding.details["recall"] >= 0.98


def test_a_sum_gives_the_union_and_says_so(moves):
    mean = np.stack([values[EMBEDDING] for values in moves.values()]).mean(0)
    finding = token_bag(view_of((list(PARTIES), {EMBEDDING: mean})), PRIOR)
    union = frozenset().union(*(tokens(records, PRIOR) for records in PARTIES.values()))
    assert (finding.value, finding.samples, finding.target) == (1.0, len(union), "the sum of 5")
    assert finding.note


@pytest.mark.parametrize("bits", [8, 16])
def test_rounding_to_a_grid_does_not_hide_words(moves, bits):
    Δ = moves["hospital-0"][EMBEDDING].astype(np.float64)
    step = np.abs(Δ).max() / (2 ** (bits - 1) - 1)
    noise = np.random.default_rng(0).random(Δ.shape)
    rounded = {EMBEDDING: step * np.floor(Δ / step + noise)}
    finding = token_bag(view_of((["hospital-0"], rounded)), PRIOR)
    assert finding.value is not None and finding.value > 0.98


def test_noise_on_every_row_does(moves):
    Δ = moves["hospital-0"][EMBEDDING]
    noise = np.random.default_rng(0).normal(size=Δ.shape) * np.abs(Δ).max()
    finding = token_bag(view_of((["hospital-0"], {EMBEDDING: Δ + noise})), PRIOR)
    assert finding.value is not None and finding.value < 0.1 and not finding.succeeded


def test_single_parties_of_the_earliest_round_come_first(moves):
    first = view_of(*(([name], moves[name]) for name in ("hospital-0", "hospital-1")))
    mean = (moves["hospital-0"][EMBEDDING] + moves["hospital-1"][EMBEDDING]) / 2
    later = view_of((["hospital-2"], moves["hospital-2"]), round=2)
    summed = view_of((["hospital-0", "hospital-1"], {EMBEDDING: mean}))
    every = (*later.readings, *summed.readings, *first.readings)
    finding = token_bag(type(first)("coordinator", every), PRIOR)
    assert finding.target == "2 hospitals, each separately" and finding.details["round"] == 1
    assert finding.samples == sum(len(tokens(PARTIES[f"hospital-{k}"], PRIOR)) for k in (0, 1))


def test_frozen_embeddings_leave_nothing_to_read():
    prior = prior_of({"h": hospital()[:2]}, adamw())
    finding = token_bag(view_of((["h"], moved(prior, hospital()[:2]))), prior)
    assert finding.value is None and finding.note
    assert guess_tokens({}, prior) == frozenset()


def test_a_null_is_silent_and_a_broken_attack_fails(moves, monkeypatch):
    seen = view_of((["hospital-0"], moves["hospital-0"]))
    null = token_bag(permuted(seen), PRIOR)
    assert null.value is not None and null.value <= null.chance < null.threshold
    monkeypatch.setattr(attack, "guess_tokens", lambda values, prior: frozenset())
    assert token_bag(seen, PRIOR).value == 0.0


def test_the_words_of_entities_are_counted_by_type():
    """A word has several pieces, and its tag stands at the first; what is unlabelled has none."""
    sentences = (
        Tagged("a", ("Zyqwertol", "caused", "a", "rash"), ("B-Drug", "O", "O", "B-Effect")),
        Tagged("b", ("dry", "mouth", "again"), ("B-Effect", "I-Effect", "O")),
        Tagged("c", ("Aspirin",), None),
    )
    task = make_task(TaskSettings(kind="ner", labels=("Drug", "Effect"), max_length=32))
    prior = prior_of({"a": sentences}, adamw(), task=task)

    def pieces(text: str) -> set[int]:
        return set(prior.tokenizer(text, add_special_tokens=False)["input_ids"])

    drug, effect = pieces("Zyqwertol"), pieces("rash dry mouth")
    assert len(drug) > 1
    assert entity_words(sentences, prior) == {"Drug": drug, "Effect": effect}
    guess = drug | pieces("rash caused")
    share = len(pieces("rash")) / len(effect)
    assert entity_shares(guess, sentences, prior) == {ENTITIES: {"Drug": 1.0, "Effect": share}}
    assert entity_shares(guess, PARTIES["hospital-0"], PRIOR) == {}  # notes without entities


def test_entities_that_a_plain_update_gives_away_are_told_by_type():
    """Hospitals with types of their own; one that has a type counts for it, others do not."""
    parties = {f"hospital-{k}": hospital(k, 16, "ner") for k in range(3)}
    prior = prior_of(parties, adamw(), frozen=False, task=ner_task(), public=outsiders("ner"))
    moves = [
        ([name], {EMBEDDING: moved(prior, records, frozen=False)[EMBEDDING]})
        for name, records in parties.items()
    ]
    finding = token_bag(view_of(*moves), prior)
    types = {t[2:] for one in parties.values() for e in one if isinstance(e, Tagged)
             for t in e.tags or () if t != "O"}  # fmt: skip
    assert set(finding.details[ENTITIES]) == types and len(types) > 1
    assert all(share > 0.9 for share in finding.details[ENTITIES].values())
    hidden = token_bag(permuted(view_of(*moves)), prior)
    assert max(hidden.details[ENTITIES].values()) < 0.5
