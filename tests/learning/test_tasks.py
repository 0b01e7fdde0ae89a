"""Tasks: encoding, batches, losses, metrics and predictions of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning import anatomy, builtin, models
from secure_fl.learning.tasks import KINDS, Encoded, Task, labels_of, make_task
from secure_fl.settings import Kind, ModelSettings, TaskSettings
from tests.support.raising import raises

WORDS = ("fever", "cough", "rash", "after", "dose", "patient", "has", "no", "old", "news")
SYMPTOMS = ("fever", "cough", "rash", "pain")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return builtin.tiny_tokenizer(WORDS)


def toy(kind: Kind) -> list[Example]:
    """Sixteen made-up examples of different lengths."""
    return [toy_example(kind, i) for i in range(16)]


def toy_example(kind: Kind, i: int) -> Example:
    symptom, filler = SYMPTOMS[i % 4], "old " * (i % 5)
    if kind == "ner":
        tokens = (*filler.split(), "patient", "has", symptom, *(("dose",) if i % 2 else ()))
        named = {"fever": "B-Sign", "cough": "B-Sign", "rash": "B-Skin", "pain": "B-Skin"}
        tags = tuple(
            named.get(t, "I-Skin" if symptom == "rash" and t == "dose" else "O") for t in tokens
        )
        return Tagged(str(i), tokens, tags)
    if kind == "ranking":
        shown = (f"{filler}{symptom}", "old news", f"no {symptom}", "patient", "dose news")
        return Impression(
            str(i),
            (f"{symptom} after dose", "news")[: i % 3],
            shown[i % 2 :],
            tuple(title == shown[-1] for title in shown[i % 2 :]),
        )
    if kind == "multilabel":
        signs = ("wet", "dry", "red")[i % 4 :]
        return Text(str(i), f"patient {filler} has {symptom}", label=signs)
    label: str | float = float(i % 4) if kind == "regression" else ("no", "yes")[i % 4 // 2]
    pair = {"pair": "no dose", "completion": f"{symptom} news"}.get(kind)
    return Text(str(i), f"patient {filler} has {symptom}", pair, label)


def settings(kind: Kind) -> TaskSettings:
    return TaskSettings(kind=kind, max_length=24)


def made(kind: Kind, tokenizer: Any, seed: int = 1) -> tuple[Task, Encoded, nn.Module]:
    task = make_task(settings(kind), toy(kind))
    model = models.load_model(ModelSettings(layers=2), task, tokenizer, seed)
    return task, task.encode(toy(kind), tokenizer), model


def fit(task: Task, encoded: Encoded, model: nn.Module, steps: int, rate: float = 3e-3) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(anatomy.trainable(model).values(), lr=rate)
    model.eval()  # without dropout sixteen examples are learned at once
    for _ in range(steps):
        for batch in encoded.batches(16, generator):
            optimizer.zero_grad()
            task.loss(task.forward(model, batch), batch).backward()
            optimizer.step()


def test_labels_are_declared_or_read() -> None:
    assert make_task(TaskSettings(), toy("classification")).labels == ("no", "yes")
    assert make_task(TaskSettings(labels=("yes", "no", "maybe"))).labels == ("yes", "no", "maybe")
    tags = ("O", "B-Sign", "I-Sign", "B-Skin", "I-Skin")
    assert labels_of("ner", toy("ner")) == tags
    assert make_task(TaskSettings(kind="ner", labels=("Sign", "Skin"))).labels == tags
    assert make_task(TaskSettings(kind="ner", labels=tags)).labels == tags
    assert labels_of("regression", toy("regression")) == labels_of("ranking", toy("ranking")) == ()
    numbers = [Text("0", "a", label=1.0), Text("1", "b", label="0")]
    assert labels_of("classification", numbers) == ("0", "1")


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        TaskSettings(labels=("one",)),
        TaskSettings(labels=("one", "two", "one")),
        TaskSettings(labels=("one", "two"), positive="three"),
        TaskSettings(kind="ner", labels=("O",)),
        TaskSettings(kind="ner", labels=("Sign",), positive="Sign"),
        TaskSettings(kind="regression", labels=("1", "2")),
    ):
        with pytest.raises(SettingsError):
            make_task(wrong)
    with raises(DataError, "found x", field="task.labels"):
        make_task(TaskSettings(), [Text("0", "a", label="x")])
    with raises(SettingsError, "repeated labels: one", field="task.labels"):
        make_task(TaskSettings(labels=("one", "two", "one")))


@pytest.mark.parametrize(
    ("kind", "example", "where"),
    [
        ("classification", Text("9", "SECRET", label="SECRET"), {"record": 2, "field": "label"}),
        ("classification", Text("9", "SECRET"), {"record": 2, "field": "label"}),
        ("pair", Text("9", "SECRET", label="yes"), {"record": 2, "field": "pair"}),
        ("regression", Text("9", "SECRET", label="SECRET"), {"record": 2, "field": "label"}),
        ("regression", Text("9", "SECRET", label=float("nan")), {"record": 2, "field": "label"}),
        ("ner", Tagged("9", ("SECRET",), ("B-SECRET",)), {"record": 2, "field": "tags[0]"}),
        ("ner", Tagged("9", ("SECRET",), ()), {"record": 2, "field": "tags"}),
        ("ner", Tagged("9", ("a", "SECRET"), ("O", "I-S")), {"record": 2, "field": "tags[1]"}),
        ("ranking", Impression("9", (), ("SECRET",), ()), {"record": 2, "field": "clicks"}),
        ("ranking", Text("9", "SECRET"), {"record": 2}),
    ],
)
def test_bad_examples_are_named_by_row_and_not_shown(
    kind: Kind, example: Example, where: dict[str, object], tokenizer: Any
) -> None:
    task = make_task(settings(kind), toy(kind))
    with pytest.raises(DataError) as caught:
        task.encode([toy(kind)[0], example], tokenizer)
    assert caught.value.where == where
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("kind", "fix"), [("pair", "kind 'classification'"), ("classification", "fill")]
)
def test_a_missing_second_text_says_what_to_do(kind: Kind, fix: str, tokenizer: Any) -> None:
    examples = [Text("0", "a", "b", label="yes"), Text("1", "c", label="no")]
    with pytest.raises(DataError) as caught:
        make_task(settings(kind), toy(kind)).encode(examples, tokenizer)
    assert fix in caught.value.fix and (kind == "pair") is ("classification" in caught.value.fix)


def test_ner_labels_first_pieces_only(tokenizer: Any) -> None:
    task = make_task(TaskSettings(kind="ner", labels=("S",)))
    sentence = Tagged("0", ("feverish", "no", "rash"), ("B-S", "O", "B-S"))
    batch = next(task.encode([sentence], tokenizer).batches(1))
    pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    assert pieces == ["[CLS]", "fever", "##i", "##s", "##h", "no", "rash", "[SEP]"]
    assert batch["labels"][0].tolist() == [-100, 1, -100, -100, -100, 0, 1, -100]
    assert batch["words"][0].tolist() == [-100, 0, -100, -100, -100, 1, 2, -100]
    z = torch.zeros(1, 8, 3)
    z[0, [1, 5, 6], [1, 0, 1]] = 5.0
    assert task.decode(z, batch) == [["B-S", "O", "B-S"]]


def test_tokens_that_the_tokenizer_drops_break_no_entity(tokenizer: Any) -> None:
    task = make_task(TaskSettings(kind="ner", labels=("S",)))
    sentence = Tagged(
        "0",
        ("no", "\u200b", "old", "\u00ad", "\ufeff", "rash", "\u200b", "has"),
        ("O", "B-S", "I-S", "I-S", "I-S", "I-S", "O", "O"),
    )
    batch = next(task.encode([sentence], tokenizer).batches(1))
    z = torch.nn.functional.one_hot(batch["labels"].clamp(min=0), 3).float()
    assert task.score([z], [batch])["f1"] == 1.0 and task.counts([z], [batch])["of S"][0] == 1
    found = task.describe(sentence, z, batch)
    assert found["tags"] == ["O", "O", "B-S", "I-S", "I-S", "I-S", "O", "O"]
    assert [(one["start"], one["end"]) for one in found["entities"]] == [(2, 6)]


def test_byte_level_tokenizers_see_the_spaces_between_words() -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: i for i, piece in enumerate(("<pad>", "Ġ", "a", "b", "Ġa", "Ġb"))}
    raw = Tokenizer(kinds.BPE(vocabulary, [("Ġ", "a"), ("Ġ", "b")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", model_max_length=16
    )
    task = make_task(TaskSettings(kind="ner", labels=("S",)))
    batch = next(task.encode([Tagged("0", ("a", "ab"), ("O", "B-S"))], byte_level).batches(1))
    assert batch["input_ids"][0].tolist() == byte_level(" a ab")["input_ids"]
    assert batch["labels"][0].tolist() == [0, 1, -100]


@pytest.mark.parametrize("kind", list(KINDS))
def test_padding_and_company_do_not_change_an_example(kind: Kind, tokenizer: Any) -> None:
    task, encoded, model = made(kind, tokenizer)
    with torch.no_grad():
        batch = next(encoded.batches(16))
        together = task.forward(model, batch)
        losses = task.loss(together, batch, reduction="none")
        assert losses.shape == (16,)
        assert torch.allclose(task.loss(together, batch), losses.mean())
        for i in range(16):
            alone = encoded.batch([i])
            z = task.forward(model, alone)
            width = z.shape[1]
            assert torch.allclose(z[0], together[i, :width], atol=1e-5)
            assert torch.allclose(task.loss(z, alone), losses[i], atol=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_subsets_and_shuffles(kind: Kind, tokenizer: Any) -> None:
    _, encoded, _ = made(kind, tokenizer)
    part = encoded.subset([3, 1, 15])
    assert len(part) == 3 and len(encoded) == 16
    a, b = part.batch([0, 2]), encoded.batch([3, 15])
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    runs = [
        [batch["labels"] for batch in encoded.batches(5, torch.Generator().manual_seed(s))]
        for s in (1, 1, 2)
    ]
    assert [len(labels) for labels in runs[0]] == [5, 5, 5, 1]
    assert all(torch.equal(x, y) for x, y in zip(runs[0], runs[1], strict=True))
    if kind != "ranking":  # whose sampled labels are always "the first"
        assert not all(torch.equal(x, y) for x, y in zip(runs[0], runs[2], strict=True))
    assert list(encoded.subset([]).batches(4)) == []


def test_long_texts_are_cut_and_missing_labels_allowed_on_request(tokenizer: Any) -> None:
    task = make_task(settings("classification"), toy("classification"))
    encoded = task.encode([Text("0", "fever " * 99)], tokenizer, labelled=False)
    batch = next(encoded.batches(1))
    assert batch["input_ids"].shape == (1, 24) and "labels" not in batch
    assert not encoded.labelled
    model = models.load_model(ModelSettings(layers=1), task, tokenizer, 1)
    with pytest.raises(DataError, match="without labels"):
        task.evaluate(model, encoded)
    with pytest.raises(DataError, match="no example"):
        task.evaluate(model, task.encode([], tokenizer))


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_learns_a_toy_by_heart(kind: Kind, tokenizer: Any) -> None:
    task, encoded, model = made(kind, tokenizer)
    before = task.evaluate(model, encoded)
    fit(task, encoded, model, steps=60)
    after = task.evaluate(model, encoded, batch_size=5)
    assert task.metric in after and after["loss"] < before["loss"]
    assert after[task.metric] > 0.95
    again = task.evaluate(model, encoded, batch_size=16)
    assert after == pytest.approx(again, abs=1e-4)


def test_evaluation_restores_every_modules_mode(tokenizer: Any) -> None:
    for kind in ("classification", "ranking"):
        task, encoded, model = made(kind, tokenizer)
        model.train()
        anatomy.embeddings(model).eval()
        modes = [module.training for module in model.modules()]
        first, second = (task.evaluate(model, encoded) for _ in range(2))
        assert first == second  # no dropout inside
        assert modes == [module.training for module in model.modules()]


def test_the_main_metric_follows_the_positive_class(tokenizer: Any) -> None:
    named = make_task(TaskSettings(positive="no"), toy("classification"))
    assert named.metric == "f1"
    assert make_task(TaskSettings(), toy("classification")).metric == "accuracy"
    batch = {"labels": torch.tensor([0, 0, 1])}
    scores = named.score([torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])], [batch])
    assert scores["f1"] == pytest.approx(2 / 3)  # "no": one hit, two gold, one guessed


def predictions(kind: Kind, tokenizer: Any, examples: Sequence[Example]) -> list[dict[str, Any]]:
    task, encoded, model = made(kind, tokenizer)
    fit(task, encoded, model, steps=60)
    return task.predict(model, examples, tokenizer, batch_size=3)


def test_predictions_are_readable(tokenizer: Any) -> None:
    texts = [Text(str(i), f"patient has {s}") for i, s in enumerate(SYMPTOMS)]
    found = predictions("classification", tokenizer, texts)
    assert [row["label"] for row in found] == ["no", "no", "yes", "yes"]
    assert [row["id"] for row in found] == ["0", "1", "2", "3"]
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    coded = predictions("multilabel", tokenizer, texts)
    assert [row["labels"] for row in coded] == [["dry", "red", "wet"], ["dry", "red"], ["red"], []]
    (tagged,) = predictions("ner", tokenizer, [Tagged("0", ("patient", "has", "rash"))])
    assert tagged["entities"] == [{"type": "Skin", "start": 2, "end": 3, "text": "rash"}]
    shown = Impression("0", ("news",), ("patient", "old news", "dose news"), ())
    ranking = predictions("ranking", tokenizer, [shown])[0]["ranking"]
    assert ranking[0]["title"] == "dose news" and ranking[0]["candidate"] == 2
    assert ranking[0]["score"] > ranking[1]["score"] > ranking[2]["score"]


def test_training_batches_of_ranking_hold_one_click_and_sampled_others(tokenizer: Any) -> None:
    task = make_task(settings("ranking"))
    shown = Impression("0", ("news",), ("fever", "cough", "rash"), (False, True, False))
    unclicked = Impression("1", (), ("fever",), (False,))
    encoded = task.encode([shown, unclicked], tokenizer)
    batch = encoded.batch([0, 1], torch.Generator().manual_seed(3))
    assert batch["candidates"].shape == (2, 5)
    assert batch["labels"].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    titles = [tokenizer.convert_ids_to_tokens(row)[1] for row in batch["input_ids"].tolist()]
    picked = [titles[i] for i in batch["candidates"][0].tolist()]
    assert picked[0] == "cough" and sorted(picked[1:]) == ["fever", "fever", "rash", "rash"]
    assert batch["candidates"][1].tolist()[0] == -1  # no click to learn from
    assert len(set(titles)) == len(titles)  # each title passes the model once
    model = models.load_model(ModelSettings(layers=1), task, tokenizer, 1)
    losses = task.loss(task.forward(model, batch), batch, reduction="none")
    assert torch.isfinite(losses).all() and losses[1] == 0
    with pytest.raises(DataError, match="without clicks"):
        task.encode([shown], tokenizer, labelled=False).batch([0], torch.Generator())


def test_ranking_scores_average_over_impressions(tokenizer: Any) -> None:
    task = make_task(settings("ranking"))
    batch = {
        "candidates": torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, -1]]),
        "labels": torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 0, 0]]),
    }
    z = torch.tensor([[2.0, 3.0, 1.0], [2.0, 1.0, 9.0], [1.0, 2.0, 9.0]])
    scores = task.score([z], [batch])
    # First: one miss above the click. Second: perfect. Third: no click, not counted.
    assert scores["auc"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["mrr"] == pytest.approx((1 / 2 + 1) / 2)
