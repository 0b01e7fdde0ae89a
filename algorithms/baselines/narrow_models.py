"""Narrower models of the same class, cut from the first channels of every matrix (HeteroFL).

A party loads the wide model on the CPU once, copies its slices, and trains the narrow model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import torch
import transformers
from torch import Tensor, nn

from secure_fl.algorithms.baselines.settings import Scaled
from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import body_of, cut, encoder_layers, freeze_embeddings, repeats
from secure_fl.learning.exporting import require_savable
from secure_fl.learning.fetching import configured, pooling_of, seeded, supported
from secure_fl.learning.models import attach, auto_of, head_fields, load_model, recompute
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.settings import ModelSettings

Places: TypeAlias = tuple[Tensor, ...]  # by axis: the positions of the wide parameter that stay

# Names of widths in configs; transformers maps `hidden_size` to each family's own name.
FEED = ("intermediate_size", "hidden_dim")
TIED = "its word embeddings, as wide as its layers, also predict words"
WIDTHS = ("hidden_size", *FEED, "embedding_size", "pooler_hidden_size")


def skeleton(config: Any, task: Task, spec: ModelSettings) -> nn.Module:
    """Build a model of this shape for the task, on torch's default device, at random."""
    pooling = pooling_of(spec, task.head)
    our_head = task.head == "ranking" or pooling != "cls"
    auto = transformers.AutoModel if our_head else auto_of(task.head)
    options = {"attn_implementation": supported(auto, config, "sdpa"), "dtype": torch.float32}
    model = auto.from_config(config, **options)
    if our_head:
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        model = attach(model, task, pooling)
    return model if spec.layers is None else cut(model, spec.layers)


def shapes(config: Any, task: Task, spec: ModelSettings) -> nn.Module:
    """Build a model of this shape without memory for its weights."""
    with torch.device("meta"):
        return skeleton(config, task, spec)


def places(wide: nn.Module, narrow: nn.Module) -> dict[str, Places]:
    """Return the wide model's positions that the narrow one has: the first ones along each axis.

    Queries, keys, values and attention outputs are cut to the first positions of every head.
    """
    heads = int(body_of(wide).config.num_attention_heads)
    by_head = attention_axes(wide)
    smaller = dict(narrow.named_parameters())
    kept_at: dict[str, Places] = {}
    for name, parameter in wide.named_parameters():
        kept_at[name] = tuple(
            first(full, kept, heads if by_head.get(name) == axis else 1)
            for axis, (full, kept) in enumerate(
                zip(parameter.shape, smaller[name].shape, strict=True)
            )
        )
    return kept_at


def attention_axes(model: nn.Module) -> dict[str, int]:
    """Map the attention's parameters to the axis that their heads share."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    axes: dict[str, int] = {}
    for layer in encoder_layers(model):
        *makes, uses = square(layer)
        axes |= {names[id(parameter)]: 0 for module in makes for parameter in module.parameters()}
        axes[names[id(uses.weight)]] = 1
    return axes


def first(full: int, kept: int, groups: int) -> Tensor:
    """Return the first positions of each of these equal groups."""
    inner = torch.arange(kept // groups)
    return (torch.arange(groups)[:, None] * (full // groups) + inner).flatten()


def select(full: Tensor, at: Places) -> Tensor:
    """Select the part of a parameter at these positions."""
    for axis, kept in enumerate(at):
        if len(kept) < full.shape[axis]:
            full = full.index_select(axis, kept.to(full.device))
    return full


def narrow_model(site: Site, size: int, scaled: Scaled = "always") -> tuple[nn.Module, Scaler]:
    """Build the site's model with heads of this size, from slices of `site.model()`'s weights."""
    spec, config = site.model_settings, wide_config(site)
    scaler = Scaler(size / head_size(config), scaled)
    if size == head_size(config):
        return site.model(), scaler
    with site.recorder.phase("load model"), torch.no_grad():
        with seeded(site.seed):
            wide = load_model(spec, site.task, site.tokenizer, site.seed)
            model = skeleton(at_width(config, size), site.task, spec)
        at = places(wide, model)
        for name, parameter in model.named_parameters():
            parameter.copy_(select(wide.get_parameter(name), at[name]))
        scaler.attach(model, at, wide)
        if spec.freeze_embeddings:
            freeze_embeddings(model)
        require_savable(model, site.tokenizer)
        if site.training.checkpointing:
            recompute(model)
    return model.eval().to(site.device), scaler


def wide_config(site: Site) -> Any:
    """Return the shape of the site's full model."""
    spec, tokenizer = site.model_settings, site.tokenizer
    fields = head_fields(site.task, spec.name)
    config = configured(spec.model_copy(update={"layers": None}), tokenizer, fields)
    reason = TIED if site.task.head == "causal" else hindrance(config)
    if reason:
        raise ModelError(
            f"this model cannot be cut to a width: {reason}",
            model=spec.name,
            fix="use a model that docs/models.md lists for HeteroFL, or use InclusiveFL",
        )
    return config


