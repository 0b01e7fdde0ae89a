"""Texts out of words at places: those whose inputs to the second layer lie in its span, too.

Where most places hold more words than are tried, the right ones are seldom among those: then the
likeliest word at each place makes the text, and nothing is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from secure_fl.audits.attacks.gradient_spans import InputSpan
from secure_fl.audits.attacks.layer_inputs import Array
from secure_fl.learning.anatomy import body_of, cut, encoder_layers
from secure_fl.learning.tasks.task import inference

Text = tuple[int, ...]
Places = Mapping[int, Sequence[int]]
Judge = Callable[[list[Text]], Array]

STARTS = 12  # texts that are begun with
COMBINATIONS = 512  # texts that are tried for each of these, all at once
SWEEPS = 2  # passes over the places of each
ALTERNATIVES = 8  # tokens tried at a place


def assemble(
    hits: Sequence[tuple[float, int, int]],
    model: nn.Module,
    second: Sequence[InputSpan],
    tokenizer: Any,
    *,
    only_first: bool = False,
) -> tuple[Text, ...]:
    """The texts that these (log p, place, token) hits form.

    `second`: spans of the second layer's inputs, or of texts' first inputs only.
    """
    places: dict[int, list[int]] = {}
    for _, place, token in sorted(hits):
        places.setdefault(place, []).append(token)
    words = {
        place: [t for t in found if t not in tokenizer.all_special_ids][:ALTERNATIVES]
        for place, found in places.items()
    }
    separators = [p for _, p, token in sorted(hits) if token == tokenizer.sep_token_id]
    starts = _starts(separators, words)
    crowded = bool(words) and median(map(len, places.values())) > ALTERNATIVES
    if crowded or not second or not all(span.tells for span in second):
        likeliest = [(first, *(words[p][0] for p in range(2, end))) for end, first in starts]
        return tuple(dict.fromkeys(likeliest))
    judge = _judge(model, second, (tokenizer.cls_token_id, tokenizer.sep_token_id), only_first)
    found = [_improved(_best(end, first, words, judge), words, judge) for end, first in starts]
    return tuple(dict.fromkeys(found))


def _starts(separators: Sequence[int], words: Places) -> list[tuple[int, int]]:
    """Where a text may end and with which word it may begin, the likeliest of both first."""
    run = next(p for p in range(1, len(words) + 2) if not words.get(p))  # no word here
    ends = [end for end in separators if 1 < end <= run] or ([run] if run > 1 else [])
    both = [(i + j, end, first) for i, end in enumerate(ends) for j, first in enumerate(words[1])]
    return [(end, first) for _, end, first in sorted(both)][:STARTS]


def _best(end: int, first: int, words: Places, judge: Judge) -> Text:
    """The best text of this length and first word, out of the likeliest words at each place."""
    options = [list(words[place]) for place in range(2, end)]
    while prod(map(len, options)) > COMBINATIONS:
        max(options, key=len).pop()
    texts = [(first, *rest) for rest in product(*options)]
    return texts[int(judge(texts).argmin())]


def _improved(text: Text, words: Places, judge: Judge) -> Text:
    """Exchange one token at a time, as long as the second layer's inputs come nearer."""
    best = float(judge([text])[0])
    for _ in range(SWEEPS):
        before = text
        for at in range(1, len(text)):  # the first word is what this text began with
            others = [t for t in words[at + 1] if t != text[at]]
            if not others:
                continue
            tried = [(*text[:at], other, *text[at + 1 :]) for other in others]
            far = judge(tried)
            if far.min() < best:
                best, text = float(far.min()), tried[int(far.argmin())]
        if text == before:
            break
    return text


def _judge(
    model: nn.Module, second: Sequence[InputSpan], frame: tuple[int, int], only_first: bool
) -> Judge:
    """How far texts' second-layer inputs lie from the spans, as a mean over tokens and spans."""
    body = body_of(cut(model, 1))  # what is behind the first layer would be computed for nothing
    given: list[torch.Tensor] = []
    encoder_layers(model)[0].register_forward_hook(lambda _, __, out: given.append(_first(out)))

    def judge(texts: list[Text]) -> Array:
        ids = torch.tensor([[frame[0], *text, frame[1]] for text in texts])
        with inference(model):
            body(input_ids=ids)
        H = given.pop().double().numpy()
        far = np.mean([span.far(H) for span in second], axis=0)
        return np.asarray(far[:, 0] if only_first else far.mean(-1))

    return judge


def _first(out: Any) -> torch.Tensor:
    """A layer's output; some families put more beside it."""
    hidden: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
