"""The probe: one answer however records are spread, exact folders, one encoding, today's DP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from transformers import BertConfig, BertForSequenceClassification, pipeline

from secure_fl import FedSGD, ModelSettings, ProtectionSettings, Silo, TrainingSettings
from secure_fl.algorithms.probe import Probe, fits
from secure_fl.algorithms.probe.algorithm import private_gradient, steps_of
from secure_fl.algorithms.probe.features import (
    CONSTANT,
    Probing,
    Rows,
    public_directions,
    training_rows,
)
from secure_fl.corpora import make, public
from secure_fl.corpora.codes import LABELS as CODES
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError, PartyFailed, SettingsError
from secure_fl.learning.builtin import tiny_config, tiny_tokenizer
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_backbone
from secure_fl.learning.tasks.heads import ProbeClassifier
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import SumRequest
from secure_fl.party.summing import Summing
from secure_fl.settings import DPSettings, TaskSettings
from secure_fl.testing.harness import LossyEngine, federate
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.families import save
from tests.support.private import make_site, notes
from tests.support.raising import raises
from tests.support.sampling import mostly_slow
from tests.support.token_hospitals import corpora, ner

TASK = TaskSettings(labels=LABELS, positive="ade", max_length=32)
LOGISTIC = Probe(fit="logistic", rounds=6)
CPU = TrainingSettings(device="cpu")


def run(algorithm: Probe | None = None, mode: Any = "none", **options: Any) -> Any:
    return small(algorithm or Probe(), mode, **{"training": CPU, "task": TASK} | options).run()


def pooled(parts: int, texts: int = 0) -> list[Silo]:
    """The same 240 notes, spread over so many hospitals, some of which have one class."""
    records = [e for s in make("ade", parties=3, seed=0, size=80) for e in s.train]
    records.sort(key=lambda e: str(getattr(e, "label", "")))
    own = public("ade", seed=0, size=texts) if texts else ()
    cuts = np.array_split(np.arange(len(records)), parts)
    tests = make("ade", parties=1, seed=5, size=40)[0].test
    named = [(f"h{i}", [records[j] for j in cut]) for i, cut in enumerate(cuts)]
    return [Silo(n, r, test=tests if n == "h0" else (), public=own) for n, r in named]


def head(result: Any) -> torch.Tensor:
    model = result.model
    return torch.cat([model.classifier.weight, model.classifier.bias[:, None]], 1)


MODES = ("none", "secagg", "he+secagg")


@pytest.mark.parametrize("algorithm", [LOGISTIC, FedSGD(rounds=1, sample_rate=1.0)])
def test_gradients_that_no_seed_changes_answer_one_question(
    algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two sums in the first step is the gradient of the hospital that left."""
    config = BertConfig(**tiny_config(len(tiny_tokenizer())).to_dict(), num_labels=2)
    with torch.random.fork_rng():
        BertForSequenceClassification(config).save_pretrained(tmp_path)  # with a head
    tiny_tokenizer().save_pretrained(tmp_path)
    asked: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    sent, opened, add = list[Any](), list[Any](), Summing.sum

    async def watching(self: Summing, request: SumRequest) -> Any:
        sums, me = await add(self, request), self._members.me
        if self.round == 1 and "gradient" in request.values:
            asked[me].add(tuple(request.questions))
            if me == "h0":
                opened.append(np.ravel(sums["gradient"]))
            elif me == "h3":
                sent.append(np.ravel(request.values["gradient"]))
        return sums

    monkeypatch.setattr(Summing, "sum", watching)
    for seed, own in enumerate((pooled(4), pooled(4)[:3])):
        model = ModelSettings(name=str(tmp_path), pooling="cls")
        small(algorithm, silos=own, task=TASK, training=CPU, model=model, seed=seed).run()
    np.testing.assert_allclose(opened[0] - opened[1], sent[0], atol=1e-4 * np.abs(sent[0]).max())
    assert all(len(questions) == 1 and questions != {()} for questions in asked.values())


