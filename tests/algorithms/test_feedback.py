"""What the central model says about a step, against autograd through that step and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.func import functional_call

from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.feedback import exact_feedback, scalar_feedback
from secure_fl.algorithms.fedid.party_step import (
    StepInputs,
    StepMetrics,
    party_step,
    step_losses,
)
from secure_fl.algorithms.public_distillation import answers, public_optimizer, public_rate
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.models import load_model
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Task, make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, members
from tests.support.hands import AS_PRINTED, ce
from tests.support.saved_models import dropping

__all__ = ["dropping"]  # a fixture

RATE = 0.3
SGD = TrainingSettings(
    optimizer="sgd",
    learning_rate=RATE,
    weight_decay=0.0,
    max_grad_norm=None,
    batch_size=4,
    device="cpu",
)


class Toy:
    """A task of vectors, with a loss in their own precision."""

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(input=batch["input"])
        return logits

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch["labels"])


def through_the_step(
    task: Any, host: nn.Module, party: nn.Module, x: Batch, val: Batch, others: Tensor, w: float
) -> tuple[Tensor, list[Tensor]]:
    """Eqs. 10-12 as one graph: the ensemble, and the derivative of L_val in the party's weights."""

    def at(weights: dict[str, Tensor]) -> Any:
        return lambda **inputs: functional_call(host, weights, (), inputs)

    y = w * task.forward(party, x).softmax(-1) + (1 - w) * others
    θ = {name: p.detach().clone().requires_grad_() for name, p in trainable(host).items()}
    g = torch.autograd.grad(ce(task.forward(at(θ), x), y), list(θ.values()), create_graph=True)
    after = {name: p - RATE * d for (name, p), d in zip(θ.items(), g, strict=True)}
    judged = F.cross_entropy(task.forward(at(after), val), val["labels"])
    return y.detach(), list(torch.autograd.grad(judged, list(trainable(party).values())))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def toys(seed: int = 0) -> tuple[nn.Linear, nn.Linear, Batch, Batch]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        host, party = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
        x = {"input": torch.randn(7, 5, dtype=torch.float64)}
        labels = torch.randint(3, (6,))
        return host, party, x, {"input": torch.randn(6, 5, dtype=torch.float64), "labels": labels}


def loss_of(z: Tensor, y: Tensor, own: Tensor, h: Tensor, w: float, cfg: FedID) -> Tensor:
    """The loss of a party's step under these settings."""
    return torch.stack(step_losses(z, StepInputs(y, own, h), w, cfg)).sum()


def printed(**fields: Any) -> FedID:
    return FedID(**AS_PRINTED | fields)


def hospital(training: TrainingSettings = SGD, model: ModelSettings | None = None) -> Site:
    """The host of a small federation."""
    task = make_task(TaskSettings(labels=LABELS, max_length=32))
    silo = members()[-1]
    return Site(silo, task, model or ModelSettings(layers=2), training, 0, EventLog(silo.name))


# --- Eq. 14 as mathematics ------------------------------------------------------------------------


@pytest.mark.parametrize("w", [1.0, 0.25])
def test_exact_feedback_is_the_derivative_through_the_hosts_step(w: float) -> None:
    host, party, x, val = toys()
    others = torch.full((7, 3), 1 / 3, dtype=torch.float64)
    y, expected = through_the_step(Toy(), host, party, x, val, others, w)
    h = exact_feedback(cast(Task, Toy()), host, RATE, x, y, val)
    assert h.dtype == torch.float64 and h.shape == (7, 3)
    found = torch.autograd.grad(
        w * (h * party(x["input"]).softmax(-1)).sum(), list(party.parameters())
    )
    torch.testing.assert_close(flat(found), flat(expected), rtol=0, atol=1e-10)
    assert flat(expected).abs().max() > 1e-3  # or the bound would say nothing


