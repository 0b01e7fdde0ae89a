"""DP-SGD: what bounds a record, how it is hidden, and that all of it can be taken off again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.data.examples import Tagged
from secure_fl.data.silo import Silo
from secure_fl.errors import BudgetError, DataError, ModelError, SettingsError, TrainingError
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import freeze_embeddings, trainable
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.dp.private_model import Bounds, no_dropout, privately
from secure_fl.learning.dp.scope import require_private, sampling_units
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.local_training import make_optimizer, step, task_loss
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Batch, make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from tests.support.clipped_sums import clipped_sum, losses_of, neighbour_ratio
from tests.support.private import (
    FAMILIES,
    ROWS,
    dp_settings,
    loss_of,
    make_batch,
    make_model,
    make_site,
    notes,
    seeded,
)
from tests.support.raising import raises


def by_row(batch: Batch) -> list[Batch]:
    rows = range(len(batch["labels"]))
    return [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in rows]


def gradients_one_by_one(family: str, model: nn.Module, batch: Batch) -> list[Tensor]:
    """The naive way: one record at a time through autograd."""
    weights = [p for p in model.parameters() if p.requires_grad]
    losses = [loss_of(family)(model, one).sum() for one in by_row(batch)]
    slopes = [torch.autograd.grad(loss, weights) for loss in losses]
    return [torch.cat([g.flatten() for g in each]) for each in slopes]


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_clipped_sum_is_that_of_autograd(family: str, clipping: Any, frozen: bool) -> None:
    model, batch = make_model(family), make_batch(family)
    if frozen:
        freeze_embeddings(model)
    each = gradients_one_by_one(family, model, batch)
    clip = float(np.median([float(g.norm()) for g in each]))  # half of them are clipped
    expected = torch.stack([g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in each]).sum(0)
    found = clipped_sum(model, loss_of(family), batch, Bounds(clip, clipping=clipping))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * clip)


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_moves_the_clipped_sum_by_at_most_the_bound(family: str, clipping: Any) -> None:
    model, batch = make_model(family, dropout=0.1), make_batch(family)
    bounds = Bounds(0.05, clipping=clipping)
    ratios = [neighbour_ratio(model, loss_of(family), batch, bounds, row) for row in range(ROWS)]
    assert max(ratios) <= 1 + 1e-4
    assert max(ratios) > 0.9  # the bound is met, so the test says something


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_from_the_whole_batch_breaks_the_bound(family: str, clipping: Any) -> None:
    """Distillation that trusts a teacher where a batch's mean is low: no ε covers that."""
    model, batch = make_model(family), make_batch(family, rows=24)
    with torch.no_grad():
        mean = loss_of(family)(model, batch).mean()

    def weighted(module: nn.Module, rows: Batch) -> Tensor:
        losses: Tensor = loss_of(family)(module, rows)
        return losses * float(losses.detach().mean() < mean - 1e-6)

    bounds = Bounds(0.05, clipping=clipping)
    assert any(neighbour_ratio(model, weighted, batch, bounds, row) > 1.5 for row in range(24))


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_noise_on_a_step_has_the_promised_std(clipping: Any) -> None:
    """Batches are empty here, so a step of SGD moves the weights by its noise alone."""
    σ, C, batch, lr = 0.7, 3.0, 4.0, 0.5
    model = nn.Linear(40, 50)
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    moves = []
    with privately_toy(model, optimizer, Bounds(C, σ, clipping=clipping), batch) as private:
        for _ in range(100):
            private.step(None, None)
            after = torch.cat([p.detach().flatten() for p in model.parameters()])
            moves.append(after - before)
            before = after.clone()
    noise = torch.stack(moves).double() * batch / lr
    count = noise.numel()
    assert count > 2e5
    assert float(noise.std()) == pytest.approx(σ * C, rel=5 / math.sqrt(2 * count))
    assert abs(float(noise.mean())) < 5 * σ * C / math.sqrt(count)
    fourth = float(((noise / (σ * C)) ** 4).mean())
    assert fourth == pytest.approx(3.0, abs=5 * math.sqrt(96 / count))  # Gaussian, not just as wide
    steps = torch.corrcoef(noise)  # fresh in every step
    assert float((steps - torch.eye(100)).abs().max()) < 6 / math.sqrt(noise.shape[1])


