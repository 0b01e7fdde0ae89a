"""Nested state as one safetensors file and back; its metadata holds all but the tensors, as JSON.

The state that one party hands to another has the same form. A file is written under another name,
and renamed when it is complete on disk: a crash or a full disk does not damage the last good one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from secure_fl.errors import RunError
from secure_fl.files import sync

FORMAT = "secure-fl/checkpoint/2"  # the key of the metadata
PARTIAL = "partial"  # incomplete
ASIDE = "aside"  # of rounds that will be repeated
SCALARS = frozenset({type(None), bool, int, float, str})
MALFORMED = (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError)


def save(file: Path, state: Mapping[str, Any]) -> None:
    """Write the state to `file`, atomically."""
    partial = _beside(file, PARTIAL)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors, metadata = _flat(state)
        save_file(tensors, partial, metadata=metadata)
        sync(partial)
        partial.replace(file)
        sync(file.parent)
    except (OSError, SafetensorError) as error:  # a full disk raises either
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunError(
            f"the checkpoint could not be written ({error})",
            fix="free disk space or choose another folder, then run again with --resume; "
            "the last good checkpoint is untouched",
            file=file,
            reason="unwritable",
        ) from error


def check(state: Any) -> None:
    """Refuse a state that a checkpoint cannot hold; nothing is copied."""
    _flatten(state, {})


def set_aside(file: Path) -> None:
    """Rename a checkpoint until it is dropped or put back."""
    file.replace(_beside(file, ASIDE))
    sync(file.parent)


def put_back(folder: Path) -> None:
    """Put back all checkpoints of this folder that were set aside and not replaced."""
    for aside in folder.glob(f".*.{ASIDE}"):
        file = folder / aside.name[1:].removesuffix(f".{ASIDE}")
        if file.exists():
            aside.unlink()
        else:
            aside.rename(file)
            sync(folder)


def drop_aside(folder: Path) -> None:
    """Remove the checkpoints that were set aside."""
    for aside in folder.glob(f".*.{ASIDE}"):
        aside.unlink()


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint of `save`."""
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}
        return _nested(metadata, tensors)
    except MALFORMED as error:
        what = f"the checkpoint cannot be read ({error})"
        fix = "resume with the version of secure_fl that wrote it, or delete it: "
        fix += "--resume then continues from the round before"
        raise RunError(what, fix=fix, file=file, reason="unreadable") from error


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Encode the state: equal states with equal key order give equal bytes."""
    tensors, metadata = _flat(state)
    return safetensors.torch.save(tensors, metadata)


def from_bytes(data: bytes) -> dict[str, Any]:
    """Decode the bytes of `to_bytes`."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        tensors = safetensors.torch.load(data)  # checks the header before we read it, too
        return _nested(json.loads(data[8:end])["__metadata__"], tensors)
    except MALFORMED as error:
        what = "a state from another party cannot be read"
        fix = "install the same version at all sites"
        raise RunError(what, fix=fix, reason="unreadable") from error


def _beside(file: Path, state: str) -> Path:
    return file.with_name(f".{file.name}.{state}")


def _flat(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a state."""
    tensors: dict[str, torch.Tensor] = {}
    metadata = {FORMAT: json.dumps(_flatten(state, tensors), allow_nan=True)}
    whole = torch.contiguous_format
    return {key: one.clone(memory_format=whole) for key, one in tensors.items()}, metadata


def _nested(metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Rebuild a state from its tensors and metadata; anything but a mapping is a TypeError."""
    if FORMAT not in metadata:
        raise ValueError(f"this is no {FORMAT}")
    state = _unflatten(json.loads(metadata[FORMAT]), tensors)
    if not isinstance(state, dict):
        raise TypeError(f"a state is a mapping, not a {type(state).__name__}")
    return state


def _flatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    match value:
        case torch.Tensor() | np.ndarray():
            key = f"t{len(tensors)}"
            tensors[key] = _tensor(value)
            return {"tensor": key, "numpy": isinstance(value, np.ndarray)}
        case Mapping():
            if other := [key for key in value if not isinstance(key, tuple(SCALARS))]:
                raise _malformed(f"the key {other[0]!r} of a mapping")
            if SCALARS.issuperset(map(type, value.values())):
                return {"scalars": list(map(list, value.items()))}
            return {"items": [[k, _flatten(v, tensors)] for k, v in value.items()]}
        case list() | tuple() if not hasattr(value, "_fields"):
            kind = {"tuple": type(value) is tuple}
            if SCALARS.issuperset(map(type, value)):  # histories have thousands of counts
                return {"values": list(value), **kind}
            return {"list": [_flatten(v, tensors) for v in value], **kind}
        case np.generic() if value.dtype.kind in "fiub" and value.dtype.itemsize <= 8:
            return {"value": value.item()}
        case None | bool() | int() | float() | str():
            return {"value": value}
        case _:
            raise _malformed(f"a {type(value).__name__}")


def _tensor(value: Any) -> torch.Tensor:
    """Return a tensor on the CPU, which may share the value's memory."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub" or value.dtype.itemsize > 8:
            raise _malformed(f"an array of the type {value.dtype}")
        value = np.asarray(value, value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value).detach().cpu()


def _malformed(found: str) -> RunError:
    return RunError(
        f"a checkpoint cannot hold {found}",
        fix="return tensors, arrays, numbers, texts, lists and mappings of texts or numbers from "
        "state_dict",
        reason="malformed",
    )


def _unflatten(node: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    if "tensor" in node:
        tensor = tensors[node["tensor"]].clone()  # unaligned data may round differently
        return tensor.numpy() if node["numpy"] else tensor
    if "scalars" in node:
        return dict(node["scalars"])
    if "values" in node:
        return tuple(node["values"]) if node["tuple"] else node["values"]
    if "items" in node:
        return {key: _unflatten(child, tensors) for key, child in node["items"]}
    if "list" in node:
        items = [_unflatten(child, tensors) for child in node["list"]]
        return tuple(items) if node["tuple"] else items
    return node["value"]
