"""The built-in model: a small BERT and a WordPiece tokenizer that need no download.

Nothing here is learned from records. The vocabulary is single characters and a fixed, public word
list. Weights are drawn from a seed, bit for bit equal on every machine, because hospitals must
start a federation from one model without sending it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedTokenizerFast

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYMBOLS = (
    "abcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    "°±µ²³·×≤≥αβγδßøæœł€£§–—‘’“”…"
)


def tiny_config(vocab_size: int, *, layers: int = 4) -> BertConfig:
    """The built-in model's shape: 4 narrow BERT layers, trained in seconds on a laptop."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
        # With dropout, fresh weights carry too little signal to a single token to learn classes.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,  # BERT's 0.02 suits 768 units; 64 units learn faster from more
        pad_token_id=0,
    )


def tiny_tokenizer(words: Iterable[str] | None = None) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer of characters and `words` (None: the lexicon)."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    if words is None:
        from secure_fl.corpora import lexicon

        words = lexicon()
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    # The splitter cuts words such as "follow-up", so their parts are the entries.
    parts = {
        part
        for word in words
        for part, _ in splitter.pre_tokenize_str(normalizer.normalize_str(word))
        if len(part) > 1
    }
    entries = (*SPECIALS, *SYMBOLS, *(f"##{symbol}" for symbol in SYMBOLS), *sorted(parts))
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",  # noqa: S106
        unk_token="[UNK]",  # noqa: S106
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        mask_token="[MASK]",  # noqa: S106
        model_max_length=128,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def redraw(model: nn.Module, names: Iterable[str], seed: int, std: float) -> None:
    """Set the freshly initialised parameters `names` to values that depend on seed and name only.

    torch's normal sampler rounds differently with the processor's vector width, so hospitals could
    differ in a last bit. Constants (zero biases, unit norms) do not change.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    padding = {
        f"{name}.weight": module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    for name in names:
        parameter = parameters.get(name)
        if parameter is None or bool(parameter.min() == parameter.max()):
            continue
        with torch.no_grad():
            parameter.copy_(bell(parameter.shape, f"{seed}/{name}", std))
            if name in padding:
                parameter[padding[name]].zero_()


def bell(shape: torch.Size, key: str, std: float) -> Tensor:
    """Bell-shaped values within three `std`, equal on every machine for equal keys.

    A sum of three uniform 16-bit integers has exactly half a unit of standard deviation, and
    every step is exact or a single rounding.
    """
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    total = torch.zeros(shape, dtype=torch.int32)
    for _ in range(3):
        total += torch.randint(0, 1 << 16, shape, generator=generator, dtype=torch.int32)
    return (total.float() - 3 * 65535 / 2) * (2 * std / (1 << 16))


@contextmanager
def few_threads(model: str, threads: int | None = None) -> Iterator[None]:
    """Use so many threads inside; by default one for the built-in model, which is too small.

    On busy cores, threads with little work mostly wait for each other.
    """
    before = torch.get_num_threads()
    wanted = threads or (1 if model == "tiny" else before)
    torch.set_num_threads(min(wanted, max(os.cpu_count() or 1, before)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
