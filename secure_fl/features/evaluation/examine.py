"""Models as they are: read from a folder or a hub, held against a task, and measured at a site."""

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
SQUARES = "squares"  # no metric follows from them
UNNAMED = re.compile(r"LABEL_\d+")  # what transformers writes where nobody named a class


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its tokenizer, and its classes in its own order."""

    model: nn.Module
    tokenizer: Any
    labels: tuple[str, ...]

    def digest(self) -> str:
        """What all of it comes to: weights, classes, tokens."""
        found = hashlib.sha256("\n".join(self.labels).encode())
        found.update(self.tokenizer.backend_tokenizer.to_str().encode())
        for name, weight in sorted(self.model.state_dict().items()):
            found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            flat = weight.detach().cpu().contiguous().flatten()
            found.update(memoryview(flat.view(_bytes()).numpy()))
        return found.hexdigest()

    def in_order(self, logits: Tensor, labels: tuple[str, ...]) -> Tensor:
        """Logits with the classes in the task's order."""
        if self.labels == labels:
            return logits
        return logits[..., [self.labels.index(name) for name in labels]]


def read(name: str, task: Task) -> Loaded:
    """Read a model that fits a task, or refuse it; weights that it lacks are never drawn."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        model, tokenizer, own = load_exported(folder)
        if own.kind != task.kind:
            raise _unfit(name, f"it is for the task {own.kind!r}, and this one is {task.kind!r}")
        found = Loaded(model.eval(), tokenizer, own.labels)
    else:
        found = _read_plain(name, folder, task)
    if set(found.labels) != set(task.labels):
        raise _unfit(name, f"its labels are {_said(found.labels)}; those asked for are "
                           f"{_said(task.labels)}")  # fmt: skip
    return found


def labels_of(name: str) -> tuple[str, ...] | None:
    """The classes that a model names, entity tags among them; None where it names none."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        return load_exported(folder)[2].labels or None
    return _named(name)


def _read_plain(name: str, folder: Path, task: Task) -> Loaded:
    """A checkpoint as transformers or peft writes it, complete with the head of the task."""
    from secure_fl.learning import adapter_files
    from secure_fl.learning.models import load_model, load_tokenizer
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        raise ModelError(
            "the built-in model has learned nothing yet",
            model=name,
            fix="train it first, and give the run's folder",
        )
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ModelError("there is no such folder", model=name, fix="check the path")
    labels = (_named(name) or ()) if task.labels else ()
    if set(labels) != set(task.labels):
        raise _unfit(name, f"its labels are {_said(labels)}; those asked for are "
                           f"{_said(task.labels)}")  # fmt: skip
    base = adapter_files.base_of(folder) if folder.is_dir() else None
    own = (folder / "tokenizer.json").is_file() or base is None
    spec = ModelSettings(name=base or name, freeze_embeddings=False, pooling=_pooling(task))
    tokenizer = load_tokenizer(ModelSettings(name=name) if own else spec)
    model = load_model(spec, task, tokenizer, 0, complete=base is None)
    if base is not None:
        model = adapter_files.read(model, folder)
    return Loaded(model.eval(), tokenizer, labels)


def _pooling(task: Task) -> Any:
    """A plain checkpoint has the head of transformers."""
    return "cls" if task.head == "sequence" else None


def _named(name: str) -> tuple[str, ...] | None:
    """The classes of a plain checkpoint, in the order of its outputs."""
    from secure_fl.learning.fetching import configured
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        return None
    names = getattr(configured(ModelSettings(name=name), None, {}), "id2label", None) or {}
    found = tuple(str(names[at]) for at in sorted(names))
    return None if not found or all(map(UNNAMED.fullmatch, found)) else found


def _unfit(name: str, what: str) -> ModelError:
    return ModelError(
        f"this model does not fit the task: {what}",
        model=name,
        fix="give a model that was trained for this task, with its classes named in id2label of "
        "its config.json, or change [task]",
        field="task",
    )


def _said(labels: Collection[str]) -> str:
    return ", ".join(sorted(labels)[:12]) or "not named"


def _bytes() -> Any:
    import torch

    return torch.uint8


def examine(site: Site, label: str, one: Loaded) -> dict[str, Rows]:
    """Measure a model on the site's test records; what each of them adds to the counts."""
    from secure_fl.learning.training import autocast

    if not site.silo.test:
        raise DataError(
            "there are no test records here, and an evaluation is over nothing else",
            fix="give this site a test split; one without records would hide nobody",
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
    """How far each record here moves each metric over all records, to first order.

    The variance of a metric is the sum of their squares; of a difference between two models, that
    of their differences (Efron's infinitesimal jackknife).
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
    """By how much a metric is better than another model's, and a 95 % interval."""
    half = Z * float(np.sqrt(max(square, 0.0)))
    apart = other - one
    return {"difference": apart, "interval": [apart - half, apart + half]}
