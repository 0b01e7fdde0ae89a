"""Federated dropout: sub-models that are right in expectation, sums that lose nothing."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl import FedAvg
from secure_fl.algorithms.baselines.feddropout import Cut, DrawnUnits, UnsentParts, draw, shrink
from secure_fl.algorithms.baselines.settings import FedDropout
from secure_fl.learning.anatomy import encoder_layers, freeze_embeddings, trainable
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TrainingSettings
from secure_fl.testing.harness import federate
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.fedkd_runs import site_of
from tests.support.saved_models import save_family

HEADS, WIDTH, INNER = 4, 16, 6


def bert(layers: int = 1) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=32,
        )
    ).eval()


def tokens() -> dict[str, Any]:
    ids = torch.arange(1, 25).reshape(3, 8)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def test_the_mean_sub_model_is_the_whole_feed_forward_block() -> None:
    """Over all subsets of a size, the mean output of what uses the units is the whole model's."""
    model, x = bert(), torch.randn(5, WIDTH)
    layer: Any = encoder_layers(model)[0]
    name = "bert.encoder.layer.0"
    outputs = []
    for kept in combinations(range(INNER), 4):
        rows, columns = Cut(0, torch.tensor(kept)), Cut(1, torch.tensor(kept))
        made, used = f"{name}.intermediate.dense", f"{name}.output.dense"
        cuts = {f"{made}.weight": rows, f"{made}.bias": rows, f"{used}.weight": columns}
        part: Any = encoder_layers(shrink(model, DrawnUnits(cuts, {used: INNER / 4})))[0]
        outputs.append(part.output.dense(part.intermediate(x)))
    whole = layer.output.dense(layer.intermediate(x))
    torch.testing.assert_close(torch.stack(outputs).mean(0), whole, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_the_mean_sub_model_is_the_whole_attention() -> None:
    model, x = bert(), torch.randn(2, 5, WIDTH)
    layer: Any = encoder_layers(model)[0]
    found: dict[tuple[int, ...], Any] = {}
    for seed in range(200):  # draws meet all six pairs of heads
        units = draw(model, 0.5, seed)
        kept = tuple(units.cuts["bert.encoder.layer.0.attention.output.dense.weight"].kept.tolist())
        attention = encoder_layers(shrink(model, units))[0].attention
        found[kept] = attention.output.dense(attention.self(x)[0])  # type: ignore[union-attr, operator]
    size = WIDTH // HEADS
    pairs = combinations(range(HEADS), 2)
    assert set(found) == {tuple(h * size + i for h in p for i in range(size)) for p in pairs}
    whole = layer.attention.output.dense(layer.attention.self(x)[0])
    torch.testing.assert_close(torch.stack([*found.values()]).mean(0), whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert"])
def test_every_family_gets_smaller(family: str, tmp_path: Path) -> None:
    site = site_of(silos()[0], save_family(tmp_path, family))
    model = site.model()
    part = shrink(model, draw(model, 0.5, seed=0))
    assert type(part) is type(model)
    for full, less in zip(encoder_layers(model), encoder_layers(part), strict=True):
        sizes = [sum(p.numel() for p in m.parameters() if p.dim() == 2) for m in (full, less)]
        assert sizes[1] * 2 == sizes[0]
    out = site.task.forward(part.train(), site.train.batch(range(3)))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in trainable(part).values())


def test_keeping_all_changes_nothing() -> None:
    model = bert(2)
    same = shrink(model, draw(model, 1.0, seed=3))
    torch.testing.assert_close(same(**tokens()).logits, model(**tokens()).logits)
    a, b = (small(a).run() for a in (FedAvg(rounds=2), FedDropout(rounds=2, keep=1.0)))
    assert equal(weights(a), weights(b))


def test_training_a_sub_model_leaves_the_model_alone() -> None:
    model = bert()
    freeze_embeddings(model)
    before = {n: w.clone() for n, w in model.state_dict().items()}
    part = shrink(model, draw(model, 0.6, seed=1))
    with torch.no_grad():
        for weight in trainable(part).values():
            weight.add_(1.0)
    assert all(torch.equal(before[n], w) for n, w in model.state_dict().items())
    shared = dict(part.named_parameters()).keys() - trainable(part).keys()
    own, theirs = dict(model.named_parameters()), dict(part.named_parameters())
    assert shared and all(own[n] is theirs[n] for n in shared)  # a vocabulary is not copied


@pytest.mark.filterwarnings("ignore:Full backward hook")  # the embeddings are frozen
def test_per_sample_gradients_see_the_scaling() -> None:
    from opacus import GradSampleModule

    model = bert()
    freeze_embeddings(model)
    units = draw(model, 0.5, seed=1)
    plain, private = (
        shrink(model, units).train(),
        GradSampleModule(shrink(model, units).train(), loss_reduction="sum"),
    )
    for module in (plain, private):
        for dropout in module.modules():
            if isinstance(dropout, nn.Dropout):
                dropout.p = 0.0
        module(**tokens()).logits.square().sum().backward()
    for expected, found in zip(plain.parameters(), private.parameters(), strict=True):
        if expected.requires_grad:
            per_sample = found.grad_sample.sum(0)
            torch.testing.assert_close(per_sample, expected.grad, atol=1e-5, rtol=1e-4)


def test_draws_depend_on_the_seed_only_and_differ() -> None:
    first, again, other = (draw(bert(3), 0.5, seed) for seed in (7, 7, 8))

    def kept(units: DrawnUnits) -> list[list[int]]:
        return [cut.kept.tolist() for cut in units.cuts.values()]

    assert kept(first) == kept(again) != kept(other)
    assert len({str(k) for k in kept(first)}) > 3  # nor do all layers keep the same
    assert [len(k) for k in kept(first)] == [len(k) for k in kept(other)]


def test_units_that_are_not_drawn_stay_where_they_are() -> None:
    settings = ModelSettings(layers=2)
    start = small(FedDropout(rounds=1, keep=0.6), model=settings)
    moved = {n: w.detach() for n, w in trainable(start.run().model).items()}
    fresh = site_of(silos()[0], settings).model()
    units = draw(fresh, 0.6, seed_for(0, "feddropout", 1))
    for name, weight in trainable(fresh).items():
        still = moved[name] == weight.detach()
        if name in units.cuts:
            cut = units.cuts[name]
            out = torch.ones(weight.shape[cut.axis], dtype=torch.bool)
            out[cut.kept] = False
            assert still.index_select(cut.axis, out.nonzero().flatten()).all()
            still = still.index_select(cut.axis, cut.kept)
        assert still.float().mean() < 0.2 or name.endswith("key.bias")


@pytest.mark.parametrize("mode", ["none", "secagg"])
def test_nothing_is_lost_to_rounding(mode: Any) -> None:
    """What was summed over rounds, and what waits at the parties, is all that was to be sent."""
    model, rounds, names = bert(), 6, ("a", "b", "c")
    whole = {n: w.detach() for n, w in trainable(model).items() if w.numel() > 8}
    rng = np.random.default_rng(0)
    records = {"a": 3.0, "b": 5.0, "c": 2.0}
    updates = {
        (p, r): {n: torch.from_numpy(rng.normal(size=w.shape)).float() for n, w in whole.items()}
        for p in names
        for r in range(rounds)
    }

    def parts(units: DrawnUnits, update: dict[str, Any]) -> dict[str, Any]:
        return {n: units.cuts[n].of(u) for n, u in update.items() if n in units.cuts}

    def program(party: str) -> Any:
        async def run(cohort: Cohort) -> Any:
            unsent, arrived, n = UnsentParts(), _zeros(whole), records[party]
            for r in range(rounds):
                units = draw(model, 0.5, r)
                Δ = unsent.join(parts(units, updates[party, r]), units)
                sums = await cohort.sum({k: n * v for k, v in Δ.items()}, carry=True)
                unsent.collect(cohort, units, whole, n)
                for k, v in sums.items():
                    units.cuts[k].add_(arrived[k], torch.from_numpy(v))
            return arrived, {k: n * v for k, v in unsent.state_dict().items()}

        return run

    results = federate({p: program(p) for p in names}, mode=mode, bits=8).results
    planned = _zeros(whole)
    for (party, r), update in updates.items():
        units = draw(model, 0.5, r)
        for k, v in parts(units, update).items():
            units.cuts[k].add_(planned[k], records[party] * v)
    waiting = [results[p][1] for p in names]
    assert all(bool(w) == (mode != "none") for w in waiting)
    for name in whole.keys() & draw(model, 0.5, 0).cuts.keys():
        left = sum((w[name] for w in waiting if name in w), torch.zeros_like(planned[name]))
        torch.testing.assert_close(results["a"][0][name] + left, planned[name], atol=1e-3, rtol=0)


def _zeros(whole: dict[str, Any]) -> dict[str, Any]:
    return {n: torch.zeros_like(w) for n, w in whole.items()}


# A tiny model fills few ciphertexts, the last of each sum in part only; scores are as large.
def test_bytes_shrink_with_the_sub_model() -> None:
    model = site_of(silos()[0], ModelSettings(layers=2)).model()
    part = shrink(model, draw(model, 0.5, 0))
    full, less = (sum(w.numel() for w in trainable(m).values()) for m in (model, part))
    training = TrainingSettings(pooled_scores=False, device="cpu")  # scores would be as large
    sent = [
        small(a, model=ModelSettings(layers=2), training=training).run().document["bytes"]
        for a in (FedAvg(rounds=2), FedDropout(rounds=2, keep=0.5))
    ]
    for way in ("up", "down"):
        before, after = (found["hospital-1"][way] for found in sent)
        assert after / before == pytest.approx(less / full, rel=0.02)