@contextmanager
def privately_toy(model: nn.Module, optimizer: Any, bounds: Bounds, batch: float) -> Iterator[Any]:
    none = nn.Module()
    none.embeddings, none.inner = nn.Identity(), model
    batches = PoissonBatches(int(batch * 10), 10, Coins.secret())
    with privately(none, optimizer, lambda m, b: b["x"], bounds, batches) as private:
        yield private


def test_noise_is_added_in_double_precision_and_is_exact_in_distribution() -> None:
    from scipy import stats

    values = torch.full((200_001,), 5.0)
    found = (Coins.secret().add_normal(values, 2.0) - 5.0) / 2.0
    assert found.dtype == torch.float32
    assert float(values.sum()) == 5.0 * 200_001  # the clipped sum itself is left alone
    assert stats.kstest(found.numpy(), "norm").pvalue > 1e-6
    again = Coins.secret().add_normal(values.double(), 2.0)
    assert not torch.equal(again.float(), found * 2 + 5)


def test_sampling_takes_every_unit_with_its_own_coin() -> None:
    sizes = np.array([len(batch) for batch in PoissonBatches(50, 400, Coins.secret())])
    assert sizes.min() == 0  # an empty batch is a batch
    assert sizes.mean() == pytest.approx(50 / 400, abs=0.09)
    batches = [b for _ in range(50) for b in PoissonBatches(20, 4, Coins.secret())]
    counts = np.bincount(np.concatenate([np.array(b) for b in batches]).astype(int), minlength=20)
    assert np.abs(counts / 200 - 0.25).max() < 6 * math.sqrt(0.25 * 0.75 / 200)
    assert all(len(set(b)) == len(b) for b in batches)


