"""Completion: what is learned and counted is the completion alone, and greedy writing is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers

from secure_fl import ModelSettings, TaskSettings
from secure_fl.corpora import make
from secure_fl.data.examples import Text
from secure_fl.data.loaders import load
from secure_fl.errors import DataError, ModelError
from secure_fl.learning import anatomy, exporting, models
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.dp.dp_sgd import checked_clipping
from secure_fl.learning.fetching import quiet
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.completion import TALLY, Completion, alike, end_of, open_ended
from tests.support.clipped_sums import losses_of
from tests.support.families import save
from tests.support.raising import raises

TASK = make_task(TaskSettings(kind="completion", max_length=24))
NOTES = tuple(
    n for n in make("summaries", parties=1, seed=3, size=24)[0].train if isinstance(n, Text)
)
SHORT = Text("0", "Rash after velodorin.", "Event: rash.")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def batch_of(tokenizer: Any, *examples: Text) -> Any:
    encoded = TASK.encode(examples, tokenizer)
    return encoded.batch(range(len(examples)))


def test_only_the_completion_is_labelled_and_each_place_by_the_next_token(tokenizer: Any) -> None:
    batch = batch_of(tokenizer, SHORT)
    ids, labels = batch["input_ids"][0], batch["labels"][0]
    assert tokenizer.convert_ids_to_tokens(ids.tolist()) == [
        "[CLS]", "rash", "after", "velodorin", ".", "event", ":", "rash", ".", "[SEP]",
    ]  # fmt: skip
    assert labels[:4].tolist() == [-100] * 4 and labels[-1] == -100
    assert torch.equal(labels[4:-1], ids[5:])


def test_a_prompt_moves_no_loss_but_by_what_the_model_reads(tokenizer: Any) -> None:
    batch = batch_of(tokenizer, SHORT, NOTES[0])
    said = batch["labels"] != -100
    logits = torch.randn(*said.shape, 900, generator=torch.Generator().manual_seed(0))
    changed = torch.where(said[..., None], logits, logits + 5 * torch.rand_like(logits))
    losses = TASK.loss(logits, batch, reduction="none")
    torch.testing.assert_close(losses, TASK.loss(changed, batch, reduction="none"))
    for row in range(2):
        expected = F.cross_entropy(logits[row][said[row]], batch["labels"][row][said[row]])
        torch.testing.assert_close(losses[row], expected)


def test_long_prompts_keep_their_end_and_completions_stay_whole(tokenizer: Any) -> None:
    asked = Text("0", "rash " * 40 + "after velodorin", "event reported")
    ids = batch_of(tokenizer, asked)["input_ids"][0].tolist()
    words = tokenizer.convert_ids_to_tokens(ids)
    assert len(words) == 24 and words[0] == "[CLS]"
    assert words[-5:] == ["after", "velodorin", "event", "reported", "[SEP]"]
    alone = TASK.encode([asked], tokenizer, labelled=False)
    assert alone.batch([0])["input_ids"].shape == (1, 18)  # a quarter is kept free
    endless = batch_of(tokenizer, Text("0", "rash", "fever " * 40))
    assert endless["input_ids"].shape == (1, 24) and int((endless["labels"] == -100).sum()) == 1


def test_byte_level_prompts_alone_are_the_beginning_of_prompts_with_completions() -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: at for at, name in enumerate(["<end>", *alphabet, "Ġr", "Ġra"])}
    inner = Tokenizer(kinds.BPE(vocabulary, [("Ġ", "r"), ("Ġr", "a")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<end>"
    )
    asked = [Text("0", "a: ", " ra"), Text("1", "é", "x")]
    whole, alone = TASK.encode(asked, tokenizer), TASK.encode(asked, tokenizer, labelled=False)
    for row in range(2):
        a, b = (one.batch([row])["input_ids"][0].tolist() for one in (whole, alone))
        assert a[: len(b)] == b
    first = whole.batch([0])
    assert first["input_ids"][0].tolist() == [vocabulary[n] for n in ("a", ":", "Ġra", "<end>")]
    assert first["labels"][0].tolist() == [-100, vocabulary["Ġra"], 0, -100]  # the end is learned


def test_exact_matches_are_those_of_greedy_writing(tokenizer: Any) -> None:
    model = models.load_model(ModelSettings(layers=1), TASK, tokenizer, 1)
    encoded = TASK.encode(NOTES, tokenizer)
    optimizer = torch.optim.AdamW(anatomy.trainable(model).values(), lr=1e-2)
    for _ in range(30):
        for batch in encoded.batches(24):
            optimizer.zero_grad()
            TASK.loss(TASK.forward(model, batch), batch).backward()
            optimizer.step()
    found = TASK.evaluate(model, encoded, batch_size=5)
    written = [row["completion"] for row in TASK.predict(model, NOTES, tokenizer)]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in written]
    truth = [tokenizer(n.pair or "", add_special_tokens=False)["input_ids"] for n in NOTES]
    right = [a == b for a, b in zip(ids, truth, strict=True)]
    assert found["exact_match"] == pytest.approx(np.mean(right)) and 0 < np.mean(right) < 1
    (kept,), (batch,) = TASK.outcomes(model, encoded, len(NOTES))
    guessed = [row[:-1] for row in TASK.decode(kept, batch)]  # behind the true words: but the end
    assert [a == b for a, b in zip(guessed, truth, strict=True)] == right
    assert TASK.predict(model, NOTES, tokenizer, batch_size=1) == TASK.predict(
        model, NOTES, tokenizer
    )  # company changes no word
    assert len({len(text.split()) for text in written}) > 1  # though some end sooner


def test_prompts_are_asked_together_where_they_are_of_one_length() -> None:
    assert [*alike([3, 5, 3, 3, 5], 2)] == [[0, 2], [3], [1, 4]]
    assert [*alike([], 2)] == []


def test_perplexity_over_hospitals_is_that_of_all_their_tokens(tokenizer: Any) -> None:
    model = models.load_model(ModelSettings(layers=1), TASK, tokenizer, 1)
    parts = [NOTES[:1], NOTES[1:4], NOTES[4:]]
    told = [TASK.counts(*TASK.outcomes(model, TASK.encode(part, tokenizer), 4)) for part in parts]
    pooled = TASK.pooled([*told, TASK.counts([], [])])
    whole = TASK.evaluate(model, TASK.encode(NOTES, tokenizer))
    assert pooled == pytest.approx(whole, rel=1e-5)
    means = np.mean([TASK.rates(one)["perplexity"] for one in told])
    assert abs(means / whole["perplexity"] - 1) > 1e-3  # what a mean of hospitals would say
    assert [len(one[TALLY]) for one in told] == [5, 5, 5]


@pytest.mark.parametrize("pair", [None, " "])
def test_a_prompt_without_a_completion_is_named_by_its_row(pair: Any, tokenizer: Any) -> None:
    with raises(DataError, record=2, field="pair"):
        TASK.encode([SHORT, Text("1", "SECRET", pair)], tokenizer)


def test_columns_prompt_and_completion_are_read(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"prompt": "Note: rash.", "completion": "Event"}\n')
    assert load(file, "completion") == (Text("0", "Note: rash.", "Event"),)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert", "distilbert"])
def test_what_reads_from_both_sides_cannot_write(kind: str, tmp_path: Path) -> None:
    spec = save(tmp_path, kind)
    tokenizer = models.load_tokenizer(spec)
    with raises(ModelError, field="task.kind"):
        models.load_model(spec, TASK, tokenizer, 0)


@pytest.mark.parametrize("kind", ["tiny", "gpt2", "llama"])
def test_words_are_chosen_by_a_frozen_table(kind: str, tmp_path: Path) -> None:
    """Its gradient would tell the words of the completions, as the embedding's tells all words."""
    spec = ModelSettings() if kind == "tiny" else save(tmp_path, kind)
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, TASK, tokenizer, 0)
    wide = {name for name, p in anatomy.trainable(model).items() if len(tokenizer) in p.shape}
    assert not wide
    free = spec.model_copy(update={"freeze_embeddings": False})
    model = models.load_model(free, TASK, tokenizer, 0)
    assert any(len(tokenizer) in p.shape for p in anatomy.trainable(model).values())


