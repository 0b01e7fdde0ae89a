"""Long texts in windows: all tokens are read, each is scored once, and a record stays the unit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from secure_fl.corpora import make
from secure_fl.data.examples import Example, Tagged, Text
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.dp.dp_sgd import checked_clipping
from secure_fl.learning.dp.private_model import Bounds, row_gradients
from secure_fl.learning.models import load_model
from secure_fl.learning.tasks import Task, make_task
from secure_fl.learning.tasks.batches import WINDOWS, by_record, packed
from secure_fl.learning.tasks.task import inference
from secure_fl.learning.tasks.token_table import IGNORED, WindowLayout, WindowTable
from secure_fl.settings import ModelSettings, TaskSettings
from tests.support.clipped_sums import clipped_sum, losses_of
from tests.support.raising import raises

SPEC = ModelSettings(layers=1, freeze_embeddings=False)
TOKENIZER = tiny_tokenizer()
NOTES = [n for n in make("ade", parties=1, seed=1, size=24)[0].train if isinstance(n, Text)]
TAGGED = [n for n in make("ner", parties=1, seed=1, size=24)[0].train if isinstance(n, Tagged)]


def joined(*notes: Text) -> Text:
    return replace(notes[0], text=" ".join(note.text for note in notes))


LONG = [joined(*NOTES[:5]), NOTES[5], joined(*NOTES[6:8]), joined(*NOTES[8:11])]


def sentence_of(*parts: Tagged) -> Tagged:
    tokens = tuple(token for part in parts for token in part.tokens)
    return replace(parts[0], tokens=tokens, tags=tuple(t for p in parts for t in p.tags or ()))


SENTENCES = [sentence_of(*TAGGED[:6]), TAGGED[6], sentence_of(*TAGGED[7:9])]


def task_of(kind: str = "classification", **fields: Any) -> Task:
    given = {"windows": 8, "overlap": 4, "max_length": 16} | fields
    return make_task(TaskSettings(kind=kind, **given), TAGGED if kind == "ner" else NOTES)  # type: ignore[arg-type]


def model_of(task: Task, **fields: Any) -> nn.Module:
    return load_model(SPEC.model_copy(update=fields), task, TOKENIZER, 0)


@pytest.mark.parametrize("overlap", [0, 1, 4, 7])
@pytest.mark.parametrize("tokens", [0, 1, 13, 14, 15, 24, 25, 60, 200])
def test_every_token_is_read_and_owned_by_one_window(tokens: int, overlap: int) -> None:
    layout = WindowLayout.of(TOKENIZER, task_of(overlap=overlap, windows=64))
    spans, owners = layout.spans(tokens), layout.owners(tokens)
    assert len(owners) == tokens and owners == sorted(owners)
    assert all(spans[owner][0] <= at < spans[owner][1] for at, owner in enumerate(owners))
    assert all(b - a <= layout.size for a, b in spans)
    assert all(a[1] - b[0] == overlap for a, b in pairwise(spans))
    for at, owner in enumerate(owners):  # nowhere does the token have more context
        own = _context(at, *spans[owner], tokens)
        assert own >= max(_context(at, a, b, tokens) for a, b in spans if a <= at < b) - 1


def _context(at: int, start: int, end: int, tokens: int) -> int:
    """Tokens to the nearer edge of a window; the text's own edges are none."""
    return min(tokens if start == 0 else at - start, tokens if end == tokens else end - 1 - at)


def test_a_texts_logits_are_the_mean_over_texts_that_are_its_windows() -> None:
    task = task_of()
    model, encoded = model_of(task), task.encode(LONG, TOKENIZER)
    batch = encoded.batch(range(len(LONG)))
    assert batch[WINDOWS].tolist()[1] < batch[WINDOWS].tolist()[0] > 2
    with inference(model):
        logits = task.forward(model, batch)
        for row, note in enumerate(LONG):
            ids = TOKENIZER(note.text, add_special_tokens=False)["input_ids"]
            layout = WindowLayout.of(TOKENIZER, task)
            parts = [
                model(input_ids=torch.tensor([[*layout.before, *ids[a:b], *layout.after]])).logits
                for a, b in layout.spans(len(ids))
            ]
            assert len(parts) == batch[WINDOWS][row]
            assert torch.allclose(logits[row], torch.cat(parts).mean(0), atol=1e-5)


def test_short_texts_have_the_logits_that_they_have_without_windows() -> None:
    task, plain = task_of(max_length=64), task_of(max_length=64, windows=1, overlap=None)
    model = model_of(plain)
    with inference(model):
        found, expected = (
            t.forward(model, t.encode(NOTES, TOKENIZER).batch(range(24))) for t in (task, plain)
        )
    assert torch.allclose(found, expected, atol=1e-5)


