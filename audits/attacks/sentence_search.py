"""Search for sentences among words at places: the second layer's inputs must lie in its span, too.

Where most places have more candidates than the search tries, the right words are seldom among those
tried. Then the likeliest word at each place makes the text, without a search.
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

STARTS = 12  # lengths and first words that are tried
COMBINATIONS = 512  # texts that are tried for each of these, in one batch
SWEEPS = 2  # passes over the places of each text
ALTERNATIVES = 8  # tokens tried at a place


def assemble(
    hits: Sequence[tuple[float, int, int]],
    model: nn.Module,
    second: Sequence[InputSpan],
    tokenizer: Any,
    *,
    only_first: bool = False,
) -> tuple[Text, ...]:
    """Form texts of these (log p, place, token) hits.

    `second`: spans of the second layer's inputs; `only_first`: of texts' first inputs.
    """
    places: dict[int, list[int]] = {}
    for _, place, token in sorted(hits):
        places.setdefault(place, []).append(token)
    words = {
        place: [t for t in hit if t not in tokenizer.all_special_ids][:ALTERNATIVES]
        for place, hit in places.items()
    }
    separators = [p for _, p, token in sorted(hits) if token == tokenizer.sep_token_id]
    starts = _starts(separators, words)
    crowded = bool(words) and median(map(len, places.values())) > ALTERNATIVES
    if crowded or not second or not all(span.is_proper for span in second):
        likeliest = [(first, *(words[p][0] for p in range(2, end))) for end, first in starts]
        return tuple(dict.fromkeys(likeliest))
    judge = _judge(model, second, (tokenizer.cls_token_id, tokenizer.sep_token_id), only_first)
    texts = [_improved(_best(end, first, words, judge), words, judge) for end, first in starts]
    return tuple(dict.fromkeys(texts))


def _starts(separators: Sequence[int], words: Places) -> list[tuple[int, int]]:
    """List the ends and first words of texts, the likeliest first."""
    run = next(
        p for p in range(1, len(words) + 2) if not words.get(p)
    )  # the first place without a word
    ends = [end for end in separators if 1 < end <= run] or ([run] if run > 1 else [])
    both = [(i + j, end, first) for i, end in enumerate(ends) for j, first in enumerate(words[1])]
    return [(end, first) for _, end, first in sorted(both)][:STARTS]


def _best(end: int, first: int, words: Places, judge: Judge) -> Text:
    """Find the best text of this length and first word, of the likeliest words at each place."""
    options = [list(words[place]) for place in range(2, end)]
    while prod(map(len, options)) > COMBINATIONS:
        max(options, key=len).pop()
    texts = [(first, *rest) for rest in product(*options)]
    return texts[int(judge(texts).argmin())]


def _improved(text: Text, words: Places, judge: Judge) -> Text:
    """Exchange one token at a time while the second layer's inputs come nearer to the spans."""
    best = float(judge([text])[0])
    for _ in range(SWEEPS):
        before = text
        for at in range(1, len(text)):  # the first word is fixed
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
    """Make a function of texts: the mean distance of second-layer inputs from the spans."""
    body = body_of(cut(model, 1))  # later layers are not needed
    outputs: list[torch.Tensor] = []
    encoder_layers(model)[0].register_forward_hook(lambda _, __, out: outputs.append(_first(out)))

    def judge(texts: list[Text]) -> Array:
        ids = torch.tensor([[frame[0], *text, frame[1]] for text in texts])
        with inference(model):
            body(input_ids=ids)
        H = outputs.pop().double().numpy()
        far = np.mean([span.sine(H) for span in second], axis=0)
        return np.asarray(far[:, 0] if only_first else far.mean(-1))

    return judge


def _first(out: Any) -> torch.Tensor:
    """Take a layer's output; some model families return a tuple."""
    hidden: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
