"""Support of transformers 5 in Opacus 1.6, and refusals of layers without a per-record bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import embeddings


def require_rows(values: Any, rows: int, what: str) -> None:
    """Refuse gradients or losses that are not one per record."""
    if not isinstance(values, Tensor) or values.shape[:1] != (rows,):
        raise ModelError(
            f"{what} does not come one per record, so no record can be bounded",
            fix="use a task of texts or sentences, and a BERT-like encoder all of whose trained "
            "weights take part in every batch",
        )


def require_supported(model: nn.Module) -> None:
    """Refuse layers that Opacus accepts although no bound covers them."""
    norms = nn.modules.batchnorm._BatchNorm
    if any(isinstance(module, norms) for module in model.modules()):
        raise ModelError(
            "batch normalisation mixes the records of a batch, even where it is frozen",
            model=type(model).__name__,
            fix="use a model with layer normalisation",
        )


def ids_per_record(model: nn.Module) -> Callable[[], None]:
    """Pass position and token type ids of every record to all embeddings; return the undo function.

    transformers makes one row of them for the whole batch, which Opacus reads as a batch of one.
    """
    tables = {id(e := embeddings(m)): e for m in model.modules() if isinstance(m, PreTrainedModel)}
    undo = [_fill_ids(module) for module in tables.values()]

    def undo_all() -> None:
        for remove in undo:
            remove()

    return undo_all


def _fill_ids(module: nn.Module) -> Callable[[], None]:
    signature = inspect.signature(module.forward)
    tables = [table for table in module.modules() if isinstance(table, nn.Embedding)]
    # RoBERTa, MPNet, Longformer: positions start after the padding's, and are per record already.
    own_positions = len([table for table in tables if table.padding_idx is not None]) > 1

    def fill(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        given = signature.bind(*args, **kwargs).arguments
        ids = given.get("input_ids")
        if ids is None:
            return args, kwargs
        if given.get("position_ids") is None and not own_positions:
            places = torch.arange(ids.shape[1], device=ids.device)
            given["position_ids"] = places.expand(ids.shape).contiguous()
        if given.get("token_type_ids") is None:
            given["token_type_ids"] = torch.zeros_like(ids)
        return (), {name: given[name] for name in given if name in signature.parameters}

    if "position_ids" not in signature.parameters:
        return lambda: None
    return module.register_forward_pre_hook(fill, with_kwargs=True).remove


def tidy(model: nn.Module) -> None:
    """Remove attributes that Opacus leaves behind, above all after an interrupted step."""
    for module in model.modules():
        module.__dict__.pop("ft_compute_sample_grad", None)
    for parameter in model.parameters():
        parameter.grad = None
        parameter.__dict__.pop("summed_grad", None)


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, except for modules with weights, which Opacus needs in training.

    Attention applies dropout by its own mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = module is model or any(True for _ in module.parameters(recurse=False))
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