def test_nothing_secret_comes_from_the_seed_of_the_run() -> None:
    sites = [make_site(), make_site()]
    models = [site.model() for site in sites]
    states = []
    for site, model in zip(sites, models, strict=True):
        with site.surroundings():
            fit_privately(site, model, 1)
            states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])  # what is not secret goes on as if nothing had been
    assert not torch.equal(*(m.classifier.weight for m in models))
    repeatable = [make_site(), make_site()]
    models = [site.model() for site in repeatable]
    for site, model in zip(repeatable, models, strict=True):
        fit_privately(site, model, 1, generator=seeded())
    assert torch.equal(*(m.classifier.weight for m in models))


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_three_rounds_leave_the_model_as_it_was_and_learn(clipping: Any) -> None:
    site = make_site(
        notes(200),
        batch_size=50,
        learning_rate=3e-2,
        noise_multiplier=0.4,
        epsilon=1e3,
        clipping=clipping,
    )
    model = site.model()
    names = [name for name, _ in model.named_parameters()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    first = site.task.evaluate(model, site.train)["loss"]
    for _ in range(3):
        assert math.isnan(site.fit(model, 3, ALONE))  # no ε covers a loss
    assert site.task.evaluate(model, site.train)["loss"] < first / 2
    assert [name for name, _ in model.named_parameters()] == names
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert not any({"grad_sample", "summed_grad"} & set(p.__dict__) for p in model.parameters())
    assert not any("ft_compute_sample_grad" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_parts_of_a_batch_make_the_same_step(clipping: Any) -> None:
    found = []
    for part in (None, 3):
        site = make_site(clipping=clipping, physical_batch=part, optimizer="sgd", learning_rate=0.1)
        model = site.model()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        fit_privately(site, model, 2, generator=seeded())
        found.append(torch.cat([w.detach().flatten() for w in trainable(model).values()]))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_a_patient_is_one_unit_however_many_notes_there_are() -> None:
    records = notes(40, patients=8)
    site = make_site(records, batch_size=2, unit="patient")
    assert site.privacy is not None
    assert len(site.privacy.units) == 8 and site.privacy.steps_per_pass == 4
    model = site.model()
    fit_privately(site, model, 1)
    assert site.privacy.account.unit == "patient"
    batch = site.train.batch([0, 8, 16, 1, 9])  # three notes of a patient, two of another
    optimizer = make_optimizer(model, site.training)
    loss = losses_of(site.task)
    each = [clipped_sum(model, loss, one, Bounds(1e9)) for one in by_row(batch)]
    expected = torch.stack([torch.stack(each[:3]).mean(0), torch.stack(each[3:]).mean(0)])
    norms = expected.norm(dim=1, keepdim=True)
    C = float(norms.min()) / 2
    expected = (expected * (C / (norms + 1e-6))).sum(0)
    batches = PoissonBatches(8, 4, Coins.secret())
    with no_dropout(model), privately(model, optimizer, loss, Bounds(C), batches) as private:
        private.backward(batch, torch.tensor([0, 0, 0, 1, 1]))
        found = private.summed()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert float(found.norm()) <= 2 * C + 1e-6  # two patients, not five records
    with raises(DataError, party="north", record=1, field="id"):
        make_site(notes(4), unit="patient")


@pytest.mark.parametrize("clipping", ["ghost", "per_sample", "one_by_one"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_record_without_a_finite_gradient_counts_as_zero(clipping: Any, value: float) -> None:
    """All hospitals would see an error, and no noise covers it."""
    words, layer = torch.nn.Embedding(9, 40), torch.nn.Linear(40, 40)
    model = torch.nn.Sequential(words, layer)
    ids = torch.tensor([[1, 2], [3, 8], [4, 5]])
    with torch.no_grad():
        words.weight[8] = value

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = model(batch["ids"]).square().sum((1, 2))
        return found

    bounds = Bounds(0.5, clipping=clipping)
    found = clipped_sum(model, loss, {"ids": ids}, bounds)
    others = clipped_sum(model, loss, {"ids": ids[[0, 2]]}, bounds)
    torch.testing.assert_close(found, others)
    assert float(others.norm()) > 0.1


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_no_model_comes_out_of_numbers_that_are_none(where: str) -> None:
    site = make_site()
    model = site.model()
    with torch.no_grad():
        if where == "loss":
            model.classifier.bias.fill_(math.nan)
    if where == "gradient":  # a finite loss, and infinite weights
        site.__dict__["training"] = site.training.model_copy(update={"learning_rate": 1e39})
    with pytest.raises(TrainingError, match="infinite or not a number"):
        fit_privately(site, model, 1)
    assert site.privacy is not None
    assert site.privacy.statement()["steps"] == 4  # spent all the same


def test_what_cannot_be_bounded_is_refused() -> None:
    with raises(SettingsError, "ranking", field="training.dp"):
        require_private("ranking", "fedavg", through_fit=True)
    with raises(SettingsError, "fedkd", field="training.dp"):
        require_private("classification", "fedkd", through_fit=False)
    with pytest.raises(ValueError, match="bfloat16"):
        TrainingSettings(dp=dp_settings(), precision="bfloat16")
    with pytest.raises(ValueError):
        dp_settings(accountant="gdp")
    with pytest.raises(ValueError, match="not both"):
        dp_settings(target_epsilon=1.0)
    with raises(BudgetError, reason="delta"):
        make_site(delta=0.1)
    with pytest.raises(SettingsError, match="is unknown"):
        fit_privately(site := make_site(noise_multiplier=None), site.model(), 1)
    site = make_site()
    model = site.model()
    with pytest.raises(SettingsError, match="steps of its own"):
        optimizer = make_optimizer(model, site.training)
        step(site, model, optimizer, [site.train.batch([0, 1])], task_loss(site))
    model.classifier = nn.Sequential(nn.BatchNorm1d(64).requires_grad_(False), nn.Linear(64, 2))
    with pytest.raises(ModelError, match="batch normalisation"):
        fit_privately(site, model, 1)


def test_sentences_train_privately_too() -> None:
    tags = (("O", "B-DRUG"), ("B-DRUG", "O"))
    words = (("took", "aspirin"), ("aspirin", "helped"))
    silo = Silo("north", [Tagged(str(i), words[i % 2], tags[i % 2]) for i in range(20)])
    dp = dp_settings(clipping="ghost", noise_multiplier=0.5, epsilon=1e3)
    training = TrainingSettings(dp=dp, batch_size=10, device="cpu", learning_rate=1e-2)
    units = sampling_units(silo.train, dp, "north")
    privacy = DpAccount("north", dp, units, 10)
    task = make_task(TaskSettings(kind="ner", labels=("DRUG",)))
    model_settings = ModelSettings(layers=1, freeze_embeddings=False)
    site = Site(
        silo,
        SiteSpec(task, model_settings, training, 1),
        SiteContext(EventLog("north"), privacy=privacy),
    )
    model = site.model()
    before = site.task.evaluate(model, site.train)["loss"]
    fit_privately(site, model, 10)
    assert site.task.evaluate(model, site.train)["loss"] < before
