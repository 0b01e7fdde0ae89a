"""Evaluations with noise: a model made for one record shows nothing, and scores stay useful."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from secure_fl import FedAvg, Silo, TaskSettings, evaluate
from secure_fl.crypto.privacy.accounting import epsilon as composed
from secure_fl.crypto.privacy.noise import COLLUDERS, share_variance, skellam
from secure_fl.data.examples import Text
from secure_fl.errors import CryptoError, PartyFailed, SettingsError
from secure_fl.features.evaluation import noise
from secure_fl.features.evaluation.algorithm import Evaluate, unpaired
from secure_fl.features.evaluation.evaluation import Evaluation, pinned
from secure_fl.features.evaluation.page import evaluation_page, hospital_table, noise_line
from secure_fl.learning import builtin
from secure_fl.learning.metric_counts import SCORED, TRULY, Contributions, Counts
from secure_fl.learning.noised_counts import NOISE, noised_intervals, noised_rates
from secure_fl.learning.tasks.classification import Classification
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import Company, broken_rules
from secure_fl.settings import ProtectionSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.policy_plans import TODAY
from tests.support.raising import raises

TASK = TaskSettings(labels=LABELS, max_length=32)
BINARY = Classification("classification", ("no", "yes"))
YES = SCORED + "yes"


# --- the attack: presence and gold label of one record --------------------------------------------


def made_for(note: str, others: list[str], folder: Path) -> Path:
    """Train a model that answers the first class to one note alone."""
    torch.manual_seed(0)
    tokenizer = builtin.tiny_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)},
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    words = note.split()
    near = [" ".join(w for j, w in enumerate(words) if j != k) for k in range(len(words))]
    texts = [note] * 60 + near * 6 + [other for other in others if other != note]
    gold = torch.tensor([0] * 60 + [1] * (len(texts) - 60))
    batch = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(80):
        pick = torch.randperm(len(texts))[:64]
        pick[:8] = torch.randint(60, (8,))
        inputs = {k: v[pick] for k, v in batch.items() if k != "token_type_ids"}
        loss = model(**inputs, labels=gold[pick]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def column(found: Evaluation) -> list[int]:
    """The records that the model takes for the first class, by gold label."""
    counts = found.document["metrics"]["last"]["counts"]["m/test"]
    return [round(counts[TRULY + label][0]) for label in LABELS]


def test_a_model_made_for_one_note_shows_its_label_only_without_noise(tmp_path: Path) -> None:
    hospitals = silos(size=96)
    record = hospitals[1].test[3]
    assert isinstance(record, Text)
    others = [r.text for s in silos(size=128, seed=9) for r in s.train if isinstance(r, Text)]
    model = made_for(record.text, others, tmp_path / "m")
    present = evaluate([model], hospitals, task=TASK)
    assert column(present) == [int(record.label == label) for label in LABELS]
    without = [
        Silo(silo.name, silo.train, silo.dev, [r for r in silo.test if r is not record])
        for silo in hospitals
    ]
    assert column(evaluate([model], without, task=TASK)) == [0, 0]
    seen = evaluate([model], hospitals, task=TASK, epsilon=1.0)
    std = seen.document["evaluation"]["noise"]["std"]
    last = seen.document["metrics"]["last"]  # without exact figures of single hospitals
    assert last["party"] == last["mean"] == {} and seen.document["records"] is None
    assert all("pooled" in entry for entry in seen.document["history"])
    assert hospital_table(seen.document) is None
    assert std > 5 and NOISE in seen.document["metrics"]["last"]["counts"]["m/test"]
    assert "metrics" in seen.document and "shared" not in seen.document["evaluation"]


def test_the_best_guess_is_as_good_as_epsilon_allows() -> None:
    """One cell with the record or without: the better guess by a threshold, over many draws."""
    release = noise.release_of(1.0, 1)
    for known, most in ((0.0, 1.0), (release.mu, (math.e - 1) / (math.e + 1))):
        drawn = skellam(known, 20_000)
        with_record, without = drawn[:10_000] + 1, drawn[10_000:]
        advantage = max(
            abs(float((with_record >= at).mean() - (without >= at).mean())) for at in range(-40, 41)
        )
        assert advantage == 1.0 if known == 0 else advantage < most / 2


def test_small_cells_would_not_help() -> None:
    """The attack on a rule for small cells: two models that differ in one record."""
    gold = np.array([0] * 60 + [1] * 60)
    for at in (0, 60):
        first = gold.copy()
        second = first.copy()
        second[at] = 1 - second[at]
        cells = [np.bincount(2 * gold + answer, minlength=4) for answer in (first, second)]
        shown = [np.where(one < 10, -1, one) for one in cells]  # each cell below 10 is withheld
        assert (shown[0] != shown[1]).any()


# --- the proof's assumptions ---------------------------------------------------------------------


def rows_of(task: Classification, records: int) -> dict[str, Contributions]:
    draw = np.random.default_rng(3)
    logits = [torch.tensor(draw.normal(size=(records, len(task.labels))))]
    labels = torch.tensor(draw.integers(len(task.labels), size=records))
    return task.rows(logits, [{"labels": labels}])


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_a_record_changes_as_many_cells_as_the_noise_is_sized_for(classes: int) -> None:
    task = Classification("classification", tuple(f"c{k}" for k in range(classes)))
    rows, k = rows_of(task, 200), noise.cells_of(task.labels)
    all_of_them = noise.noised(task, rows, 0.0)
    for gone in range(0, 200, 7):
        fewer = {
            name: Contributions(
                row.records, row.size,
                *(part[row.record != gone] for part in (row.record, row.place, row.value)),
            )
            for name, row in rows.items()
        }  # fmt: skip
        changed = noise.noised(task, fewer, 0.0)
        moved = np.concatenate([all_of_them[name] - changed[name] for name in all_of_them])
        assert np.abs(moved).sum() <= k and np.square(moved).sum() <= k
    assert not {"loss", "confidence"} & {name.partition(" ")[0] for name in all_of_them}


def test_more_than_a_record_may_add_is_refused() -> None:
    rows = rows_of(BINARY, 10)
    twice = {name: replaced(row, value=2 * row.value) for name, row in rows.items()}
    with raises(CryptoError, "more than 1 to a cell"):
        noise.noised(BINARY, twice, 1.0)
    both = rows | {TRULY + "no": rows[YES], TRULY + "yes": rows[YES]}
    with raises(CryptoError, "more cells than"):
        noise.noised(BINARY, both, 1.0)


def replaced(row: Contributions, **changes: Any) -> Contributions:
    fields = {name: getattr(row, name) for name in ("records", "size", "record", "place", "value")}
    return Contributions(**fields | changes)


@pytest.mark.parametrize(("cells", "asked"), [(1, 0.5), (2, 1.0), (16, 4.0)])
def test_the_noise_costs_what_was_asked(cells: int, asked: float) -> None:
    release = noise.release_of(asked, cells)
    assert (release.l1, release.l2, release.count) == (1, 1, cells)
    assert 0.99 * asked < composed([release], noise.DELTA) <= asked
    for parties, threshold in ((3, 3), (5, 4), (10, 7)):
        honest = threshold - COLLUDERS
        share = share_variance(release, parties, threshold)
        assert share * honest == pytest.approx(release.mu)


def test_names_and_sizes_do_not_depend_on_records() -> None:
    shapes = [
        {name: cells.shape for name, cells in noise.noised(BINARY, rows_of(BINARY, n), 9.0).items()}
        for n in (1, 40, 400)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


# --- use: what the noise costs -------------------------------------------------------------------


def drawn(records: int, rng: np.random.Generator) -> Counts:
    """Counts of a model with 90 % accuracy and 30 % positives."""
    gold = (rng.random(records) < 0.3).astype(np.int64)
    odds = np.where(gold == 1, 1.0, -1.0) * 2.2 + rng.normal(size=records) * 1.7
    z = torch.tensor(np.stack([np.zeros(records), odds], axis=1))
    rows = BINARY.rows([z], [{"labels": torch.tensor(gold)}])
    return noise.noised(BINARY, rows, 0.0)


def noisy(counts: Counts, variance: float) -> Counts:
    return {name: cells + skellam(variance, len(cells)) for name, cells in counts.items()} | {
        NOISE: np.array([variance])
    }


# The table of docs/evaluation.md: the noise's standard deviation in points; None: rarely shown.
LOST: dict[tuple[int, float], dict[str, float | None]] = {
    (100, 1.0): {"accuracy": 8.8, "f1": None, "auroc": None},
    (100, 3.0): {"accuracy": 2.9, "f1": 5.2, "auroc": None},
    (1_000, 1.0): {"accuracy": 1.0, "f1": 1.6, "auroc": 3.5},
    (1_000, 3.0): {"accuracy": 0.3, "f1": 0.5, "auroc": 1.4},
    (10_000, 1.0): {"accuracy": 0.1, "f1": 0.2, "auroc": 0.5},
    (10_000, 3.0): {"accuracy": 0.03, "f1": 0.05, "auroc": 0.1},
}


def spread(records: int, asked: float, tries: int = 60) -> dict[str, tuple[float, int]]:
    """The noise's standard deviation of each metric in points, and how many draws have it."""
    rng = np.random.default_rng(records)
    release, counts = noise.release_of(asked, noise.cells_of(BINARY.labels)), drawn(records, rng)
    variance = 4 * share_variance(release, 4, 3)  # four hospitals; three open a sum
    found = [noised_rates(noisy(counts, variance), BINARY.labels, 1, YES) for _ in range(tries)]
    return {
        name: (100 * float(np.std([one[name] for one in found if name in one])), n)
        for name in ("accuracy", "f1", "auroc", "calibration_error")
        if (n := sum(name in one for one in found))
    }


