"""BERTs like the built-in model with more values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from transformers import BertConfig, BertModel

from secure_fl.learning import fetching
from secure_fl.learning.builtin import tiny_config, tiny_tokenizer

# By about how many values are trained: columns and layers, with heads of 64 columns.
SHAPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"1M": (192, 2), "10M": (512, 3), "100M": (1024, 8)}
)


def write(folder: Path, size: str, seed: int) -> str:
    """Write a random checkpoint of this size, with the built-in tokenizer."""
    tokenizer = tiny_tokenizer()
    with fetching.seeded(seed), fetching.quiet():
        BertModel(config_of(size, len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def config_of(size: str, vocabulary: int) -> BertConfig:
    """Make the configuration of a size, with feed-forward layers of four times the columns."""
    columns, layers = SHAPES[size]
    wider = {
        "hidden_size": columns,
        "intermediate_size": 4 * columns,
        "num_attention_heads": columns // 64,
        "initializer_range": 0.02,
    }
    return BertConfig(**tiny_config(vocabulary, layers=layers).to_dict() | wider)
