"""Federated dropout: sub-models that are right in expectation, sums that lose nothing."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl import FedAvg, Silo
from secure_fl.algorithms.baselines.feddropout import (
    Cut,
    DrawnUnits,
    UnsentParts,
    draw,
    move_,
    shrink,
)
from secure_fl.algorithms.baselines.settings import FedDropout
from secure_fl.config import load as config
from secure_fl.errors import ModelError, SettingsError
from secure_fl.events import Event, TrainingProgress
from secure_fl.learning.anatomy import encoder_layers, freeze_embeddings, trainable
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, Protection, TrainingSettings
from secure_fl.testing.harness import federate
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.killing import Killed, kill_when, within
from tests.support.raising import raises

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


def relative(name: str) -> Any:
    """A small model of another family."""
    import transformers as t

    shape: dict[str, Any] = {"vocab_size": 50, "max_position_embeddings": 40, "pad_token_id": 0}
    if name == "distilbert":
        cut = {"dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": INNER}
        return t.DistilBertForSequenceClassification(t.DistilBertConfig(**shape, **cut))
    shape |= {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape |= {"intermediate_size": INNER}
    if name == "electra":
        return t.ElectraForSequenceClassification(t.ElectraConfig(**shape, embedding_size=8))
    return t.RobertaForSequenceClassification(t.RobertaConfig(**shape))


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
def test_every_family_gets_really_smaller(family: str) -> None:
    model = bert(2) if family == "bert" else relative(family)
    freeze_embeddings(model)
    part = shrink(model, draw(model, 0.5, seed=0))
    assert type(part) is type(model)
    for whole, cut in zip(encoder_layers(model), encoder_layers(part), strict=True):
        sizes = [sum(p.numel() for p in m.parameters() if p.dim() == 2) for m in (whole, cut)]
        assert sizes[1] * 2 == sizes[0]
    out = part.train()(**tokens()).logits
    assert out.isfinite().all()
    out.sum().backward()
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
    fresh = _fresh(settings)
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


def _fresh(settings: ModelSettings) -> Any:
    from secure_fl.learning.models import load_model, load_tokenizer
    from secure_fl.learning.tasks import KINDS
    from secure_fl.testing.hospitals import LABELS

    task = KINDS["classification"](kind="classification", labels=LABELS, max_length=32)
    return load_model(settings, task, load_tokenizer(settings), 0)


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


def test_parts_move_the_weights_they_were_cut_from() -> None:
    model = bert()
    units = draw(model, 0.5, 2)
    before = {n: w.detach().clone() for n, w in trainable(model).items()}
    ones = {n: torch.ones_like(w.detach()) for n, w in trainable(shrink(model, units)).items()}
    move_(model, units, ones)
    for name, weight in trainable(model).items():
        step = weight.detach() - before[name]
        expected = torch.zeros_like(step) if name in units.cuts else torch.ones_like(step)
        if name in units.cuts:
            axis, kept = units.cuts[name].axis, units.cuts[name].kept
            expected[(slice(None),) * axis + (kept,)] = 1.0
        torch.testing.assert_close(step, expected)


def test_resume_is_bit_for_bit(tmp_path: Path) -> None:
    mode: Protection = "he+secagg"  # what waits at a party must come back, too
    cfg = FedDropout(rounds=3)
    whole = small(cfg, mode).run()

    with pytest.raises(Killed):
        small(cfg, mode, folder=tmp_path / "run", listener=kill_when(within(2))).run()
    resumed = small(cfg, mode, folder=tmp_path / "run", resume=True).run()
    assert equal(weights(whole), weights(resumed))


def test_protection_changes_results_by_rounding_only() -> None:
    start = {n: w.detach() for n, w in trainable(_fresh(ModelSettings(layers=1))).items()}
    modes: tuple[Protection, ...] = ("none", "he+secagg")
    clear, sealed = (weights(small(FedDropout(rounds=2), mode).run()) for mode in modes)
    off = sum(float((clear[n] - sealed[n]).square().sum()) for n in clear)
    moved = sum(float((clear[n] - start[n]).square().sum()) for n in clear)
    assert (off / moved) ** 0.5 < 0.01


def test_it_learns() -> None:
    losses: dict[int, list[float]] = {}

    def listener(event: Event) -> None:
        if isinstance(event, TrainingProgress):
            losses.setdefault(event.round, []).append(event.loss)

    parties = [Silo(s.name, s.train[:16]) for s in silos()]
    small(FedDropout(rounds=10, epochs=8), silos=parties, listener=listener).run()
    assert np.mean(losses[9] + losses[10]) < np.mean(losses[1]) - 0.1


# A tiny model fills few ciphertexts, the last of each sum in part only; scores are as large.
@pytest.mark.parametrize(("mode", "slack"), [("none", 0.02), ("he+secagg", 0.1)])
def test_bytes_shrink_with_the_sub_model(mode: Any, slack: float) -> None:
    model = _fresh(ModelSettings(layers=2))
    sizes = [
        sum(w.numel() for w in trainable(m).values())
        for m in (model, shrink(model, draw(model, 0.5, 0)))
    ]
    settings = ModelSettings(layers=2)
    training = TrainingSettings(pooled_scores=False, device="cpu")
    whole, part = (
        small(a, mode, model=settings, training=training).run().document["bytes"]["hospital-1"]
        for a in (FedAvg(rounds=2), FedDropout(rounds=2, keep=0.5))
    )
    assert part["up"] / whole["up"] == pytest.approx(sizes[1] / sizes[0], rel=slack)
    assert part["down"] / whole["down"] == pytest.approx(sizes[1] / sizes[0], rel=slack)


def test_the_papers_cost_follows_from_keep() -> None:
    """FedKD's Table 3: 0.82 GB of 1.37 GB, on twelve layers of 768 units and twelve heads."""
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        model = BertModel(BertConfig(vocab_size=10), add_pooling_layer=False)
    freeze_embeddings(model)
    units = draw(model, 0.6, seed=0)
    whole = sum(w.numel() for w in trainable(model).values())
    part = sum(
        w.numel() * (units.cuts[n].kept.numel() / w.shape[units.cuts[n].axis])
        if n in units.cuts
        else w.numel()
        for n, w in trainable(model).items()
    )
    assert whole == pytest.approx(85.05e6, rel=1e-3)
    assert part / whole == pytest.approx(0.82 / 1.37, abs=0.01)


@pytest.mark.parametrize("keep", ["0.0", "1.5", '"most"'])
def test_bad_settings_are_explained(keep: str) -> None:
    text = f'[algorithm]\nname = "feddropout"\nkeep = {keep}\n[data]\ncorpus = "ade"\nparties = 3\n'
    with raises(SettingsError, line=3, field="algorithm.keep"):
        config.loads(text)


def test_a_model_without_known_blocks_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = type("Config", (), {"num_hidden_layers": 1})
            self.layers = nn.ModuleList([nn.Linear(2, 2)])

    with raises(ModelError, "BERT-like"):
        draw(Odd(), 0.5, 0)