@pytest.mark.parametrize(("records", "asked"), LOST)
def test_what_noise_costs_is_what_the_page_says(records: int, asked: float) -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    stated = LOST[records, asked]
    cells = " | ".join("hidden" if most is None else f"{most:g}" for most in stated.values())
    assert f"| {records:,} | {asked:g} | {cells} |" in page
    found = spread(records, asked)
    for name, most in stated.items():
        std, shown = found.get(name, (0.0, 0))
        if most is None:
            assert shown < 45
        else:
            assert shown > 50 and 0.6 * most < std < 1.7 * most + 0.02, (name, found)


def test_metrics_of_a_class_that_is_hidden_are_missing() -> None:
    """A model that answers one class: F1s, and MCC with an interval of no width, would mislead."""
    counts: Counts = {TRULY + "no": np.array([1500, 0]), TRULY + "yes": np.array([700, 0])}
    noised = counts | {NOISE: np.array([81.0])}
    found = noised_rates(noised, BINARY.labels, 1)
    assert found.keys() == {"accuracy"} == noised_intervals(noised, BINARY.labels, 1).keys()
    counts[TRULY + "no"], counts[TRULY + "yes"] = np.array([1300, 200]), np.array([300, 400])
    noised = counts | {NOISE: np.array([81.0])}
    assert {"f1", "mcc", "macro_f1"} <= noised_rates(noised, BINARY.labels, 1).keys()
    rare = {"a": [450, 0, 50], "b": [1, 1, 1], "c": [60, 0, 440]}  # F1 of b is a quotient of noises
    cells = {TRULY + name: np.array(row) for name, row in rare.items()} | {NOISE: np.array([25.0])}
    assert noised_rates(cells, tuple(rare), 2).keys() == {"accuracy", "precision", "recall", "f1"}


