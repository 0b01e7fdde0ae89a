"""How wide a transformer is, without any of its weights: shapes cut to a width, and their sizes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import transformers

from secure_fl.errors import ModelError
from secure_fl.learning import builtin
from secure_fl.learning.fetching import fetch
from secure_fl.learning.models import head_fields
from secure_fl.learning.site import Site

FAMILIES = {  # what else than `hidden_size` a config calls a width
    "bert": ("intermediate_size",),
    "roberta": ("intermediate_size",),
    "distilbert": ("hidden_dim",),
    "electra": ("intermediate_size", "embedding_size"),
}


def wide_config(site: Site) -> Any:
    """The shape of the site's whole model, without any weight."""
    spec, tokenizer = site.model_settings, site.tokenizer
    if spec.name == "tiny":
        config: Any = builtin.tiny_config(len(tokenizer))
    else:
        config = fetch(transformers.AutoConfig.from_pretrained, spec.name)
    embedded = getattr(config, "embedding_size", config.hidden_size)
    if config.model_type not in FAMILIES or embedded != config.hidden_size:
        raise ModelError(
            "this encoder cannot be cut to a width",
            model=spec.name,
            fix="use BERT, RoBERTa, DistilBERT, or an ELECTRA whose embeddings are as wide as "
            "its layers",
        )
    config.update(head_fields(site.task))
    return config


def head_size(config: Any) -> int:
    """How wide one attention head is."""
    return int(config.hidden_size) // int(config.num_attention_heads)


def at_width(config: Any, size: int) -> Any:
    """The same shape with heads of this size: as many of them, everything else cut alike."""
    whole, narrow = head_size(config), deepcopy(config)
    for field in ("hidden_size", *FAMILIES[config.model_type]):
        setattr(narrow, field, max(1, round(getattr(config, field) * size / whole)))
    return narrow


def encoder_parameters(config: Any, layers: int) -> int:
    """How many parameters so many encoder layers of this shape have."""
    d, f = config.hidden_size, getattr(config, FAMILIES[config.model_type][0])
    attention, feed_forward, norms = 4 * (d * d + d), 2 * d * f + f + d, 2 * 2 * d
    return int(layers * (attention + feed_forward + norms))


def size_for_depth(config: Any, depth: int, layers: int) -> int:
    """The head size at which `layers` layers have as many parameters as `depth` whole ones."""
    goal, sizes = encoder_parameters(config, depth), range(1, head_size(config) + 1)
    return min(sizes, key=lambda s: abs(encoder_parameters(at_width(config, s), layers) - goal))