@pytest.mark.parametrize("frozen", [True, False])
def test_exact_feedback_of_a_transformer_reaches_the_party_as_one_gradient(frozen: bool) -> None:
    site = hospital(model=ModelSettings(layers=2, freeze_embeddings=frozen))
    cfg = printed(feedback="exact", distill=False, feedback_weight=2.0, host_learning_rate=RATE)
    models = [
        load_model(site.model_settings, site.task, site.tokenizer, s, attn_implementation="eager")
        for s in (1, 2)
    ]
    host, party, w = models[0].eval(), models[1].eval(), 0.3
    x, val = site.public.batch([0, 1, 2, 3]), site.train.batch([0, 1, 2, 3, 4])
    y, expected = through_the_step(site.task, host, party, x, val, torch.full((4, 2), 0.5), w)
    h = exact_feedback(site.task, host, RATE, x, y, val)
    z = site.task.forward(party, x)
    loss = loss_of(z, y, z.softmax(-1).detach(), h, w, cfg)
    found = torch.autograd.grad(loss, list(trainable(party).values()))
    off = (flat(found) - 2 * flat(expected)).norm() / (2 * flat(expected).norm())
    assert off < 1e-4


def test_exact_feedback_makes_a_plain_step_without_dropout() -> None:
    """Weight decay, clipping, momentum and dropout would be another step than the derivative's."""
    site = hospital()
    x, val = site.public.batch([0, 1, 2]), site.train.batch([0, 1])
    y = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    start, given = site.model(attention="eager"), []
    loss = ce(site.task.forward(start.eval(), x), y)
    g = torch.autograd.grad(loss, list(trainable(start).values()))
    for seed in (1, 2):
        model = deepcopy(start).train()
        torch.manual_seed(seed)
        given.append(exact_feedback(site.task, model, RATE, x, y, val))
        for (name, after), d in zip(trainable(model).items(), g, strict=True):
            torch.testing.assert_close(after, trainable(start)[name] - RATE * d, rtol=0, atol=1e-7)
    assert torch.equal(*given) and given[0].abs().max() > 0


# --- the scalar of the authors' code --------------------------------------------------------------


def test_the_partys_loss_by_hand() -> None:
    """Where p = (1/4, 3/4), the ensemble votes for the first class, the party said the second."""
    z = torch.tensor([[0.0, math.log(3)]])
    y, own, h, w = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.4, 0.6]]), torch.tensor(2.0), 0.25
    distilled, strengthened = math.log(4), math.log(4 / 3)
    scalar = 3 * w * 2 * strengthened  # feedback_weight 3
    cases = {
        printed(feedback_weight=3): distilled + scalar,
        printed(feedback_weight=3, distill=False): scalar,
        printed(feedback="none"): distilled,
        printed(feedback_weight=0): distilled,
        printed(feedback_weight=3, feedback_scale="unit"): distilled + scalar / w,
        FedID(): distilled,
    }
    for cfg, expected in cases.items():
        assert float(loss_of(z, y, own, h, w, cfg)) == pytest.approx(expected, rel=1e-6)
    H = torch.tensor([[2.0, -1.0]])
    exact = printed(feedback="exact", feedback_weight=3, host_learning_rate=RATE)
    expected = distilled + 3 * w * (2 / 4 - 3 / 4)
    assert float(loss_of(z, y, own, H, w, exact)) == pytest.approx(expected, rel=1e-6)
    two = loss_of(z.repeat(2, 1), y.repeat(2, 1), own.repeat(2, 1), H.repeat(2, 1), w, exact)
    assert float(two) == pytest.approx(distilled + 2 * 3 * w * (2 / 4 - 3 / 4), rel=1e-6)
    unit = exact.model_copy(update={"feedback_scale": "unit"})
    two = loss_of(z.repeat(2, 1), y.repeat(2, 1), own.repeat(2, 1), H.repeat(2, 1), w, unit)
    assert float(two) == pytest.approx(distilled + 3 * (2 / 4 - 3 / 4), rel=1e-6)