# --- one exchange ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", mostly_slow(MODES, "none", "he+secagg"))
def test_a_ridge_does_not_depend_on_how_records_are_spread(mode: str) -> None:
    """As far as the 24 bits of a sealed sum go; a hospital of one class contributes too."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    texts = [e.text for e in pooled(1)[0].test if isinstance(e, Text)]
    for parts in (1, 3, 8):
        protection = ProtectionSettings(mode="none" if parts == 1 else mode, min_cohort=1)  # type: ignore[arg-type]
        result = run(silos=pooled(parts), protection=protection)
        answers = [answer["probabilities"]["ade"] for answer in result.predict(texts)]
        found.append((head(result), torch.tensor(answers)))
    (weights, chances), *others = found
    assert float(chances.std()) > 0.1
    sealed = mode != "none"
    for other, theirs in others:
        off = float((other - weights).abs().max() / weights.std())
        assert off < (0.05 if sealed else 1e-3)
        torch.testing.assert_close(theirs, chances, rtol=0, atol=2e-3 if sealed else 1e-4)


def rows(n: int, d: int, classes: int, seed: int = 0, apart: float = 1.0) -> Rows:
    """Features of length 1 whose classes have different means and frequencies."""
    g = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.arange(1.0, classes + 1), n, replacement=True, generator=g)
    means = apart * torch.randn(classes, d, generator=torch.Generator().manual_seed(1)) / d**0.5
    x = torch.randn(n, d, generator=g) / d**0.5 + means[y]
    x = torch.nn.functional.normalize(x, dim=1)
    return Rows(torch.cat([x, torch.full((n, 1), CONSTANT)], 1), y)


def test_a_ridge_solves_the_normal_equations_with_the_best_left_out_error() -> None:
    """Regression gives the weights as they are: compared with numpy, and leave-one-out."""
    given = rows(60, 10, 2)
    y = given.x[:, :3].sum(1) + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(2))
    W = fits.ridge(fits.moments(Rows(given.x, y), 0), 11, 0)[:, 0]
    X, t = given.x.double().numpy(), y.double().numpy()
    errors = {}
    for share in fits.PENALTIES:
        G = X.T @ X + 60 * share * np.diag([1.0] * 10 + [0.0])
        H = X @ np.linalg.solve(G, X.T)
        h = np.trace(H) / 60
        errors[share] = float((((t - H @ t) / (1 - h)) ** 2).sum()), np.linalg.solve(G, X.T @ t)
    best = min(errors.values(), key=lambda pair: pair[0])[1]
    np.testing.assert_allclose(W, best, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_of_a_ridge_are_calibrated_on_other_records(classes: int) -> None:
    train, test = rows(150, 100, classes, apart=2.0), rows(4000, 100, classes, 7, apart=2.0)
    W = torch.from_numpy(fits.ridge(fits.moments(train, classes), 101, classes))
    z = test.x.double() @ W
    loss = float(torch.nn.functional.cross_entropy(z, test.y))
    best = min(
        float(torch.nn.functional.cross_entropy(z * t, test.y)) for t in np.arange(0.3, 3, 0.05)
    )
    assert loss < best + 0.02  # no temperature would have helped much
    shares = test.y.bincount(minlength=classes) / len(test.y)
    assert float((z.softmax(-1).mean(0) - shares).abs().max()) < 0.06


def test_balanced_classes_have_equal_priors() -> None:
    given = rows(400, 20, 2, apart=0.0)
    kept, equal = (
        given.x.double() @ torch.from_numpy(fits.ridge(fits.moments(given, 2), 21, 2, balanced=b))
        for b in (False, True)
    )
    assert float((kept.argmax(-1) == 1).double().mean()) > 0.9  # the commoner class
    assert 0.3 < float((equal.argmax(-1) == 1).double().mean()) < 0.7


def test_more_features_than_records_and_a_class_that_is_absent() -> None:
    given = rows(12, 40, 2)
    W = fits.ridge(fits.moments(given, 3), 41, 3)  # nobody has the third class
    z = given.x.double() @ torch.from_numpy(W)
    assert np.isfinite(W).all() and not (z.argmax(-1) == 2).any()
    assert float((z.argmax(-1) == given.y).double().mean()) > 0.7


def coded(n: int, d: int, labels: int, seed: int = 0) -> Rows:
    """Rows with zero or more labels, each with its own direction and frequency; the last is rare.

    Nobody has the label before the last, and everybody the one before that.
    """
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, labels, generator=g) < torch.linspace(0.6, 0.1, labels)).float()
    y[:, -3], y[:, -2] = 1, 0
    means = 2 * torch.randn(labels, d, generator=torch.Generator().manual_seed(1)) / d**0.5
    x = torch.nn.functional.normalize(torch.randn(n, d, generator=g) / d**0.5 + y @ means, dim=1)
    return Rows(torch.cat([x, torch.full((n, 1), CONSTANT)], 1), y)


def test_every_label_of_a_ridge_is_calibrated_on_other_records() -> None:
    train, test = coded(150, 60, 7), coded(4000, 60, 7, 7)
    W = torch.from_numpy(fits.ridge(fits.moments(train, 7), 61, 7, exclusive=False))
    z = test.x.double() @ W
    assert bool((z[:, -3] > 20).all()) and bool((z[:, -2] < -20).all())
    learned = [0, 1, 2, 3, 6]

    def loss(t: float) -> float:
        y = test.y[:, learned].double()
        return float(F.binary_cross_entropy_with_logits(z[:, learned] * t, y))

    assert loss(1.0) < min(map(loss, np.arange(0.3, 3, 0.05))) + 0.02
    assert loss(1.0) < 0.8 * loss(0.0)
    off = (z.sigmoid().mean(0) - test.y.double().mean(0)).abs()
    assert float(off[learned].max()) < 0.08


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_steps_end_near_the_least_loss(classes: int) -> None:
    given = rows(300, 10, classes, apart=2.0)
    state: dict[str, Any] = fits.start(11, classes) | {"rate": 300 / fits.curvature(given)}
    for t in range(60):
        g = fits.gradient(given, state["W"], classes).numpy()
        state |= fits.step(state, g / 300, classes, average=t >= 45)
    W = torch.from_numpy(state["weights"]).requires_grad_()
    loss = torch.nn.functional.cross_entropy(given.x.double() @ W, given.y)
    (slope,) = torch.autograd.grad(loss, W)
    assert loss.item() < 0.9 * np.log(classes) and slope.norm().item() < 0.01


@pytest.mark.parametrize("labels", [4, 5])
def test_steps_of_several_labels_end_near_the_least_loss(labels: int) -> None:
    given = coded(300, 10, labels)
    state: dict[str, Any] = fits.start(11, labels, exclusive=False)
    state |= {"rate": 300 / fits.curvature(given)}
    for t in range(60):
        g = fits.gradient(given, state["W"], labels)
        W = torch.from_numpy(state["W"]).requires_grad_()
        loss = F.binary_cross_entropy_with_logits(
            given.x.double() @ W, given.y.double(), reduction="sum"
        )
        torch.testing.assert_close(g, torch.autograd.grad(loss, W)[0], rtol=1e-4, atol=1e-4)
        state |= fits.step(state, g.numpy() / 300, labels, average=t >= 45)
    free = [0, labels - 1]
    before, after = (
        float(
            F.binary_cross_entropy_with_logits(
                (given.x.double() @ w)[:, free], given.y.double()[:, free]
            )
        )
        for w in (torch.zeros(11, labels).double(), torch.from_numpy(state["weights"]))
    )
    assert after < 0.85 * before


def slopes(given: Rows, W: torch.Tensor, classes: int) -> torch.Tensor:
    """The gradient of each record, by autograd."""
    found = []
    for x, y in zip(given.x.double(), given.y, strict=True):
        w = W.clone().requires_grad_()
        z = fits.both(x[None] @ w, classes)
        found.append(torch.autograd.grad(torch.nn.functional.cross_entropy(z, y[None]), w)[0])
    return torch.stack(found)


def weights(size: int, classes: int) -> torch.Tensor:
    seed = torch.Generator().manual_seed(4)
    return torch.randn(size, classes if classes > 2 else 1, generator=seed).double()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_gradient_is_that_of_autograd(classes: int) -> None:
    given, W = rows(50, 8, classes), weights(9, classes)
    total = fits.gradient(given, W.numpy(), classes)
    torch.testing.assert_close(total, slopes(given, W, classes).sum(0), rtol=1e-4, atol=1e-5)


def privately(given: Rows, W: torch.Tensor, classes: int, **fields: Any) -> np.ndarray[Any, Any]:
    """The mean gradient of two hospitals with these rows, under local noise."""
    sites = {name: make_site(notes(len(given.y)), passes=1, **fields) for name in ("a", "b")}

    def program(site: Any) -> Any:
        async def run(cohort: Any) -> Any:
            steps = steps_of(cohort, site, 2.0 * len(given.y))
            return await private_gradient(steps, given, W.numpy(), classes)

        return run

    out = federate({name: program(site) for name, site in sites.items()})
    assert np.array_equal(out.results["a"], out.results["b"])
    statements = [site.privacy.statement() for site in sites.values() if site.privacy]
    assert [s["steps"] > 0 for s in statements] == [True, True]
    return np.asarray(out.results["a"])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("unit", ["record", "patient"])
def test_a_private_gradient_is_of_records_cut_to_the_bound(classes: int, unit: Any) -> None:
    """All classes of a record together; with almost no noise."""
    given, W, C = rows(40, 8, classes), weights(9, classes), 0.3
    records = notes(40, patients=10)
    each = slopes(given, W, classes).flatten(1)
    if unit == "patient":
        each = torch.stack([each[[*range(p, 40, 10)]].mean(0) for p in range(10)])
    cut = each * (C / each.norm(dim=1, keepdim=True).clamp(min=C))
    assert float(each.norm(dim=1).max()) > C
    site = make_site(
        records, passes=1, noise_multiplier=1e-3, epsilon=1e9, max_grad_norm=C, unit=unit
    )
    site.privacy.sample_rate = 1.0  # type: ignore[union-attr]

    async def run(cohort: Any) -> Any:
        steps = steps_of(cohort, site, float(len(each)))
        return await private_gradient(steps, given, W.numpy(), classes)

    found = federate({"a": run}, min_cohort=1).results["a"]
    most = C * np.ceil(CONSTANT * len(each))  # of one value in a hospital's sum
    expected = (cut.sum(0).clamp(-most, most) / len(each)).reshape(W.shape).numpy()
    np.testing.assert_allclose(found, expected, atol=C * 0.01)


def test_a_private_gradient_has_noise_of_the_claimed_size() -> None:
    given = rows(40, 5000, 2)
    W = torch.full((5001, 1), 0.1).double()
    noised = privately(given, W, 2, noise_multiplier=2.0, max_grad_norm=0.3, batch_size=40)
    exact = slopes(given, W, 2)
    exact *= (0.3 / exact.flatten(1).norm(dim=1).clamp(min=0.3))[:, None, None]
    off = torch.from_numpy(noised) * 80 - 2 * exact.sum(0)
    assert float(off.std()) == pytest.approx(2.0 * 0.3 * 2**0.5, rel=0.06)
    assert float(off.mean()) == pytest.approx(0, abs=5 * 0.85 / 5001**0.5)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [Probe(), Probe(fit="logistic", rounds=30)])
def test_a_probe_learns_several_labels(fit: Probe, tmp_path: Path, code_cache: Path) -> None:
    splits = make("codes", parties=3, seed=0, size=120)
    notes = public("codes", seed=0, size=240)
    own = [Silo(f"h{k}", s.train, s.dev, s.test, public=notes) for k, s in enumerate(splits)]
    task = TaskSettings(kind="multilabel", labels=CODES, max_length=48)
    result = run(fit, "he+secagg", silos=own, model=ModelSettings(), task=task, folder=tmp_path)
    assert result.pooled("test")["auroc"] > 0.65
    (answer,) = result.predict([own[0].test[0].text])  # type: ignore[union-attr]
    text = own[0].test[0].text  # type: ignore[union-attr]
    (said,) = in_a_pipeline(tmp_path / "model")([text], top_k=None)
    assert {one["label"]: one["score"] for one in said} == pytest.approx(
        answer["probabilities"], abs=1e-5
    )


def test_steps_of_several_labels_can_share_their_noise() -> None:
    splits = make("codes", parties=3, seed=0, size=40)
    own = [Silo(f"h{k}", s.train, (), s.test) for k, s in enumerate(splits)]
    task = TaskSettings(kind="multilabel", labels=CODES, max_length=48)
    training = TrainingSettings(device="cpu", dp=DPSettings(epsilon=1e4, noise="shared"))
    steps = Probe(fit="logistic", rounds=20)
    result = run(
        steps, "secagg", silos=own, model=ModelSettings(layers=1), task=task, training=training
    )
    assert result.pooled("test")["auroc"] > 0.6


def test_private_steps_stay_within_their_budget(tmp_path: Path) -> None:
    dp = DPSettings(epsilon=8.0, max_grad_norm=0.5, accountant="rdp")
    training = TrainingSettings(device="cpu", dp=dp)
    own = [replace(s, public=public("ade", seed=0, size=120)) for s in silos(3, 120)]
    steps = Probe(fit="logistic", rounds=8)
    result = run(
        steps, "he+secagg", training=training, silos=own, model=ModelSettings(),
        folder=tmp_path / "run",
    )  # fmt: skip
    privacy = result.document["privacy"]
    assert privacy["overall_epsilon"] == pytest.approx(8.0, rel=0.01)
    assert set(privacy["steps"].values()) == {8} and set(privacy["sample_rate"].values()) == {1.0}
    for party in ("hospital-1", "hospital-2", "hospital-3"):
        chain = load_chain(tmp_path / "run" / "parties" / party / "ledger.sqlite")
        assert sum(entry.state == "reserved" for entry in chain.entries) == 8
    assert result.pooled("test")["auroc"] > 0.6


def test_hospitals_with_other_budgets_left_have_one_learning_rate(tmp_path: Path) -> None:
    """A hospital that spent on another study calibrates more noise for its own steps."""
    own = silos(4, 48)

    def train(members: list[Silo], **given: Any) -> Any:
        training = TrainingSettings(device="cpu", dp=DPSettings(ledger=str(tmp_path), **given))
        return run(Probe(fit="logistic", rounds=2), silos=members, training=training)

    train([own[0], own[1], own[3]], epsilon=60.0, target_epsilon=40.0)
    noise = train(own[:3], epsilon=60.0).document["privacy"]["noise_multiplier"]
    assert noise["hospital-1"] > 1.2 * noise["hospital-3"]


def test_a_lost_hospital_does_not_stop_the_steps() -> None:
    federation = small(LOGISTIC, "he+secagg", training=CPU, task=TASK, silos=silos(4, 24))
    result = federation.run(lambda s: LossyEngine(s, lose={"hospital-4": 14}))
    last: dict[str, int] = {}
    for entry in result.document["history"]:
        last[entry["party"]] = max(entry["round"], last.get(entry["party"], 0))
    assert last["hospital-1"] == 6 and last["hospital-4"] < 6


def test_each_text_is_encoded_once() -> None:
    model = Probing(load_backbone(ModelSettings(layers=1), tiny_tokenizer(), 0), 2).eval()
    passes: list[int] = []
    model.backbone.register_forward_hook(lambda *_: passes.append(1))
    inputs = tiny_tokenizer()(["fever and cough", "rash"], padding=True, return_tensors="pt")
    first, again = (model(**inputs).logits for _ in range(2))
    assert len(passes) == 1 and torch.equal(first, again)
    model.forget()
    torch.testing.assert_close(model(**inputs).logits, first)
    assert len(passes) == 2


def test_rows_are_in_the_order_of_the_records() -> None:
    """DP-SGD clips by the numbers of records; encoding is by length."""
    texts = [
        Text(f"a{n}", "fever " * (1 + 7 * n % 11), label=("no", "yes")[n % 2]) for n in range(9)
    ]
    site = make_site(texts)
    model = Probing(load_backbone(ModelSettings(layers=1), tiny_tokenizer(), 0), 2).eval()
    given = training_rows(site, model)
    batch = site.train.batch(range(9))
    with torch.no_grad():
        features = model.features(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(given.x[:, :-1], features, atol=1e-5, rtol=0)
    assert torch.equal(given.y, batch["labels"])


def test_directions_of_public_texts_are_principal_and_equal_everywhere() -> None:
    """Parties' encoders differ by rounding; the directions are still the same."""
    texts = public("ade", seed=0, size=80)
    site = make_site(notes(40))
    site.silo = replace(site.silo, public=texts)
    body = load_backbone(ModelSettings(layers=1), tiny_tokenizer(), 0)
    models = [Probing(body, 2, 12).eval(), Probing(body, 2, 12).eval()]
    moved = load_backbone(ModelSettings(layers=1), tiny_tokenizer(), 0).double().float()
    with torch.no_grad():
        for weight in moved.parameters():
            weight.mul_(1 + 1e-6)
    models.append(Probing(moved, 2, 12).eval())

    def program(model: Probing) -> Any:
        return lambda cohort: public_directions(cohort, site, model)

    found = federate({f"p{i}": program(m) for i, m in enumerate(models)}).results
    first = found["p0"]
    assert all(torch.equal(first[k], other[k]) for other in found.values() for k in first)
    inputs = site.public.batch(range(len(site.public)))
    with torch.no_grad():
        hidden = models[0].hidden(inputs["input_ids"], inputs["attention_mask"])
    centred = hidden - hidden.mean(0)
    best = float(torch.linalg.svdvals(centred)[:12].square().sum())
    assert float((centred @ first["basis"]).square().sum()) > 0.97 * best
    torch.testing.assert_close(first["center"], hidden.mean(0), atol=1e-3, rtol=0)

    async def liar(cohort: Cohort) -> None:
        await cohort.share({"public|steps": np.zeros((4, 3), np.int8)})

    with raises(PartyFailed, "(cohort)", party="p0", round=1):
        federate({"p0": program(models[0]), "p1": liar, "p2": program(models[2])})


