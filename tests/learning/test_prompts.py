"""Prompts: a class is the word that fills a gap, from the model's own word output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from secure_fl import FedAvg, ModelSettings, ProtectionSettings, Silo, TrainingSettings
from secure_fl.algorithms.fedkd.mutual_distillation import Words
from secure_fl.algorithms.probe import Probe
from secure_fl.corpora import make
from secure_fl.data.examples import Text
from secure_fl.errors import DataError, ModelError, SettingsError
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import Task, make_task, settings_of
from secure_fl.learning.tasks.task import inference
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings
from secure_fl.testing.hospitals import small
from tests.support.event_documents import into
from tests.support.raising import raises

WORDS = {"no-ade": "helped", "ade": "harmed"}
PROMPT = "patient was [MASK] ."
PROMPTED = TaskSettings(prompt=PROMPT, label_words=WORDS, positive="ade", max_length=48)
TOKENIZER = tiny_tokenizer()
SPLITS = make("ade", parties=3, seed=1, size=24)
NOTES = [note for note in SPLITS[0].train if isinstance(note, Text)]
SPEC = ModelSettings(layers=1)


def task_of(**fields: Any) -> Task:
    return make_task(PROMPTED.model_copy(update=fields))


def test_the_prompt_follows_each_text_and_is_never_cut() -> None:
    task = task_of(max_length=16)
    batch = task.encode(NOTES, TOKENIZER).batch(range(len(NOTES)))
    tail = TOKENIZER.convert_tokens_to_ids(["patient", "was", "[MASK]", ".", "[SEP]"])
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        shown = ids[mask.bool()].tolist()
        assert len(shown) <= 16 and shown[-5:] == tail
    assert task.labels == ("no-ade", "ade")


@pytest.mark.parametrize("windows", [1, 4])
def test_logits_are_those_of_the_label_words_at_the_mask(windows: int) -> None:
    task = task_of(max_length=20, windows=windows)
    model = load_model(SPEC, task, TOKENIZER, 0)
    note = Text("0", f"{NOTES[0].text} and the [MASK] token; {NOTES[1].text}")
    batch = task.encode([note, NOTES[2]], TOKENIZER, labelled=False).batch([0, 1])
    with inference(model):
        found = task.forward(model, batch)
        rows = batch["input_ids"].reshape(-1, batch["input_ids"].shape[-1])
        mask = batch["attention_mask"].reshape(rows.shape)
        plain = model(input_ids=rows, attention_mask=mask).logits
    at = [int(m.sum()) - 3 for m in mask]  # before "." and [SEP]
    words = TOKENIZER.convert_tokens_to_ids(["helped", "harmed"])
    by_window = torch.stack([plain[row, place, words] for row, place in enumerate(at)])
    present = mask.any(-1).reshape(2, -1)
    for row in range(2):
        own = by_window.reshape(2, -1, 2)[row][present[row]]
        assert torch.allclose(found[row], own.mean(0), atol=1e-5)
    assert found.shape == (2, 2)


@pytest.mark.parametrize("windows", [1, 4])
def test_a_made_up_record_keeps_its_prompt_and_is_read_at_the_mask(windows: int) -> None:
    """Words in the middle are hidden, so the number of visible tokens is no place in the row."""
    task = task_of(max_length=20, windows=windows)
    model = load_model(SPEC, task, TOKENIZER, 0)
    batch = task.encode(NOTES, TOKENIZER).batch(range(len(NOTES)))
    made = Words.of(TOKENIZER).made_up(batch)
    tokens = batch["input_ids"].shape[-1]
    with inference(model):
        found = task.forward(model, made)
        rows, seen, real = (
            values.reshape(-1, tokens)
            for values in (made["input_ids"], made["attention_mask"], batch["attention_mask"])
        )
        plain = model(input_ids=rows, attention_mask=seen).logits
    present = real.any(-1).reshape(len(NOTES), -1)
    at = real.sum(-1) - 3  # before "." and [SEP]
    words = TOKENIZER.convert_tokens_to_ids(["helped", "harmed"])
    by_window = plain[torch.arange(len(rows)), at][:, words].reshape(*present.shape, 2)
    expected = torch.stack(
        [own[here].mean(0) for own, here in zip(by_window, present, strict=True)]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    tail = TOKENIZER.convert_tokens_to_ids(["patient", "was", "[MASK]", ".", "[SEP]"])
    for ids, end, mask in zip(rows, real.sum(-1), seen, strict=True):
        if end:
            assert ids[end - 5 : end].tolist() == tail and mask[end - 5 : end].all()
    assert (made["attention_mask"] < batch["attention_mask"]).any()


def test_no_weight_of_the_head_is_fresh_in_a_checkpoint(tmp_path: Path) -> None:
    task = task_of()
    load_model(SPEC, task, TOKENIZER, 0).save_pretrained(tmp_path)  # type: ignore[operator]
    TOKENIZER.save_pretrained(tmp_path)
    spec = ModelSettings(name=str(tmp_path))
    first, second = (load_model(spec, task, load_tokenizer(spec), seed) for seed in (1, 2))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    output: Any = first.get_output_embeddings()  # type: ignore[operator]
    table: Any = first.get_input_embeddings()  # type: ignore[operator]
    assert output.weight is table.weight  # tied, as in BERT
    assert not output.weight.requires_grad and not output.bias.requires_grad


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"no-ade": "helped", "ade": "anaphylactoid"}, "anaphylactoid"),
        ({"no-ade": "helped", "ade": "dry mouth"}, "dry mouth"),
        ({"no-ade": "Harmed", "ade": "harmed"}, "Harmed"),
    ],
)
def test_label_words_outside_the_vocabulary_are_refused_by_name(
    words: dict[str, str], named: str
) -> None:
    with raises(SettingsError, named, field="task.label_words"):
        task_of(label_words=words).encode(NOTES, TOKENIZER)


def test_a_word_outside_the_vocabulary_is_refused_before_anything_is_sent() -> None:
    """One hospital's model may have another vocabulary than those of the others."""
    events: list[dict[str, Any]] = []
    task = PROMPTED.model_copy(update={"label_words": WORDS | {"ade": "anaphylactoid"}})
    federation = small(FedAvg(rounds=1), task=task, listener=into(events))
    with raises(SettingsError, "anaphylactoid", field="task.label_words", party="hospital-1"):
        federation.run()
    assert events == []


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "without a gap"},
        {"prompt": "[MASK] and [MASK]"},
        {"label_words": None},
        {"prompt": None},
        {"labels": ("ade", "other")},
        {"kind": "multilabel", "positive": None},
    ],
)
def test_prompts_that_say_nothing_are_refused(fields: dict[str, Any]) -> None:
    given = {"prompt": PROMPT, "label_words": WORDS, "positive": "ade"} | fields
    with pytest.raises(SettingsError):
        TaskSettings(**given)


