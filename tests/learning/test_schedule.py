"""Rates follow how far the run is, whoever trains; states are kept where nothing is summed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

import secure_fl.learning.learning_rates as schedule
from secure_fl import (
    Centralized,
    FedAvg,
    FedID,
    FedKD,
    InclusiveFL,
    Local,
    Silo,
    TaskSettings,
    TrainingSettings,
)
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.settings import DSFL, MHAT
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.errors import SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import factor
from secure_fl.learning.local_training import fit, lots, make_optimizer, step, task_loss
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.classification import WEIGHTS, label_name
from secure_fl.party.rounds import Round
from secure_fl.runs import checkpoint
from secure_fl.settings import DPSettings, ModelSettings
from secure_fl.testing.hospitals import LABELS, hosted, silos, small
from tests.support.equality import equal, equal_nested, weights
from tests.support.hands import site_of
from tests.support.killing import Killed, kill_when, within

PASSES, BATCH, PUBLIC = 2, 8, 16
DP = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp")


def training(**fields: Any) -> TrainingSettings:
    given: dict[str, Any] = {"batch_size": BATCH, "device": "cpu", "learning_rate": 1e-3}
    return TrainingSettings(**given | fields)


# --- the function ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(8, 8, 8), (3, 5, 16), (1, 1, 1)])
def test_a_linear_schedule_rises_and_falls_over_the_whole_run(steps: tuple[int, ...]) -> None:
    """However many steps a round has: each round is an equal share of the run."""
    settings = TrainingSettings(warmup=0.25)
    for number, count in enumerate(steps, 1):
        for at in range(count):
            share = (number - 1) / 3 + (at + 0.5) / count / 3  # amid the step
            up, down = share / 0.25, (1 - share) / (1 - 0.25)
            found = factor(settings, Round(number, 3).at(at, count))
            assert found == pytest.approx(min(up, down)) and 0 < found <= 1


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_the_steps_add_up_to_the_area_under_the_schedule(kind: Any, warmup: float) -> None:
    settings = TrainingSettings(schedule=kind, warmup=warmup)
    rates = [factor(settings, Round(r, 10).at(s, 10)) for r in range(1, 11) for s in range(10)]
    area = 0.5 if kind == "linear" else 1 - warmup / 2
    assert sum(rates) / 100 == pytest.approx(area)


def test_a_constant_rate_has_no_warm_up_of_its_own() -> None:
    constant = TrainingSettings(schedule="constant")
    assert {factor(constant, share) for share in (0.001, 0.5, 0.999)} == {1.0}
    assert factor(TrainingSettings(), 0.05) == pytest.approx(0.5)  # a tenth of a linear one


# --- every algorithm ------------------------------------------------------------------------------

EXTRA: dict[str, dict[str, Any]] = {
    "fedid": {"distill_epochs": 2, "batches_per_exchange": 2},
    "fedkd": {"student_layers": 1},
    "heterofl": {"widths": {"all": 1.0}},
    "inclusivefl": {"tiers": {"all": 1}},
    "alllarge": {"tiers": {"all": 1}},
    "allsmall": {"tiers": {"all": 1}},
    "exclusivefl": {"tiers": {"all": 1}},
}
DISTIL = {"fedid": 4, "dsfl": 4, "mhat": 4, "gong": 1, "feded": 1, "feddf": 1}  # so many members


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every share of the run that some optimiser's rate was set for."""
    found: list[float] = []
    original = schedule.factor

    def spy(settings: TrainingSettings, progress: float) -> float:
        found.append(progress)
        return original(settings, progress)

    monkeypatch.setattr(schedule, "factor", spy)
    return found


def steps_of(steps: int, rounds: int) -> list[float]:
    """The middles of equal steps over the whole run, so many in each round."""
    return [(at + 0.5) / (steps * rounds) for at in range(steps * rounds)]


def together(*optimizers: list[float]) -> Any:
    return pytest.approx(sorted(chain.from_iterable(optimizers)))


