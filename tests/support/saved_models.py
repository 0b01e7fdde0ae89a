"""Small models as a hub would hold them: in folders, with tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertModel

from secure_fl.learning import fetching
from secure_fl.learning.builtin import tiny_config, tiny_tokenizer
from secure_fl.settings import ModelSettings

WORDS = ("fever", "cough", "patient", "follow-up", "dose", "no")
SMALL = {
    "vocab_size": 230,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "embedding_size": 16,
    "max_position_embeddings": 40,
}


def save_headless(folder: Path, family: str) -> ModelSettings:
    """Write a checkpoint of a family without a tokenizer and a head."""
    config = transformers.AutoConfig.for_model(family)
    names = {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    names |= {"intermediate_size": "hidden_dim"}
    distil = family == "distilbert"
    config.update({names.get(k, k) if distil else k: v for k, v in SMALL.items()})
    with fetching.seeded(1), fetching.quiet():
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    return ModelSettings(name=str(folder))


def save_family(folder: Path, family: str) -> ModelSettings:
    """Write a headless checkpoint of a family, with a tokenizer."""
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return save_headless(folder, family)


def save_tiny(folder: Path, words: Sequence[str] | None = None, **changes: Any) -> str:
    """Write a checkpoint like the built-in model, but for these fields."""
    tokenizer = tiny_tokenizer(words)
    config = BertConfig(**tiny_config(len(tokenizer)).to_dict() | changes)
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with dropout, as most have that are downloaded, and the built-in one has not."""
    folder = tmp_path_factory.mktemp("dropping")
    with torch.random.fork_rng():
        return save_tiny(folder, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