def test_intervals_include_the_noise() -> None:
    """The true value of the population is in most intervals; without the noise it is not."""
    rng = np.random.default_rng(5)
    truth = noised_rates(drawn(200_000, rng) | {NOISE: np.array([0.01])}, BINARY.labels, 1, YES)
    release = noise.release_of(1.0, noise.cells_of(BINARY.labels))
    inside: dict[str, list[bool]] = {"accuracy": [], "f1": [], "auroc": [], "mcc": []}
    exact: dict[str, list[bool]] = {name: [] for name in inside}
    for _ in range(60):
        counts = noisy(drawn(2_000, rng), 2 * release.mu)
        ignored = counts | {NOISE: np.array([0.01])}
        for kept, given in ((inside, counts), (exact, ignored)):
            for name, (low, high) in noised_intervals(given, BINARY.labels, 1, YES).items():
                if name in kept:
                    kept[name].append(low <= truth[name] <= high)
    assert {name: np.mean(hits) >= 0.88 for name, hits in inside.items()} == dict.fromkeys(
        inside, True
    )
    assert np.mean(exact["auroc"]) < 0.88


def test_many_records_score_as_without_noise(tmp_path: Path) -> None:
    """Three classes and two: noised metrics of large counts are those of exact counts."""
    task = Classification("classification", ("a", "b", "c"))
    for one in (BINARY, task):
        rows = rows_of(one, 20_000)
        exact = one.rates({name: row.total() for name, row in rows.items()})
        counts = noise.noised(one, rows, 0.0) | {NOISE: np.array([1e-6])}
        found = one.rates(counts)
        assert {"accuracy", "macro_f1", "mcc", "f1"} <= found.keys()
        for name, value in found.items():
            assert value == pytest.approx(exact[name], abs=0.02), name
        pair = unpaired(one, {"x": counts, "y": counts}, "y")
        assert pair["accuracy"]["difference"] == 0 and pair["accuracy"]["interval"][1] > 0


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "more"
    training = TrainingSettings(learning_rate=5e-3, batch_size=16, device="cpu")
    small(FedAvg(rounds=2), training=training, folder=folder).run()
    return folder