@pytest.mark.parametrize("name", sorted(n for n in ALGORITHMS if not ALGORITHMS[n].trains_nothing))
def test_every_optimiser_of_every_algorithm_sees_the_whole_run(
    name: str, paced: list[float]
) -> None:
    entry, rounds = ALGORITHMS[name], 1 if name == "gong" else 3
    fields = EXTRA.get(name, {}) | {"epochs": PASSES} | ({"rounds": rounds} if rounds > 1 else {})
    fields |= {"distill_epochs": 1} if name == "gong" else {}
    run = (hosted if entry.has_host else small)(entry.settings(**fields), training=training())
    sizes = [len(silo.train) for silo in run.silos]
    own = [PASSES * -(-n // BATCH) for n in ([sum(sizes)] if entry.pools_data else sizes)]
    public = PUBLIC // BATCH * (2 if name == "fedid" else 1)
    run.run()
    fits = [steps_of(steps, rounds) for steps in own]
    assert sorted(paced) == together(*fits, *DISTIL.get(name, 0) * [steps_of(public, rounds)])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_exchanged_gradients_are_steps_of_the_run(accumulate: int, paced: list[float]) -> None:
    cfg = FedKD(rounds=2, exchange="gradient", steps=5, student_layers=1)
    small(cfg, training=training(accumulate=accumulate)).run()
    assert sorted(paced) == together(*3 * [steps_of(5, 2)])


def test_counted_steps_are_steps_of_the_run(paced: list[float]) -> None:
    cfg = InclusiveFL(rounds=2, steps=3, tiers={"all": 1})
    small(cfg, training=training(accumulate=2)).run()
    assert sorted(paced) == together(*3 * [steps_of(3, 2)])


def test_accumulated_batches_make_fewer_steps_and_private_steps_count_alike(
    paced: list[float],
) -> None:
    parties = silos(size=20)  # three batches of 8
    small(FedAvg(rounds=2), training=training(accumulate=2), silos=parties).run()
    assert sorted(paced) == together(*3 * [steps_of(2, 2)])
    paced.clear()
    small(FedAvg(rounds=2, epochs=2), training=training(dp=DP), silos=parties).run()
    assert sorted(paced) == together(*3 * [steps_of(2 * 3, 2)])


# --- what outlives a round ------------------------------------------------------------------------


def test_who_trains_alone_trains_as_if_there_were_no_rounds() -> None:
    """One optimiser and one schedule: three rounds of an epoch are three epochs at once."""
    result = small(Local(rounds=3), training=training()).run()
    for silo in silos():
        site = site_of(silo, training())
        model = site.model()
        with site.surroundings():
            fit(site, model, 3)
        assert equal(weights(result, f"{silo.name}/model"), dict(trainable(model)))


OUTLIVING = [
    Local(rounds=3),
    Centralized(rounds=3),
    FedKD(rounds=3, student_layers=1),
    DSFL(rounds=3),
    MHAT(rounds=3),
    FedID(rounds=3),
]


@pytest.mark.parametrize("cfg", OUTLIVING, ids=lambda cfg: cfg.name)
def test_what_an_optimiser_remembers_is_resumed_bit_for_bit(cfg: Any, tmp_path: Path) -> None:
    run = hosted if ALGORITHMS[cfg.name].has_host else small
    whole = run(cfg, folder=tmp_path / "whole").run()
    with pytest.raises(Killed):
        run(cfg, folder=tmp_path / "run", listener=kill_when(within(2))).run()
    resumed = run(cfg, folder=tmp_path / "run", resume=True).run()
    for name in whole.models:
        assert equal(weights(whole, name), weights(resumed, name)), name
    for kept in sorted(path.name for path in (tmp_path / "whole" / "parties").iterdir()):
        one, other = (kept_by(tmp_path / folder, kept) for folder in ("whole", "run"))
        assert equal_nested(one, other)


def test_a_teacher_is_followed_through_the_run_and_a_student_through_a_round(
    tmp_path: Path,
) -> None:
    small(FedKD(rounds=3, student_layers=1), training=training(), folder=tmp_path).run()
    for silo in silos():
        kept, steps = kept_by(tmp_path, silo.name), 3 * len(silo.train) // BATCH
        assert {float(moments["step"]) for moments in kept["optimizer"].values()} == {steps}
        assert kept["optimizer"].keys() and not kept["student_optimizer"]


def test_under_dp_what_outlives_a_round_is_made_of_noised_gradients(tmp_path: Path) -> None:
    private = training(dp=DP)
    small(Local(rounds=3), training=private, folder=tmp_path).run()
    for silo in silos():
        state = kept_by(tmp_path, silo.name)["optimizer"]["state"]
        assert {float(moments["step"]) for moments in state.values()} == {3 * 6}
        # A noised gradient of 48 records in steps of 8 has a standard deviation of σC/8.
        seen = torch.cat([moments["exp_avg_sq"].flatten() for moments in state.values()])
        floor = (1 - 0.999**18) * (1.0 / 8) ** 2
        assert float(seen.mean()) > 0.9 * floor


def kept_by(folder: Path, party: str) -> dict[str, Any]:
    """What a party's last checkpoint holds."""
    rounds = sorted((folder / "parties" / party / "checkpoints").glob("round-*"))
    return dict(checkpoint.load(rounds[-1])["keep"])


# --- a step of several batches, and classes that count alike --------------------------------------


def test_accumulated_batches_are_the_larger_batch() -> None:
    moves = []
    for size, count in ((12, 1), (4, 3), (6, 2)):
        site = site_with(training(batch_size=size, accumulate=count, optimizer="sgd"))
        model = site.model()
        records = site.train.batches(size, None)
        optimizer = make_optimizer(model, site.training)
        for lot in lots(records, count):
            step(site, model, optimizer, lot, task_loss(site))
        moves.append(trainable(model))
    for other in moves[1:]:
        for name, weight in moves[0].items():
            torch.testing.assert_close(other[name], weight, atol=1e-7, rtol=1e-5)


def test_a_last_step_of_fewer_records_still_counts_each_alike() -> None:
    """Batches of 4, 4 and 2 records: their mean loss is over 10 records, not over 3 batches."""
    site = site_with(training(batch_size=4, accumulate=3), size=10)
    model, objective = site.model(), task_loss(site)
    loss = fit(site, model.eval(), 1, objective=lambda m, b: objective(m, b) * 0 + len(b["labels"]))
    assert loss == pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10)


def test_balanced_classes_count_alike_in_the_loss() -> None:
    site = site_with(training(class_weights="balanced"), size=16, skewed=True)
    batch = site.train.batch(range(16))
    labels = batch["labels"].tolist()
    counts = {label: labels.count(label) for label in set(labels)}
    assert len(counts) == 2 and len(set(counts.values())) == 2  # both occur, not alike
    model = site.model().eval()
    each = F.cross_entropy(site.task.forward(model, batch), batch["labels"], reduction="none")
    by_hand = sum(16 / (2 * counts[y]) * each[row] for row, y in enumerate(labels)) / 16
    torch.testing.assert_close(task_loss(site)(model, batch).mean(), by_hand)
    classes = [
        torch.stack([each[r] for r, y in enumerate(labels) if y == c]).mean() for c in (0, 1)
    ]
    torch.testing.assert_close(by_hand, torch.stack(classes).mean())


@pytest.mark.parametrize(
    ("algorithm", "positive", "fields", "weighed"),
    [
        (FedAvg(), LABELS[0], {}, True),
        (FedAvg(), LABELS[0], {"class_weights": "none"}, False),
        (FedAvg(), None, {}, False),
        (FedAvg(), None, {"class_weights": "balanced"}, True),
        (FedAvg(), LABELS[0], {"dp": DP}, False),
        (DSFL(), LABELS[0], {}, True),
        (FedID(), LABELS[0], {}, False),
    ],
)
def test_a_class_that_is_looked_for_counts_as_much_as_the_others(
    algorithm: Algorithm, positive: str | None, fields: dict[str, Any], weighed: bool
) -> None:
    site = site_with(training(**fields), size=16, skewed=True)
    site.task = make_task(TaskSettings(labels=LABELS, positive=positive))
    site.balances = algorithm.balances
    assert (WEIGHTS in site.train.batch([0])) == weighed


def test_scores_know_no_class_weights() -> None:
    plain = site_with(training(), size=16, skewed=True)
    site = site_with(training(class_weights="balanced"), size=16, skewed=True)
    model = site.model()
    encoded = site._encode(site.silo, "train")
    assert site.task.evaluate(model, encoded) == plain.task.evaluate(model, plain.train)


@pytest.mark.parametrize("fields", [{"accumulate": 2}, {"class_weights": "balanced"}])
def test_private_steps_take_neither(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="with dp"):
        training(dp=DP, **fields)


def test_tags_and_scores_have_no_classes_to_balance() -> None:
    with pytest.raises(SettingsError):
        make_task(TaskSettings(kind="regression")).balanced(site_of(silos()[0]).train)


def site_with(settings: TrainingSettings, *, size: int = 12, skewed: bool = False) -> Site:
    """A site of so many records."""
    records = list(silos(size=48)[0].train)
    if skewed:
        by_class = [[r for r in records if label_name(r) == label] for label in LABELS]
        records = by_class[0][: size // 4] + by_class[1]
    site = site_of(Silo("hospital", tuple(records[:size])), settings)
    site.model_settings = ModelSettings(layers=1)
    return site
