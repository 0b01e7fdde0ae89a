"""Models from a folder or a hub, checked against a task and measured at a site."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DataError, ModelError
from secure_fl.learning.counts import Counts, Rows
from secure_fl.learning.intervals import Z, slopes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.learning.site import Site
    from secure_fl.learning.tasks import Task

SPLIT = "test"
SQUARES = "squares"  # counts from which no metric follows
UNNAMED = re.compile(r"LABEL_\d+")  # the default names of transformers


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its tokenizer and its classes, in the model's order."""

    model: nn.Module
    tokenizer: Any
    labels: tuple[str, ...]

    def digest(self) -> str:
        """Digest weights, classes and tokens."""
        digest = hashlib.sha256("\n".join(self.labels).encode())
        digest.update(self.tokenizer.backend_tokenizer.to_str().encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            flat = weight.detach().cpu().contiguous().flatten()
            digest.update(memoryview(flat.view(_bytes()).numpy()))
        return digest.hexdigest()

    def in_order(self, logits: Tensor, labels: tuple[str, ...]) -> Tensor:
        """Reorder logits by the task's classes."""
        if self.labels == labels:
            return logits
        return logits[..., [self.labels.index(name) for name in labels]]


def read(name: str, task: Task) -> Loaded:
    """Read a model for a task, or raise if it does not fit or lacks weights."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        model, tokenizer, own = load_exported(folder)
        if own.kind != task.kind:
            raise _unfit(name, f"it was trained for the task {own.kind!r}, not {task.kind!r}")
        loaded = Loaded(model.eval(), tokenizer, own.labels)
    else:
        loaded = _read_plain(name, folder, task)
    _require_labels(name, loaded.labels, task)
    return loaded


def labels_of(name: str) -> tuple[str, ...] | None:
    """Return the classes or entity tags that a model names, or None."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        return load_exported(folder)[2].labels or None
    return _named(name)


def _read_plain(name: str, folder: Path, task: Task) -> Loaded:
    """Read a checkpoint of transformers or peft that includes the head of the task."""
    from secure_fl.learning import adapter_files
    from secure_fl.learning.models import load_model, load_tokenizer
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        raise ModelError(
            "the built-in model is not trained",
            model=name,
            fix="train it first, and give the folder of the run",
        )
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ModelError("there is no such folder", model=name, fix="check the path")
    labels = (_named(name) or ()) if task.labels else ()
    _require_labels(name, labels, task)
    base = adapter_files.base_of(folder) if folder.is_dir() else None
    own = (folder / "tokenizer.json").is_file() or base is None
    spec = ModelSettings(name=base or name, freeze_embeddings=False, pooling=_pooling(task))
    tokenizer = load_tokenizer(ModelSettings(name=name) if own else spec)
    model = load_model(spec, task, tokenizer, 0, complete=base is None)
    if base is not None:
        model = adapter_files.read(model, folder)
    return Loaded(model.eval(), tokenizer, labels)


def _pooling(task: Task) -> Any:
    """Return the pooling of the heads of transformers, which plain checkpoints have."""
    return "cls" if task.head == "sequence" else None


def _named(name: str) -> tuple[str, ...] | None:
    """Return the classes of a plain checkpoint, in the order of its outputs."""
    from secure_fl.learning.fetching import configured
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        return None
    names = getattr(configured(ModelSettings(name=name), None, {}), "id2label", None) or {}
    labels = tuple(str(names[at]) for at in sorted(names))
    return None if not labels or all(map(UNNAMED.fullmatch, labels)) else labels


def _unfit(name: str, what: str) -> ModelError:
    return ModelError(
        f"this model does not fit the task: {what}",
        model=name,
        fix="give a model that was trained for this task, with its classes named in id2label of "
        "its config.json, or change [task]",
        field="task",
    )


def _require_labels(name: str, labels: Collection[str], task: Task) -> None:
    """Refuse a model whose classes are not those of the task."""
    if set(labels) != set(task.labels):
        own, wanted = (
            ", ".join(sorted(these)[:12]) or "not named" for these in (labels, task.labels)
        )
        raise _unfit(name, f"its labels are {own}; the task has {wanted}")


def _bytes() -> Any:
    import torch

    return torch.uint8


def examine(site: Site, label: str, one: Loaded) -> dict[str, Rows]:
    """Measure a model on the site's test records; return the counts of each record."""
    from secure_fl.learning.training import autocast

    if not site.silo.test:
        raise DataError(
            "this site has no test records, which an evaluation needs",
            fix="give this site a test split, or leave the evaluation to other sites",
            party=site.name,
            split=SPLIT,
        )
    with site.recorder.phase("tokenise"):
        try:
            encoded = site.task.encode(site.silo.test, one.tokenizer)
        except DataError as error:
            raise error.at(party=site.name, split=SPLIT) from None
    with site.recorder.phase("evaluate"), autocast(site):
        model = one.model.to(site.device)
        logits, batches = site.task.outcomes(model, encoded, site.at_once())
    with site.recorder.phase("count"):
        labels = site.task.labels
        logits = [one.in_order(z, labels) if labels else z for z in logits]
        site.scores.begin(label, (SPLIT,))
        site.scores.measure(label, SPLIT, 1, (logits, batches), site.silo.test)
        return site.task.rows(logits, batches)


def pulls(task: Task, rows: Mapping[str, Rows], totals: Counts) -> dict[str, NDArray[np.float64]]:
    """Return how far each record moves each metric over all records, to first order.

    The sum of their squares is the variance of a metric (Efron's infinitesimal jackknife). For a
    difference between two models, it is the sum of the squared differences.
    """
    counted = {name: vector for name, vector in totals.items() if name != SQUARES}

    def rates(counts: Counts) -> Mapping[str, float]:
        return task.pooled([counts])

    moves = slopes(rates, counted, list(rates(counted))) | task.closed_slopes(counted)
    return {
        metric: np.sum([rows[name].along(slope) for name, slope in by_name.items()], axis=0)
        for metric, by_name in moves.items()
    }


def difference(one: float, other: float, square: float) -> dict[str, Any]:
    """Return the difference between two models' metrics, with a 95 % interval."""
    half = Z * float(np.sqrt(max(square, 0.0)))
    change = other - one
    return {"difference": change, "interval": [change - half, change + half]}