def test_what_cannot_fill_a_gap_is_refused() -> None:
    with raises(SettingsError, field="task.prompt"):
        task_of(max_length=6).encode(NOTES, TOKENIZER)
    with raises(DataError, field="pair"):
        task_of().encode([Text("0", "a", pair="b", label="ade")], TOKENIZER)
    with pytest.raises(ModelError, match="pooling"):
        load_model(SPEC.model_copy(update={"pooling": "mean"}), task_of(), TOKENIZER, 0)
    unmasked = tiny_tokenizer()
    unmasked.mask_token = None
    with raises(SettingsError, field="task.prompt"):
        task_of().encode(NOTES, unmasked)
    with raises(SettingsError, field="task.prompt"):
        run(Probe(rounds=1))


def silos() -> list[Silo]:
    return [Silo(f"h{k}", s.train, s.dev, s.test) for k, s in enumerate(SPLITS, 1)]


def run(algorithm: Any, **options: Any) -> Any:
    training = TrainingSettings(device="cpu", batch_size=8)
    given: dict[str, Any] = {"task": PROMPTED, "silos": silos(), "training": training}
    return small(algorithm, **given | options).run()


@pytest.mark.parametrize(
    "options",
    [
        {"protection": ProtectionSettings(mode="he+secagg")},
        {"model": ModelSettings(layers=1, adapter=AdapterSettings(rank=2))},
        {"training": TrainingSettings(device="cpu", batch_size=16, dp=DPSettings(epsilon=8.0))},
    ],
    ids=["sealed", "adapters", "dp"],
)
def test_a_federation_trains_a_prompt_and_its_folder_answers(
    options: dict[str, Any], tmp_path: Path
) -> None:
    result = run(FedAvg(rounds=1), folder=tmp_path / "run", **options)
    scores = result.document["metrics"]["last"]["pooled"]["test"]
    model, tokenizer, task = load_exported(tmp_path / "run" / "model")
    assert settings_of(task).label_words == WORDS and settings_of(task).prompt == PROMPT
    records = [record for silo in silos() for record in silo.test]
    assert task.evaluate(model, task.encode(records, tokenizer))["accuracy"] == pytest.approx(
        scores["accuracy"], abs=1e-6
    )