@pytest.mark.parametrize("kind", ["tiny", "gpt2", "llama"])
def test_a_saved_folder_writes_in_a_pipeline(kind: str, tmp_path: Path) -> None:
    spec = ModelSettings() if kind == "tiny" else save(tmp_path / "checkpoint", kind)
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, TASK, tokenizer, 0)
    folder = exporting.export(model, tokenizer, tmp_path / "out", TASK)
    with quiet():
        ask = transformers.pipeline("text-generation", model=str(folder), device="cpu")
        auto = transformers.AutoModelForCausalLM.from_pretrained(folder)
    inputs = open_ended(tokenizer)([SHORT.text], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(auto(**inputs).logits, model(**inputs).logits)
    said = ask(SHORT.text, do_sample=False, max_new_tokens=24, return_full_text=False)
    again, read, task = exporting.load_exported(folder)
    assert isinstance(task, Completion)
    ours = task.predict(again, [SHORT], read)[0]["completion"]
    assert said[0]["generated_text"].strip().startswith(ours)
    assert auto.generation_config.eos_token_id == end_of(tokenizer)


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_gradients_per_record_are_those_of_autograd(clipping: Any, tokenizer: Any) -> None:
    model = models.load_model(ModelSettings(layers=1), TASK, tokenizer, 0).train()
    batch = batch_of(tokenizer, *NOTES[:2])
    assert checked_clipping(model, losses_of(TASK), batch, clipping) == clipping
