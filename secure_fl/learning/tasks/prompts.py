"""Prompts: a masked language model fills a gap after the text with the word of a class.

Gao, Fisch, Chen: Making Pre-trained Language Models Better Few-shot Learners. ACL 2021, arXiv
2012.15723, with the template after the text. A class's logit is its word's at the mask, so a
checkpoint needs no fresh weights. The head computes the mask's place only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from secure_fl.data.rows import named
from secure_fl.errors import SettingsError
from secure_fl.learning.anatomy import body_of
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.classification import Classification
from secure_fl.learning.tasks.task import Examples, Head
from secure_fl.learning.tasks.token_table import Table, WindowLayout, encode_texts
from secure_fl.settings import MASK

ANSWERS = "answers"  # of each record: the token of each class
FROM_END = "from_end"  # of each record: places of mask and prompt, counted from its rows' ends


@dataclass(frozen=True)
class PromptClassification(Classification):
    """One label per text, as the word that fills a gap."""

    prompt: str = ""  # after the text, with one mask
    label_words: tuple[str, ...] = ()  # in the order of the labels

    head: ClassVar[Head] = "prompt"

    def reading(self) -> dict[str, Any]:
        """The settings of how texts are read and classes are worded."""
        words = dict(zip(self.labels, self.label_words, strict=True))
        return super().reading() | {"prompt": self.prompt, "label_words": words}

    def check_tokenizer(self, load: Callable[[], Any]) -> None:
        """Refuse label words outside the vocabulary, and a tokenizer without a mask."""
        tokenizer = load()
        word_ids(tokenizer, self.label_words)
        prompt_ids(tokenizer, self.prompt)

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise every text with the prompt after it, and number its label."""
        answers = torch.tensor(word_ids(tokenizer, self.label_words))
        prompt = prompt_ids(tokenizer, self.prompt)
        layout = WindowLayout.of(tokenizer, self, prompt)
        table = encode_texts(examples, tokenizer, self, layout)
        after = [*prompt, *layout.after[len(prompt) :]]
        places = torch.tensor([len(after) - after.index(tokenizer.mask_token_id), len(after)])
        values = {ANSWERS: answers, FROM_END: places}
        table = table.with_values(**{n: v.expand(len(examples), -1) for n, v in values.items()})
        return self.numbered(table, examples) if labelled else table

    def run(self, model: nn.Module, inputs: Batch, batch: Batch, **options: Any) -> Any:
        """The full output for rows of tokens; its logits are those of the label words."""
        places = ends(inputs["attention_mask"]) - batch[FROM_END][0, 0]
        with only_at(body_of(model), places.clamp(min=0)):
            out = model(**inputs, **options)
        out.logits = out.logits[:, 0].index_select(-1, batch[ANSWERS][0])
        return out


def ends(mask: Tensor) -> Tensor:
    """The place after each row's last visible token; tokens before it may be hidden."""
    return (mask * torch.arange(1, mask.shape[-1] + 1, device=mask.device)).amax(-1)


def outside_prompt(batch: Batch) -> Tensor:
    """True for the tokens of a batch that no prompt has added."""
    mask = batch["attention_mask"]
    if FROM_END not in batch:
        return torch.ones_like(mask, dtype=torch.bool)
    text = ends(mask) - batch[FROM_END][0, 1]
    return torch.arange(mask.shape[-1], device=mask.device) < text[..., None]


@contextmanager
def only_at(body: nn.Module, places: Tensor) -> Iterator[None]:
    """Give the head one hidden state of each row inside: that of its place."""

    def select(_: nn.Module, args: Any, out: Any) -> Any:
        hidden = out.last_hidden_state
        rows = torch.arange(len(hidden), device=hidden.device)
        out.last_hidden_state = hidden[rows, places][:, None]
        return out

    handle = body.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens of a prompt, of which one is the mask."""
    if tokenizer.mask_token is None:
        raise SettingsError(
            "this model's tokenizer has no token for a mask, so it fills no gaps",
            fix="use a masked language model (BERT, RoBERTa, ModernBERT), or remove task.prompt",
            field="task.prompt",
        )
    text = " " + prompt.replace(MASK, tokenizer.mask_token)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def word_ids(tokenizer: Any, words: Sequence[str]) -> list[int]:
    """The token of each label word; refuse words that are no single entry of the vocabulary."""
    ids = [_word_id(tokenizer, word) for word in words]
    if unknown := [word for word, token in zip(words, ids, strict=True) if token is None]:
        raise SettingsError(
            f"label words that are not in the model's vocabulary: {named(unknown)}",
            fix="choose common words: each must be one token of the model",
            field="task.label_words",
        )
    known = [token for token in ids if token is not None]
    if len(set(known)) < len(known):
        raise SettingsError(
            f"two of the label words are one token of this model: {named(words)}",
            fix="choose words that differ in more than upper and lower case",
            field="task.label_words",
        )
    return known


def _word_id(tokenizer: Any, word: str) -> int | None:
    """The only token of a word within a text; None: it has several, or is unknown."""
    for text in (f" {word}", word):  # byte-level tokenizers mark a word's start by a space
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            return int(ids[0])
    return None