# --- the folder -----------------------------------------------------------------------------------


def in_a_pipeline(folder: Path) -> Any:
    return pipeline("text-classification", model=str(folder), trust_remote_code=True)


@pytest.mark.parametrize("kind", ["tiny", "modernbert", "gpt2"])
def test_a_pipeline_answers_as_the_probe_does(kind: str, tmp_path: Path, code_cache: Path) -> None:
    """The code beside the model is that of test_exporting, where a process runs it without us."""
    model = ModelSettings() if kind == "tiny" else save(tmp_path / "checkpoint", kind)
    own = [replace(s, public=public("ade", seed=0, size=40)) for s in silos(3, 48)]
    result = run(Probe(components=16), silos=own, model=model, folder=tmp_path / "run")
    assert isinstance(result.model, ProbeClassifier) and result.model.basis is not None
    text = own[0].test[0].text  # type: ignore[union-attr]
    (answer,) = result.predict([text])
    (said,) = in_a_pipeline(tmp_path / "run" / "model")([text], top_k=None)
    assert {one["label"]: one["score"] for one in said} == pytest.approx(
        answer["probabilities"], abs=1e-5
    )
    (again,) = type(result).load(tmp_path / "run").predict([text])
    assert again["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)


def test_a_probe_on_words_answers_in_a_pipeline(tmp_path: Path, code_cache: Path) -> None:
    shared = TaskSettings(kind="ner", labels=("Disease", "Dose", "Drug", "Symptom"), max_length=48)
    parties: Sequence[Silo] = corpora("shared")
    result = ner(
        Probe(), "he+secagg", silos=parties, task=shared, training=CPU, model=ModelSettings(),
        folder=tmp_path / "run",
    ).run()  # fmt: skip
    assert result.pooled("test")["f1"] > 0.2
    words = parties[0].test[0].tokens  # type: ignore[union-attr]
    text = " ".join(words)
    (said,) = pipeline(
        "token-classification", model=str(tmp_path / "run" / "model"), trust_remote_code=True
    )([text])
    model, tokenizer, task = load_exported(tmp_path / "run" / "model")
    (answer,) = task.predict(model, [parties[0].test[0]], tokenizer)
    found = {text[one["start"] : one["end"]]: one["entity"] for one in said}
    tagged = {w: t for w, t in zip(words, answer["tags"], strict=True) if t != "O"}
    assert tagged and tagged.items() <= found.items()


def test_a_regression_is_a_ridge() -> None:
    splits = make("similarity", parties=3, seed=1, size=60)
    own = [Silo(f"h{i}", s.train, s.dev, s.test) for i, s in enumerate(splits)]
    task = TaskSettings(kind="regression", max_length=48)
    assert run(silos=own, task=task).pooled("test")["pearson"] > 0.1
    with pytest.raises(SettingsError, match="cannot learn a task of regression"):
        run(LOGISTIC, silos=own, task=task)


# --- bad input ------------------------------------------------------------------------------------


def changed(records: Sequence[Example], label: str | None) -> list[Silo]:
    own = silos(3, 16)
    first = [replace(e, label=label) for e in own[0].train if isinstance(e, Text)]
    return [replace(own[0], train=tuple(first)), *own[1:]]


def test_a_missing_label_is_refused_with_its_place() -> None:
    with pytest.raises(DataError, match="label is missing") as caught:
        run(silos=changed((), None))
    assert "hospital-1" in str(caught.value)


@pytest.mark.parametrize("algorithm", [Probe(), LOGISTIC])
@pytest.mark.parametrize("positive", ["ade", None])
def test_a_declared_class_without_records_is_never_the_answer(
    algorithm: Probe, positive: str | None
) -> None:
    labels = (*LABELS, "unknown")
    task = TaskSettings(labels=labels, positive=positive, max_length=32)
    parts = silos(3, 24)
    result = run(algorithm, task=task, silos=parts)
    texts = [e.text for e in parts[0].test if isinstance(e, Text)]
    assert all(answer["probabilities"]["unknown"] < 0.2 for answer in result.predict(texts))
    assert {answer["label"] for answer in result.predict(texts)} <= set(LABELS)


@pytest.mark.parametrize("algorithm", [Probe(), LOGISTIC])
def test_one_class_alone_is_refused(algorithm: Probe) -> None:
    own = [
        replace(s, train=tuple(replace(e, label="ade") for e in s.train if isinstance(e, Text)))
        for s in silos(3, 16)
    ]
    with pytest.raises(DataError, match="same label"):
        run(algorithm, silos=own)


def test_public_texts_that_are_training_records_are_refused() -> None:
    own = silos(3, 16)
    texts = (*public("ade", seed=0, size=8), replace(own[1].train[3], id="p"))
    with pytest.raises(DataError, match="1 public text is also in the training records"):
        run(silos=[replace(s, public=texts) for s in own])


def test_what_dp_does_not_cover_is_refused() -> None:
    training = TrainingSettings(device="cpu", dp=DPSettings(epsilon=8.0))
    with pytest.raises(SettingsError, match="covers a probe's steps"):
        run(Probe(), training=training)
    with pytest.raises(SettingsError, match="covers a probe's steps"):
        shared = TaskSettings(kind="ner", labels=("Drug",), max_length=48)
        ner(LOGISTIC, silos=corpora("shared"), task=shared, training=training).run()


def test_a_ridge_has_one_round() -> None:
    with pytest.raises(SettingsError, match="rounds = 1"):
        Probe(rounds=2)
    assert Probe(fit="logistic").rounds == 60
