"""Rates follow how far the run is, whoever trains; states are kept where nothing is summed."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
)

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
from secure_fl.algorithms.baselines.settings import DSFL
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, make_pair
from secure_fl.algorithms.public_distillation import Learner
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config.load import dump, loads
from secure_fl.errors import SettingsError
from secure_fl.features.tuning.tuning import RATE, around
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import (
    MOST,
    MOST_OF_ADAPTERS,
    MOST_OF_ENTITIES,
    SGD,
    factor,
    learning_rate_of,
    with_rate,
)
from secure_fl.learning.local_training import fit, lots, make_optimizer, step, task_loss
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.classification import WEIGHTS, label_name
from secure_fl.party.rounds import Round
from secure_fl.runs import checkpoint
from secure_fl.settings import AdapterSettings, DPSettings, ModelSettings
from secure_fl.testing.hospitals import LABELS, hosted, silos, small
from tests.support.equality import equal, equal_nested, weights
from tests.support.hands import site_of
from tests.support.killing import Killed, kill_when, within
from tests.support.sampling import mostly_slow

PASSES, BATCH, PUBLIC = 2, 8, 16
few = partial(small, silos=silos(size=20))  # three batches of 8
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
    monkeypatch.setattr("secure_fl.algorithms.fedsgd.factor", spy)
    return found


def steps_of(steps: int, rounds: int) -> list[float]:
    """The middles of equal steps over the whole run, so many in each round."""
    return [(at + 0.5) / (steps * rounds) for at in range(steps * rounds)]


def together(*optimizers: list[float]) -> Any:
    return pytest.approx(sorted(chain.from_iterable(optimizers)))


TRAINING = sorted(
    n for n, e in ALGORITHMS.items() if not (e.trains_nothing or e.records) and n != "probe"
)
KINDS = ("centralized", "fedavg", "fedid", "fedkd", "feddf", "gong", "inclusivefl")


@pytest.mark.parametrize("name", mostly_slow(TRAINING, *KINDS))  # a probe has no steps
def test_every_optimiser_of_every_algorithm_sees_the_whole_run(
    name: str, paced: list[float]
) -> None:
    entry, rounds = ALGORITHMS[name], 1 if name == "gong" else 3
    passes = 1 if name == "fedsgd" else PASSES  # each of its rounds is one step
    fields = EXTRA.get(name, {}) | {"epochs": passes} | ({"rounds": rounds} if rounds > 1 else {})
    fields |= {"distill_epochs": 1} if name == "gong" else {}
    run = (hosted if entry.has_host else few)(entry.settings(**fields), training=training())
    sizes = [len(silo.train) for silo in run.silos]
    own = [passes * -(-n // BATCH) for n in ([sum(sizes)] if entry.pools_data else sizes)]
    own = [1] * len(sizes) if name == "fedsgd" else own
    public = PUBLIC // BATCH * (2 if name == "fedid" else 1)
    run.run()
    fits = [steps_of(steps, rounds) for steps in own]
    assert sorted(paced) == together(*fits, *DISTIL.get(name, 0) * [steps_of(public, rounds)])


@pytest.mark.parametrize(
    ("cfg", "fields", "steps"),
    [
        (FedKD(rounds=2, exchange="gradient", steps=5, student_layers=1), {}, 5),
        (FedKD(rounds=2, exchange="gradient", steps=5, student_layers=1), {"accumulate": 3}, 5),
        (InclusiveFL(rounds=2, steps=3, tiers={"all": 1}), {"accumulate": 2}, 3),
        (FedAvg(rounds=2), {"accumulate": 2}, 2),
        (FedAvg(rounds=2, epochs=2), {"dp": DP}, 2 * 3),
    ],
)
def test_exchanged_counted_accumulated_and_private_steps_are_steps_of_the_run(
    cfg: Any, fields: dict[str, Any], steps: int, paced: list[float]
) -> None:
    few(cfg, training=training(**fields)).run()
    assert sorted(paced) == together(*3 * [steps_of(steps, 2)])


# --- what outlives a round ------------------------------------------------------------------------


def test_who_trains_alone_trains_as_if_there_were_no_rounds() -> None:
    """One optimiser and one schedule: three rounds of an epoch are three epochs at once."""
    result = few(Local(rounds=3), training=training()).run()
    for silo in silos(size=20):
        site = site_of(silo, training())
        model = site.model()
        with site.surroundings():
            fit(site, model, 3)
        assert equal(weights(result, f"{silo.name}/model"), dict(trainable(model)))


@pytest.mark.parametrize("cfg", [Local(rounds=3), Centralized(rounds=3), DSFL(rounds=3)])
def test_what_an_optimiser_remembers_is_resumed_bit_for_bit(cfg: Any, tmp_path: Path) -> None:
    run = hosted if ALGORITHMS[cfg.name].has_host else few
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
    few(FedKD(rounds=3, student_layers=1), training=training(), folder=tmp_path).run()
    for silo in silos(size=20):
        kept, steps = kept_by(tmp_path, silo.name), 3 * -(-len(silo.train) // BATCH)
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
    classes = [each[batch["labels"] == label].mean() for label in (0, 1)]
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


# --- where no learning rate is named, a model's width says it -----------------------------------


NONE = TrainingSettings(device="cpu")


def bert(width: int, kind: type[PreTrainedModel] = BertForSequenceClassification) -> Any:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    return kind(BertConfig(vocab_size=8, hidden_size=width, **shape))


@pytest.mark.parametrize(("width", "rate"), [(1024, 2.81e-5), (768, 5e-5), (384, 2e-4), (32, MOST)])
def test_narrow_models_take_larger_steps(width: int, rate: float) -> None:
    model = bert(width)
    (group,) = make_optimizer(model, NONE).param_groups
    assert learning_rate_of(model, NONE) == group["lr"] == group["initial_lr"] == rate
    entities = learning_rate_of(bert(width, BertForTokenClassification), NONE)
    assert entities == (MOST_OF_ENTITIES if rate == MOST else rate)


def test_who_learns_alone_takes_half_steps() -> None:
    site = site_of(silos(1)[0], NONE)
    model, named = site.model(), TrainingSettings(learning_rate=0.3)
    assert [group["lr"] for group in site.optimizer(model).param_groups] == [MOST / 2]
    assert [learning_rate_of(model, how, alone=True) for how in (NONE, named)] == [MOST / 2, 0.3]
    wide = bert(384)
    assert learning_rate_of(wide, NONE, alone=True) == learning_rate_of(wide, NONE)
    learner = Learner.of(site, FedID(), model)
    assert [group["lr"] for group in learner.public.param_groups] == [MOST / 2]


def test_batches_are_larger_under_dp_where_nobody_says() -> None:
    dp = DPSettings(epsilon=8)
    assert TrainingSettings().batch_size == 8
    assert TrainingSettings(dp=dp).batch_size == 32
    assert TrainingSettings(dp=dp, batch_size=4).batch_size == 4
    study = 'data = {corpus = "ade"}\nalgorithm = {name = "fedavg"}\n[training.dp]\nepsilon = 8\n'
    assert loads(study).training.batch_size == 32
    assert loads(dump(loads(study))).training.batch_size == 32


def test_settings_sgd_and_other_models_have_rates_of_their_own() -> None:
    named = TrainingSettings(learning_rate=0.3)
    assert learning_rate_of(bert(8), named) == 0.3
    assert with_rate(named, ModelSettings(), "ner") is named
    assert learning_rate_of(bert(768), TrainingSettings(optimizer="sgd")) == SGD
    assert learning_rate_of(nn.Linear(2, 2), NONE) == 5e-5


def test_it_is_known_before_a_model_is_there() -> None:
    assert with_rate(NONE, ModelSettings(), "pair").learning_rate == MOST
    assert with_rate(NONE, ModelSettings(), "ner").learning_rate == MOST_OF_ENTITIES
    beside = ModelSettings(adapter=AdapterSettings())
    assert with_rate(NONE, beside, "ner").learning_rate == MOST_OF_ADAPTERS
    study = 'data = {corpus = "%s"}\ntask = {kind = "%s"}\nalgorithm = {name = "fedavg"}\n'
    assert around(loads(study % ("ade", "classification")))[RATE][2] == MOST
    assert around(loads(study % ("ner", "ner")))[RATE][2] == MOST_OF_ENTITIES


def test_a_teacher_has_a_quarter_of_its_students() -> None:
    pair = make_pair(site_of(silos(1)[0], NONE), FedKD(student_layers=1, tied=False))
    assert isinstance(pair, Pair)
    assert [rate for _, rate in pair.parts()] == [MOST / 4, MOST, MOST]


@pytest.mark.slow
def test_the_built_in_model_leaves_one_class_by_the_usual_rate_alone() -> None:
    def said(rate: float | None) -> float:
        training = TrainingSettings(learning_rate=rate, device="cpu")
        run = small(FedAvg(rounds=10), silos=silos(3, 160), training=training).run()
        return run.pooled("test")["mcc"]

    assert said(5e-5) == 0.0  # BERT's rate, which was the default for all
    assert said(None) > 0.2
