"""A checkpoint's tensors, one at a time: for models too narrow to be loaded by transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import cached_file

from secure_fl.errors import ModelError
from secure_fl.learning.fetching import fetch
from secure_fl.settings import ModelSettings

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
        if spec.name == "tiny" or not spec.pretrained:
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
