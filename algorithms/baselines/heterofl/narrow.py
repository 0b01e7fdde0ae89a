"""A narrower model of the same class, cut from the upper left of every matrix (HeteroFL).

A party that cannot hold the wide model builds the narrow one from its own shape, and reads the
checkpoint tensor by tensor: never more of the wide model than one tensor is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.utils import cached_file

from secure_fl.algorithms.baselines.heterofl.scaler import Scaled, Scaler
from secure_fl.algorithms.baselines.heterofl.widths import at_width, head_size, square, wide_config
from secure_fl.errors import ModelError
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import body_of, cut, encoder_layers, freeze_embeddings
from secure_fl.learning.exporting import require_savable
from secure_fl.learning.fetching import fetch, pooling_of, require_body, seeded, spread, supported
from secure_fl.learning.models import attach, auto_of, recompute
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.settings import ModelSettings

Places: TypeAlias = tuple[Tensor, ...]  # of a parameter's axes: which places of the wide one stay


def skeleton(config: Any, task: Task, spec: ModelSettings) -> nn.Module:
    """A model of this shape for the task, in torch's default device and with torch's numbers."""
    own = task.head == "ranking" or pooling_of(spec, task.head) == "attentive"
    auto = transformers.AutoModel if own else auto_of(task.head)
    options = {"attn_implementation": supported(auto, config, "sdpa"), "dtype": torch.float32}
    model = auto.from_config(config, **options)
    if own:
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        model = attach(model, task)
    return model if spec.layers is None else cut(model, spec.layers)


def shapes(config: Any, task: Task, spec: ModelSettings) -> nn.Module:
    """A model of this shape that holds no numbers."""
    with torch.device("meta"):
        return skeleton(config, task, spec)


def places(wide: nn.Module, narrow: nn.Module) -> dict[str, Places]:
    """Which places of the wide model's parameters the narrow one has: its first, along each axis.

    What attention heads make, and what uses it, is cut to the first places of every head.
    """
    heads = int(body_of(wide).config.num_attention_heads)
    by_head = attention_axes(wide)
    smaller = dict(narrow.named_parameters())
    found: dict[str, Places] = {}
    for name, parameter in wide.named_parameters():
        found[name] = tuple(
            first(whole, kept, heads if by_head.get(name) == axis else 1)
            for axis, (whole, kept) in enumerate(
                zip(parameter.shape, smaller[name].shape, strict=True)
            )
        )
    return found


def attention_axes(model: nn.Module) -> dict[str, int]:
    """The parameters of queries, keys, values and attention outputs: the axis that heads share."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    axes: dict[str, int] = {}
    for layer in encoder_layers(model):
        *makes, uses = square(layer)
        axes |= {names[id(parameter)]: 0 for one in makes for parameter in one.parameters()}
        axes[names[id(uses.weight)]] = 1
    return axes


def first(whole: int, kept: int, groups: int) -> Tensor:
    """The first places of every one of equal groups."""
    each = torch.arange(kept // groups)
    return (torch.arange(groups)[:, None] * (whole // groups) + each).flatten()


def taken(whole: Tensor, at: Places) -> Tensor:
    """The part of a parameter at these places."""
    for axis, kept in enumerate(at):
        if len(kept) < whole.shape[axis]:
            whole = whole.index_select(axis, kept.to(whole.device))
    return whole


def narrow_model(site: Site, size: int, scaled: Scaled = "always") -> tuple[nn.Module, Scaler]:
    """The site's model with heads of this size: slices of the weights `site.model()` would have."""
    spec, config = site.model_settings, wide_config(site)
    scaler = Scaler(size / head_size(config), scaled)
    if size == head_size(config):
        return site.model(), scaler
    wide = shapes(config, site.task, spec)
    with site.recorder.phase("load model"):
        with seeded(site.seed):
            model = skeleton(at_width(config, size), site.task, spec)
        at = places(wide, model)
        fill(model, wide, at, Tensors.of(spec, body_of(wide).base_model_prefix), site.seed)
        scaler.attach(model, at, wide)
        if spec.freeze_embeddings:
            freeze_embeddings(model)
        require_savable(model, site.tokenizer)
        if site.training.checkpointing:
            recompute(model)
    return model.eval().to(site.device), scaler


@torch.no_grad()
def fill(
    model: nn.Module, wide: nn.Module, at: Mapping[str, Places], tensors: Tensors, seed: int
) -> None:
    """Give the narrow model slices of the checkpoint, and of fresh weights where it has none."""
    fresh = {}
    for name, parameter in model.named_parameters():
        shape = wide.get_parameter(name).shape
        stored = tensors.get(name, shape)
        if stored is not None:
            parameter.copy_(taken(stored, at[name]))
        else:
            fresh[name] = shape
    if tensors.files:
        require_body(model, fresh, tensors.model)
    padding = {
        f"{name}.weight": module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    std = spread(body_of(model).config)
    for name, shape in fresh.items():
        parameter = model.get_parameter(name)
        if bool(parameter.min() == parameter.max()):
            continue  # biases and norms begin as constants
        key = f"{seed}/{name.removeprefix('backbone.')}"
        parameter.copy_(taken(builtin.bell(shape, key, std), at[name]))
        if name in padding:
            parameter[padding[name]].zero_()


WHOLE, SHARDED = "model.safetensors", "model.safetensors.index.json"
LEGACY = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensor name -> file that holds it; nothing is read before it is asked for."""

    model: str
    prefix: str  # how a model with a head calls its body
    files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: ModelSettings, prefix: str) -> Tensors:
        """The tensors of these settings' checkpoint; none for fresh weights."""
        if spec.fresh:
            return cls(spec.name, prefix)
        files: dict[str, Path] = {}
        for file in _files(spec.name):
            try:
                with safe_open(file, framework="pt") as opened:
                    files |= dict.fromkeys(opened.keys(), file)
            except (OSError, SafetensorError) as error:
                raise _unusable(spec.name) from error
        return cls(spec.name, prefix, files)

    def get(self, name: str, shape: torch.Size) -> Tensor | None:
        """The tensor of this parameter; `None` if there is none, or one of another shape."""
        stored = next((other for other in self._names(name) if other in self.files), None)
        if stored is None:
            return None
        with safe_open(self.files[stored], framework="pt") as opened:
            if tuple(opened.get_slice(stored).get_shape()) != tuple(shape):
                return None
            tensor: Tensor = opened.get_tensor(stored)
        return tensor.float()

    def _names(self, name: str) -> Iterator[str]:
        """What checkpoints of bodies, of models with heads, and old ones call a parameter."""
        bare = name.removeprefix("backbone.").removeprefix(f"{self.prefix}.")
        for known in (name, bare, f"{self.prefix}.{bare}"):
            yield known
            for new, old in LEGACY:
                if known.endswith(new):
                    yield known.removesuffix(new) + old


def _files(name: str) -> list[Path]:
    try:
        return [Path(fetch(cached_file, name, filename=WHOLE))]
    except ModelError:
        pass  # perhaps it is in several files
    try:
        index = Path(fetch(cached_file, name, filename=SHARDED))
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [Path(fetch(cached_file, name, filename=part)) for part in sorted(parts)]
    except (ModelError, OSError, ValueError, KeyError) as error:
        raise _unusable(name) from error


def _unusable(name: str) -> ModelError:
    return ModelError(
        "there is no usable safetensors file in this checkpoint, and a narrow model reads it "
        "tensor by tensor",
        model=name,
        fix="save it with save_pretrained of a recent transformers",
    )