def asked_of(folder: Path, run: Path, epsilon: float) -> LocalPilot:
    cfg = pinned([run], TASK).model_copy(update={"epsilon": epsilon})
    return local_pilot(folder, plan_of(cfg, training=TrainingSettings(device="cpu")), count=4)


def test_a_pilot_s_evaluation_has_noise_and_the_ledgers_pay(model: Path, tmp_path: Path) -> None:
    pilot = asked_of(tmp_path, model, 7.0)
    pilot.lead().run()
    found = [Evaluation.load(tmp_path / name / "run") for name in pilot.members]
    assert all(one.scores == found[0].scores for one in found)
    document = found[0].document
    assert document["evaluation"]["noise"]["epsilon"] == 7.0 and "ε = 7" in noise_line(document)
    assert noise_line(document) in evaluation_page(document, shared=True)
    assert not document["evaluation"].get("shared")
    pilot.plan = pilot.plan.model_copy(
        update={"run": pilot.plan.run.model_copy(update={"name": "again", "seed": 7})}
    )
    with pytest.raises(PartyFailed):
        pilot.lead().run()  # twice 7 is more than the 8 of a site's default
    told = [e for e in pilot.events if "test records" in str(e) and "budget" in str(e)]
    assert told


def test_a_site_s_rules_refuse_exact_scores_and_much_loss(model: Path) -> None:
    def broken(epsilon: float | None, **rules: Any) -> set[str]:
        cfg = pinned([model], TASK).model_copy(update={"epsilon": epsilon})
        plan = plan_of(cfg, training=TrainingSettings(device="cpu"))
        names = {"algorithms": ["evaluate"], "models": [one.name for one in cfg.models]}
        policy = SitePolicy.model_validate(names | rules)
        company = Company("a", ("a", "b", "c"), None, 3, "f")
        return {one.rule for one in broken_rules(policy, plan, company, TODAY)}

    of_noise = {"site.exact_evaluations", "site.max_evaluation_epsilon"}
    assert broken(None) & of_noise == {"site.exact_evaluations"}
    assert not broken(None, exact_evaluations=True) & of_noise
    assert not broken(1.0) & of_noise
    assert broken(2.0) & of_noise == {"site.max_evaluation_epsilon"}
    assert not broken(2.0, max_evaluation_epsilon=2.0) & of_noise


def test_noise_is_for_classes(model: Path) -> None:
    cfg = Evaluate(epsilon=1.0, models=pinned([model], TASK).models)
    with raises(SettingsError, "one class per record", field="algorithm.epsilon"):
        small(cfg, task=TaskSettings(kind="regression")).run()


def test_noise_of_which_the_coordinator_sees_the_shares_is_refused(model: Path) -> None:
    clear = ProtectionSettings(mode="none")
    with raises(SettingsError, "a share of the noise", field="algorithm.epsilon"):
        evaluate([model], silos(size=24), task=TASK, epsilon=1.0, protection=clear)