def hindrance(config: Any) -> str:
    """Explain why the first channels of this shape are not a model; empty if they are."""
    if repeats(config):
        return "one layer's weights serve at all depths"
    if getattr(config, "rope_parameters", None):
        return "rotary positions pair a head's channels, and a narrower head has other pairs"
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        return "its embeddings are narrower than its layers"
    attention = supported(transformers.AutoModel, config, "sdpa")
    with torch.device("meta"):  # no memory for weights
        body = transformers.AutoModel.from_config(config, attn_implementation=attention)
    for layer in encoder_layers(body):
        shapes = [m.weight.shape for m in layer.modules() if isinstance(m, nn.Linear)]
        if len(square(layer)) < 4 or len(shapes) != len(square(layer)) + 2:
            return "its heads and its feed-forward units are not separate matrices"
    return ""


def square(layer: nn.Module) -> list[nn.Linear]:
    """List the matrices of a layer's attention, with the output matrix last."""
    linear = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    return [module for module in linear if module.in_features == module.out_features]


def head_size(config: Any) -> int:
    """Return the width of one attention head."""
    return int(config.hidden_size) // int(config.num_attention_heads)


def at_width(config: Any, size: int) -> Any:
    """Return the shape with as many heads of this size, and all other widths in proportion."""
    full, narrow = head_size(config), deepcopy(config)
    for width in (width for width in WIDTHS if hasattr(config, width)):
        setattr(narrow, width, max(1, round(getattr(config, width) * size / full)))
    return narrow


def encoder_parameters(config: Any, layers: int) -> int:
    """Count the parameters of this many encoder layers of this shape."""
    d = config.hidden_size
    f = next(getattr(config, field) for field in FEED if hasattr(config, field))
    attention, feed_forward, norms = 4 * (d * d + d), 2 * d * f + f + d, 2 * 2 * d
    return int(layers * (attention + feed_forward + norms))


def size_for_depth(config: Any, depth: int, layers: int) -> int:
    """Return the head size at which `layers` layers have the size of `depth` full ones."""
    goal, sizes = encoder_parameters(config, depth), range(1, head_size(config) + 1)
    return min(sizes, key=lambda s: abs(encoder_parameters(at_width(config, s), layers) - goal))


class Scaler:
    """HeteroFL's scaler: the outputs of narrower layers, divided by the share of their width.

    So the next layer finds values of the wide model's size. The paper divides in training alone,
    since it measures the wide model. A hospital uses its narrow model, which would be a different
    model without the division.
    """

    def __init__(self, rate: float, when: Scaled) -> None:
        self._rate, self._always = rate, when == "always"
        self._on: list[
            tuple[nn.Module, Any]
        ] = []  # narrower layers, and the handles of their hooks

    def attach(
        self, model: nn.Module, at: Mapping[str, tuple[Tensor, ...]], wide: nn.Module
    ) -> None:
        """Divide the outputs of all layers that are narrower than in the wide model."""
        for name, module in model.named_modules():
            axis = {nn.Linear: 0, nn.Embedding: 1}.get(type(module))
            if axis is not None:
                weight = f"{name}.weight"
                if len(at[weight][axis]) < wide.get_parameter(weight).shape[axis]:
                    self._on.append((module, module.register_forward_hook(self._divide)))

    @torch.no_grad()
    def fold(self) -> None:
        """Put the division into the weights, so that the saved model needs no scaler."""
        for module, handle in self._on:
            handle.remove()
            for value in module.parameters(recurse=False) if self._always else ():
                value.div_(self._rate)
        self._on.clear()

    def _divide(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self._rate if self._always or module.training else output
