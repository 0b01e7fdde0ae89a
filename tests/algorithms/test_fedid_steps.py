"""FedID's steps: feedback against autograd and by hand, units and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from math import sqrt
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.func import functional_call

from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.algorithm import (
    EnsembleDrift,
    FeedbackUnits,
    StepInputs,
    StepMetrics,
    exact_feedback,
    scalar_feedback,
    step_losses,
)
from secure_fl.algorithms.public_distillation import public_optimizer, public_rate
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.models import load_model
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Task
from secure_fl.settings import ModelSettings, TrainingSettings
from secure_fl.testing.hospitals import HOST, hosted, members
from tests.support import fedkd_runs
from tests.support.event_documents import into
from tests.support.hands import AS_PRINTED, NAMES, ce, site_of
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
    task: Any,
    host: nn.Module,
    party: nn.Module,
    x: Batch,
    val: Batch,
    others: Tensor,
    w: float,
    offset: Tensor | float = 0.0,
) -> tuple[Tensor, list[Tensor]]:
    """Eqs. 10-12 as one graph: the ensemble, and the derivative of L_val in the party's weights."""

    def at(weights: dict[str, Tensor]) -> Any:
        return lambda **inputs: functional_call(host, weights, (), inputs)

    y = w * (task.forward(party, x) - offset).softmax(-1) + (1 - w) * others
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
    return fedkd_runs.site_of(members()[-1], model or ModelSettings(layers=2), training)


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


def test_exact_feedback_is_the_derivative_of_predictions_divided_by_class_shares() -> None:
    host, party, x, val = toys()
    offset = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64).log()
    others = torch.full((7, 3), 1 / 3, dtype=torch.float64)
    cfg = printed(feedback="exact", host_learning_rate=RATE)
    y, expected = through_the_step(Toy(), host, party, x, val, others, 0.25, offset)
    h = exact_feedback(cast(Task, Toy()), host, RATE, x, y, val)
    z = party(x["input"])
    _, loss = step_losses(z, StepInputs(y, (z - offset).softmax(-1), h, offset), 0.25, cfg)
    found = torch.autograd.grad(loss, list(party.parameters()))
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-4, atol=1e-7)


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


def test_the_scalar_is_the_steps_improvement_without_dropout(dropping: str) -> None:
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
        before = judged(mine)
        torch.manual_seed(seed)  # the step itself uses dropout, as training does
        found = list(trainable(mine).values())
        g = torch.autograd.grad(ce(site.task.forward(mine.train(), x), y), found)
        with torch.no_grad():
            for weight, d in zip(found, g, strict=True):
                weight -= RATE * d
        assert h.shape == () and not h.requires_grad and abs(float(h)) > 1e-4
        assert float(h) == pytest.approx(before - judged(mine), abs=1e-6)
        assert judged(model) == pytest.approx(judged(mine), abs=1e-6)


# --- rates ----------------------------------------------------------------------------------------


def test_the_host_may_learn_at_a_rate_of_its_own() -> None:
    sites = hospital(), site_of(members()[0], SGD)
    assert [public_rate(site, FedID(host_learning_rate=0.7)) for site in sites] == [0.7, RATE]
    assert [public_rate(site, FedID()) for site in sites] == [RATE, RATE]
    optimizer = public_optimizer(sites[0], FedID(host_learning_rate=0.7), nn.Linear(1, 1))
    assert [group["lr"] for group in optimizer.param_groups] == [0.7]


# --- units and metrics ----------------------------------------------------------------------------


def told(what: StepMetrics | EnsembleDrift) -> dict[str, Any]:
    """The event that comes of it."""
    events: list[dict[str, Any]] = []
    site: Site = site_of(members()[0])
    site.recorder = EventLog(NAMES[0], into(events), round=3)
    what.report(site)
    (event,) = events
    assert event.pop("party") == NAMES[0] and event.pop("round") == 3
    return event


def test_feedback_has_a_root_mean_square_of_1_over_the_round() -> None:
    units, printed = FeedbackUnits("unit"), FeedbackUnits("printed")
    first, second = torch.tensor([3e-4, -4e-4]), torch.tensor([1e-3])
    assert torch.equal(printed.of(first), first)
    assert float(units.of(first).square().mean()) == pytest.approx(1)
    size = sqrt((9e-8 + 16e-8 + 1e-6) / 3)
    assert float(units.of(second)) == pytest.approx(1e-3 / size)
    assert torch.equal(FeedbackUnits("unit").of(torch.zeros(3)), torch.zeros(3))


def test_a_watch_says_how_large_feedback_is_beside_distillation_and_how_far_a_party_went() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    y, own = torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    h = torch.tensor([[1.0, -1.0], [2.0, 0.0]])
    given, p = StepInputs(y, own, h), z.detach().softmax(-1)
    watch = StepMetrics()
    cfg = FedID(feedback="exact", feedback_weight=3.0, host_learning_rate=0.1)
    watch.add(z, given, step_losses(z, given, 0.25, cfg))
    distilled = (p - y) / 2
    fed_back = 3.0 * p * (h - (h * p).sum(-1, keepdim=True)) / 2
    event = told(watch)
    assert event["means"].pop("feedback_to_distill") == pytest.approx(
        float(fed_back.norm() / distilled.norm()), rel=1e-5
    )
    assert event == {"event": "public_steps", "means": {"as_sent": 1.0, "as_ensemble": 0.5}}
    plain = StepMetrics()
    plain.add(z, given, step_losses(z, given, 0.25, FedID(feedback_weight=3.0)))
    assert "feedback_to_distill" not in told(plain)["means"]


def test_drift_is_how_many_records_change_their_class_and_how_many_share_one() -> None:
    drift = EnsembleDrift(5)
    classes = torch.eye(2)
    drift.add(torch.tensor([0, 1, 2, 3]), classes[torch.tensor([0, 1, 1, 1])])
    assert told(drift) == {"event": "ensemble", "commonest": 0.75}
    drift.add(torch.tensor([3, 0, 4]), classes[torch.tensor([1, 1, 1])])
    assert told(drift) == {"event": "ensemble", "commonest": 1.0, "changed": 0.5}
    assert "changed" not in told(drift)


def test_every_members_log_has_the_metrics_of_every_round() -> None:
    events: list[dict[str, Any]] = []
    printed = FedID(**AS_PRINTED, rounds=2, feedback_weight=1.0)
    for cfg, least, most in (
        (printed, 0, 0.2),  # as printed, feedback is much smaller than distillation
        (printed.model_copy(update={"feedback_scale": "unit"}), 0.2, 20),
    ):
        events.clear()
        hosted(cfg, silos=members(size=8), listener=into(events)).run()
        steps = [e for e in events if e["event"] == "public_steps"]
        ensembles = [e for e in events if e["event"] == "ensemble"]
        assert [(e["party"], e["round"]) for e in ensembles] == [(HOST, 1), (HOST, 2)]
        assert {(e["party"], e["round"]) for e in steps} == {(n, r) for n in NAMES for r in (1, 2)}
        assert all(least < e["means"]["feedback_to_distill"] < most for e in steps)