def test_fill_mask_of_transformers_answers_as_the_run_does(tmp_path: Path) -> None:
    run(FedAvg(rounds=1), folder=tmp_path / "run")
    folder = tmp_path / "run" / "model"
    model, tokenizer, task = load_exported(folder)
    (answer,) = task.predict(model, NOTES[:1], tokenizer)
    ask = transformers.pipeline("fill-mask", model=str(folder))
    text = f"{NOTES[0].text} {PROMPT}"
    found = {one["token_str"]: one["score"] for one in ask(text, targets=["helped", "harmed"])}
    share = found["harmed"] / (found["harmed"] + found["helped"])
    assert share == pytest.approx(answer["probabilities"]["ade"], abs=1e-4)
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card and PROMPT in card and "`harmed` is ade" in card


def checkpoint(folder: Path) -> str:
    """A masked language model that has read of drugs that caused a rash, and of stable patients."""
    task = task_of()
    free = ModelSettings(layers=1, freeze_embeddings=False)
    model: Any = load_model(free, task, TOKENIZER, 0)
    texts = [
        f"{note.text} {PROMPT.replace('[MASK]', WORDS[str(note.label)])}"
        for note in make("ade", parties=1, seed=9, size=600, shift=0.0)[0].train
        if isinstance(note, Text)
    ]
    rows = TOKENIZER(texts, padding=True, return_tensors="pt")["input_ids"]
    optimizer, generator = torch.optim.AdamW(model.parameters(), 2e-3), torch.Generator()
    model.train()
    for _ in range(8):
        for part in torch.randperm(len(rows), generator=generator).split(16):
            ids, every = rows[part].clone(), torch.arange(len(part))
            gap = (ids > 0).sum(-1) - 3  # before the full stop and [SEP]
            labels = torch.full_like(ids, -100)
            labels[every, gap] = ids[every, gap]
            ids[every, gap] = TOKENIZER.mask_token_id
            optimizer.zero_grad()
            model(input_ids=ids, attention_mask=(ids > 0).long(), labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def test_a_prompt_begins_with_what_the_checkpoint_knows_and_a_head_with_nothing(
    tmp_path: Path,
) -> None:
    """Eight records at each hospital, and small steps: more steps make both alike."""
    few = [Silo(s.name, s.train[:8], (), (*s.train[8:], *s.test)) for s in silos()]
    model = ModelSettings(name=checkpoint(tmp_path / "masked"))
    steps = TrainingSettings(device="cpu", batch_size=4, learning_rate=3e-4)
    plain = TaskSettings(labels=("no-ade", "ade"), positive="ade", max_length=48)
    tokenizer = load_tokenizer(model)
    before, after = {}, {}
    for name, settings in (("prompt", PROMPTED), ("head", plain)):
        task = make_task(settings)
        encoded = task.encode([record for silo in few for record in silo.test], tokenizer)
        fresh = load_model(model, task, tokenizer, 0)
        before[name] = task.evaluate(fresh, encoded)["auroc"]
        result = run(
            FedAvg(rounds=3, epochs=2), silos=few, task=settings, model=model, training=steps
        )
        after[name] = result.document["metrics"]["last"]["pooled"]["test"]["accuracy"]
    assert before["prompt"] > 0.7 > 0.5 > before["head"]
    assert after["prompt"] > after["head"] + 0.1