def test_other_texts_of_a_batch_and_the_batch_itself_change_nothing() -> None:
    task = task_of()
    model, encoded = model_of(task), task.encode(LONG, TOKENIZER)
    with inference(model):
        together = task.forward(model, encoded.batch([0, 1, 2, 3]))
        alone = torch.cat([task.forward(model, encoded.batch([row])) for row in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)
    with_gradients = task.forward(model, encoded.batch([0, 1, 2, 3]))
    assert torch.allclose(together, with_gradients, atol=1e-5)
    assert isinstance(encoded, WindowTable)
    parts = encoded.subset([2, 0])
    assert torch.equal(parts.sizes(), encoded.sizes()[[2, 0]])
    with inference(model):
        assert torch.allclose(task.forward(model, parts.batch([1])), together[:1], atol=1e-5)


def test_each_token_of_a_long_sentence_is_scored_once() -> None:
    task = task_of("ner")
    encoded = task.encode(SENTENCES, TOKENIZER)
    batch = encoded.batch(range(3))
    assert batch[WINDOWS].max() > 2
    for row, sentence in enumerate(SENTENCES):
        words = batch["words"][row]
        assert words[words != IGNORED].tolist() == list(range(len(sentence.tokens)))
        labels = batch["labels"][row]
        assert [task.labels[k] for k in labels[labels != IGNORED]] == list(sentence.tags or ())
    model = model_of(task, pooling="cls")
    with inference(model):
        logits = task.forward(model, batch)
    predicted = task.decode(logits, batch)
    assert [len(tags) for tags in predicted] == [len(sentence.tokens) for sentence in SENTENCES]
    scores = task.evaluate(model, encoded)
    assert scores["loss"] == pytest.approx(float(task.loss(logits, batch)), rel=1e-4)
    found = task.predict(model, SENTENCES, TOKENIZER)
    assert [answer["tags"] for answer in found] == predicted


def test_a_token_at_a_windows_edge_is_read_where_it_has_context() -> None:
    task = task_of("ner")
    batch = task.encode(SENTENCES[:1], TOKENIZER).batch([0])
    model = model_of(task, pooling="cls")
    with inference(model):
        logits = task.forward(model, batch)[0]
        rows = packed(batch)
        plain = model(**rows).logits
    length = rows["input_ids"].shape[1]
    for place in (batch["words"][0] != IGNORED).nonzero().flatten().tolist():
        window, at = divmod(place, length)
        assert torch.allclose(logits[place], plain[window, at], atol=1e-5)


@pytest.mark.parametrize("kind", ["classification", "ner"])
@pytest.mark.parametrize("clipping", ["ghost", "per_sample", "one_by_one"])
def test_dp_sgd_clips_a_record_and_not_its_windows(kind: str, clipping: Any) -> None:
    """One clipped gradient for each record, however many windows it has."""
    task = task_of(kind)
    records: list[Example] = [*(SENTENCES if kind == "ner" else LONG)]
    model = model_of(task, pooling="cls").train()
    batch = task.encode(records, TOKENIZER).batch(range(len(records)))
    counts = batch[WINDOWS]
    assert counts.max() > counts.min()

    loss = losses_of(task)
    assert checked_clipping(model, loss, batch, clipping) == clipping
    slopes = [
        torch.cat([g.flatten() for g in row_gradients(model, loss, batch, row)[1]])
        for row in range(len(records))
    ]
    expected = torch.stack([1e-3 * slope / slope.norm() for slope in slopes]).sum(0)
    bounds = Bounds(1e-3, clipping=clipping)  # which every record exceeds
    found = clipped_sum(model, loss, batch, bounds)
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(found.norm()) <= 1e-3 * len(records)
    alone = clipped_sum(model, loss, {n: t[:1] for n, t in batch.items()}, bounds)
    assert float(alone.norm()) == pytest.approx(1e-3, rel=1e-3)  # not once for each window


def test_what_windows_cannot_read_is_refused() -> None:
    with raises(DataError, field="pair"):
        task_of().encode([replace(NOTES[0], pair="second")], TOKENIZER)
    for wrong in ({"kind": "pair"}, {"overlap": 9}, {"windows": 1}, {"windows": 65}):
        with pytest.raises(SettingsError):
            task_of(**({"kind": "classification"} | wrong))
    narrow = task_of(max_length=8, overlap=4)
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 6
    with raises(SettingsError, field="task.overlap"):
        narrow.encode(LONG, tokenizer)


def test_values_of_windows_are_joined_by_record() -> None:
    batch = {
        WINDOWS: torch.tensor([2, 1]),
        "attention_mask": torch.tensor([[[1, 1], [1, 0]], [[1, 1], [0, 0]]]),
    }
    values = torch.tensor([[1.0], [3.0], [5.0]])
    assert by_record(values, batch, words=False).tolist() == [[2.0], [5.0]]
    assert by_record(values[:, :, None], batch, words=True).shape == (2, 2, 1)
