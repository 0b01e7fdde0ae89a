"""How wide a transformer is, without any of its weights: shapes cut to a width, and their sizes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import encoder_layers, repeats
from secure_fl.learning.fetching import configured, supported
from secure_fl.learning.models import head_fields
from secure_fl.learning.site import Site

# What configs call widths; `hidden_size` is each family's own, whatever it is called there.
FEED = ("intermediate_size", "hidden_dim")
TIED = "it chooses words by a table as wide as its layers"
WIDTHS = ("hidden_size", *FEED, "embedding_size", "pooler_hidden_size")


def wide_config(site: Site) -> Any:
    """The shape of the site's whole model, without any weight."""
    spec, tokenizer = site.model_settings, site.tokenizer
    fields = head_fields(site.task, spec.name)
    config = configured(spec.model_copy(update={"layers": None}), tokenizer, fields)
    reason = TIED if site.task.head == "causal" else hindrance(config)
    if reason:
        raise ModelError(
            f"this model cannot be cut to a width: {reason}",
            model=spec.name,
            fix="use a model that docs/models.md gives to HeteroFL, or tiers of depth: InclusiveFL",
        )
    return config


def hindrance(config: Any) -> str:
    """Why a narrower model of this shape would not be the first channels of the wide one."""
    if repeats(config):
        return "one layer's weights serve at all depths"
    if getattr(config, "rope_parameters", None):
        return "positions turn a head's channels in pairs, and a narrower head has other pairs"
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        return "its embeddings are narrower than its layers"
    attention = supported(transformers.AutoModel, config, "sdpa")
    with torch.device("meta"):  # shapes without memory
        body = transformers.AutoModel.from_config(config, attn_implementation=attention)
    for layer in encoder_layers(body):
        shapes = [m.weight.shape for m in layer.modules() if isinstance(m, nn.Linear)]
        if len(square(layer)) < 4 or len(shapes) != len(square(layer)) + 2:
            return "its heads and its feed-forward units are not matrices of their own"
    return ""


def square(layer: nn.Module) -> list[nn.Linear]:
    """The matrices of a layer's attention: what makes heads, and last what uses them."""
    linear = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    return [module for module in linear if module.in_features == module.out_features]


def head_size(config: Any) -> int:
    """How wide one attention head is."""
    return int(config.hidden_size) // int(config.num_attention_heads)


def at_width(config: Any, size: int) -> Any:
    """The same shape with heads of this size: as many of them, everything else cut alike."""
    whole, narrow = head_size(config), deepcopy(config)
    for field in (field for field in WIDTHS if hasattr(config, field)):
        setattr(narrow, field, max(1, round(getattr(config, field) * size / whole)))
    return narrow


def encoder_parameters(config: Any, layers: int) -> int:
    """How many parameters so many encoder layers of this shape have."""
    d = config.hidden_size
    f = next(getattr(config, field) for field in FEED if hasattr(config, field))
    attention, feed_forward, norms = 4 * (d * d + d), 2 * d * f + f + d, 2 * 2 * d
    return int(layers * (attention + feed_forward + norms))


def size_for_depth(config: Any, depth: int, layers: int) -> int:
    """The head size at which `layers` layers have as many parameters as `depth` whole ones."""
    goal, sizes = encoder_parameters(config, depth), range(1, head_size(config) + 1)
    return min(sizes, key=lambda s: abs(encoder_parameters(at_width(config, s), layers) - goal))
