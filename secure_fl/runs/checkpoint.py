"""Nested state to two files and back: tensors as safetensors, everything else as JSON.

A checkpoint is written under another name and renamed when it is complete on disk, so a crash or a
full disk does not damage the last good one. The replaced checkpoint is set aside and removed last;
`mend` completes work that a crash interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from secure_fl.errors import RunError
from secure_fl.files import sync

FORMAT = "secure-fl/checkpoint/1"
PARTIAL, BEFORE, GONE = "partial", "before", "gone"  # incomplete, replaced, to be removed
ASIDE = "aside"  # of rounds that will be repeated
SCALARS = frozenset({type(None), bool, int, float, str})


def save(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the state to `folder`, atomically."""
    partial, before = _beside(folder, PARTIAL), _beside(folder, BEFORE)
    tensors: dict[str, torch.Tensor] = {}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        mend(folder.parent)
        skeleton = _flatten(state, tensors)
        save_file(tensors, partial / "tensors.safetensors")
        text = json.dumps({"format": FORMAT, "state": skeleton}, allow_nan=True)
        (partial / "state.json").write_text(text)
        for path in (*partial.iterdir(), partial):
            sync(path)
        if folder.exists():  # the same round again, after a resume
            folder.rename(before)  # a folder cannot replace another one
        partial.rename(folder)
        sync(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # a full disk raises either
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            mend(folder.parent)
        raise RunError(
            f"the checkpoint could not be written ({error})",
            fix="free disk space or choose another folder, then run again with --resume; "
            "the last good checkpoint is untouched",
            file=folder,
            reason="unwritable",
        ) from error


def remove(folder: Path) -> None:
    """Remove a checkpoint; a crash cannot leave a part of it under its name."""
    gone = _beside(folder, GONE)
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    sync(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Rename a checkpoint until it is dropped or put back."""
    folder.rename(_beside(folder, ASIDE))
    sync(folder.parent)


def _restore(parent: Path, mark: str) -> None:
    """Rename folders with this mark back; remove those whose name is in use."""
    for renamed in parent.glob(f".*.{mark}"):
        folder = parent / renamed.name[1:].removesuffix(f".{mark}")
        if folder.exists():
            shutil.rmtree(renamed, ignore_errors=True)
        else:
            renamed.rename(folder)
            sync(parent)


def put_back(parent: Path) -> None:
    """Put back all checkpoints that were set aside and not replaced."""
    _restore(parent, ASIDE)


def drop_aside(parent: Path) -> None:
    """Remove the checkpoints that were set aside."""
    for aside in parent.glob(f".*.{ASIDE}"):
        shutil.rmtree(aside, ignore_errors=True)


def mend(parent: Path) -> None:
    """Complete or undo interrupted work, so that all checkpoints in the folder are complete."""
    _restore(parent, BEFORE)
    for gone in parent.glob(f".*.{GONE}"):
        shutil.rmtree(gone, ignore_errors=True)


def load(folder: Path) -> dict[str, Any]:
    """Read a checkpoint of `save`."""
    try:
        tensors = load_file(folder / "tensors.safetensors")
        document = json.loads((folder / "state.json").read_text())
        form = document["format"]
        state = _state(document["state"], tensors) if form == FORMAT else {}
    except Exception as error:
        what = f"the checkpoint cannot be read ({error})"
        fix = "delete this folder; --resume then continues from the round before"
        raise RunError(what, fix=fix, file=folder, reason="unreadable") from error
    if form != FORMAT:
        what = f"unknown checkpoint format {form!r}"
        fix = "resume with the version of secure_fl that started the run"
        raise RunError(what, fix=fix, file=folder, reason="malformed")
    return state


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Encode the state: equal states with equal key order give equal bytes."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(_flatten(state, tensors), allow_nan=True).encode()
    return len(skeleton).to_bytes(8, "big") + skeleton + safetensors.torch.save(tensors)


def from_bytes(data: bytes) -> dict[str, Any]:
    """Decode the bytes of `to_bytes`."""
    end = 8 + int.from_bytes(data[:8], "big")
    try:
        return _state(json.loads(data[8:end]), safetensors.torch.load(data[end:]))
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        what = "a state from another party cannot be read"
        fix = "install the same version at all sites"
        raise RunError(what, fix=fix, reason="unreadable") from error


def _beside(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.{state}")


def _flatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    match value:
        case torch.Tensor() | np.ndarray():
            key = f"t{len(tensors)}"
            tensor = torch.as_tensor(value).detach().cpu()
            tensors[key] = tensor.clone(memory_format=torch.contiguous_format)
            return {"tensor": key, "numpy": isinstance(value, np.ndarray)}
        case Mapping():
            if SCALARS.issuperset(map(type, value.values())):
                return {"scalars": list(map(list, value.items()))}
            return {"items": [[k, _flatten(v, tensors)] for k, v in value.items()]}
        case list() | tuple():
            kind = {"tuple": type(value) is tuple}
            if SCALARS.issuperset(map(type, value)):  # histories have thousands of counts
                return {"values": list(value), **kind}
            return {"list": [_flatten(v, tensors) for v in value], **kind}
        case None | bool() | int() | float() | str():
            return {"value": value}
        case _:
            what = f"a checkpoint cannot hold a {type(value).__name__}"
            fix = "return tensors, arrays, numbers, texts, lists and mappings from state_dict"
            raise RunError(what, fix=fix, reason="malformed")


def _state(node: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Rebuild a state from its flat form; anything but a mapping is a TypeError."""
    state = _unflatten(node, tensors)
    if not isinstance(state, dict):
        raise TypeError(f"a state is a mapping, not a {type(state).__name__}")
    return state


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