def test_the_scalar_says_by_how_much_the_step_helped_whatever_dropout_does(dropping: str) -> None:
    site = hospital(model=ModelSettings(name=dropping, layers=2))
    start, cfg = site.model(), printed()
    x, val = site.public.batch([0, 1, 2]), site.train.batch([0, 1, 2, 3, 4])
    y = torch.tensor([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]])

    def judged(model: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(site.task.forward(model.eval(), val), val["labels"]))

    for seed in (1, 2):
        model, mine = deepcopy(start), deepcopy(start)
        torch.manual_seed(seed)
        h = scalar_feedback(site, model, public_optimizer(site, cfg, model), x, y, val)
        assert h.shape == () and not h.requires_grad
        before = judged(mine)
        torch.manual_seed(seed)  # the step itself drops units, as training does
        found = list(trainable(mine).values())
        g = torch.autograd.grad(ce(site.task.forward(mine.train(), x), y), found)
        with torch.no_grad():
            for weight, d in zip(found, g, strict=True):
                weight -= RATE * d
        assert float(h) == pytest.approx(before - judged(mine), abs=1e-6)
        assert abs(float(h)) > 1e-4
        assert judged(model) == pytest.approx(judged(mine), abs=1e-6)
    start.train()
    with torch.no_grad():
        noisy = {
            float(F.cross_entropy(site.task.forward(start, val), val["labels"])) for _ in range(2)
        }
    assert len(noisy) == 2  # with dropout, equal records would be judged otherwise each time


def test_a_step_that_helped_strengthens_what_the_party_said_and_one_that_hurt_weakens_it() -> None:
    site = hospital()
    cfg = printed(distill=False)
    x = site.public.batch([0, 1])
    start = site.model().eval()
    own = torch.tensor([[1.0, 0.0], [1.0, 0.0]])

    def first(model: nn.Module) -> float:
        return float(site.task.forward(model.eval(), x).detach().softmax(-1)[:, 0].sum())

    found = []
    for h in (0.1, -0.1):
        model = deepcopy(start)
        inputs = StepInputs(torch.full((2, 2), 0.5), own, torch.tensor(h))
        optimizer = public_optimizer(site, cfg, model)
        party_step(site, cfg, model, optimizer, x, inputs, 1.0, StepMetrics())
        found.append(first(model) - first(start))
    assert found[0] > 1e-3 and found[1] < -1e-3


def pull(cfg: FedID) -> float:
    """How much of a party's gradient is feedback, right after it predicted, without dropout."""
    site = hospital()
    x, model = site.public.batch([0, 1, 2]), site.model().eval()
    z = site.task.forward(model, x)
    own, y = answers(z.detach(), cfg.targets), torch.full((3, 2), 0.5)
    whole, rest = (
        flat(
            torch.autograd.grad(
                loss_of(z, y, own, torch.tensor(h), 1.0, cfg),
                list(trainable(model).values()),
                retain_graph=True,
            )
        )
        for h in (1.0, 0.0)
    )
    return float((whole - rest).norm())


def test_votes_can_be_strengthened() -> None:
    assert pull(printed(targets="hard")) > 0.1


@pytest.mark.parametrize("scale", ["unit", "printed"])
def test_predictions_can_be_strengthened(scale: Any) -> None:
    assert pull(printed(feedback_scale=scale)) > 0.1


# --- rates ----------------------------------------------------------------------------------------


def test_the_host_may_learn_at_a_rate_of_its_own() -> None:
    party_task = make_task(TaskSettings(labels=LABELS))
    silo = members()[0]
    party = Site(silo, party_task, ModelSettings(layers=1), SGD, 0, EventLog(silo.name))
    own, shared = FedID(host_learning_rate=0.7), FedID()
    assert [public_rate(site, own) for site in (hospital(), party)] == [0.7, RATE]
    assert [public_rate(site, shared) for site in (hospital(), party)] == [RATE, RATE]
    groups = public_optimizer(hospital(), own, nn.Linear(1, 1)).param_groups
    assert [group["lr"] for group in groups] == [0.7]
