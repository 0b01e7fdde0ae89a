"""Finished models: read from a folder or a hub, checked against a task, and measured at a site."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DataError, ModelError
from secure_fl.learning.metric_counts import Contributions, Counts
from secure_fl.learning.metrics import Z

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.learning.site import Site
    from secure_fl.learning.tasks import Task

SPLIT = "test"
SQUARES = "squares"  # no metric depends on them
UNNAMED = re.compile(r"LABEL_\d+")  # the default class names of transformers


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer, and its classes in the order of its outputs."""

    model: nn.Module
    tokenizer: Any
    labels: tuple[str, ...]
    reader: Task | None = None  # reads records as for training; None: as the run's task does

    def digest(self) -> str:
        """A digest of weights, classes and tokenizer, and of another reading than the task's."""
        import torch

        digest = hashlib.sha256("\n".join(self.labels).encode())
        if self.reader is not None:
            digest.update(json.dumps(self.reader.reading(), sort_keys=True).encode())
        digest.update(self.tokenizer.backend_tokenizer.to_str().encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            flat = weight.detach().cpu().contiguous().flatten()
            digest.update(memoryview(flat.view(torch.uint8).numpy()))
        return digest.hexdigest()

    def in_order(self, logits: Tensor, labels: tuple[str, ...]) -> Tensor:
        """Logits with the classes in the task's order."""
        if self.labels == labels:
            return logits
        return logits[..., [self.labels.index(name) for name in labels]]


def read(name: str, task: Task) -> LoadedModel:
    """Read a model that fits a task; refuse one that lacks weights or has other classes."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        model, tokenizer, trained = load_exported(folder)
        if trained.kind != task.kind:
            raise _unfit(name, f"it is for the task {trained.kind!r}, not {task.kind!r}")
        _require_labels(name, trained.labels, task)
        by_word = trained.head == "prompt"  # its outputs are the words of the task's labels
        labels = task.labels if by_word else trained.labels
        return LoadedModel(model.eval(), tokenizer, labels, _reader(trained, task))
    loaded = _read_plain(name, folder, task)
    _require_labels(name, loaded.labels, task)
    return loaded


def _reader(trained: Task, task: Task) -> Task | None:
    """Return the task that reads records as for training, if it reads otherwise than `task`."""
    from secure_fl.learning.tasks import task_from

    if trained.reading() == task.reading():
        return None
    return task_from({"kind": task.kind, "labels": task.labels, **trained.reading()})


def labels_of(name: str) -> tuple[str, ...] | None:
    """The classes that a model names, including entity tags; None where it names none."""
    from secure_fl.learning.exporting import CARD, load_exported

    folder = Path(name).expanduser()
    if (folder / CARD).is_file():
        return load_exported(folder)[2].labels or None
    return _named(name)


def _read_plain(name: str, folder: Path, task: Task) -> LoadedModel:
    """A checkpoint as transformers or peft writes it, complete with the head of the task."""
    from secure_fl.learning.models import load_model, load_tokenizer, part_in
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        raise ModelError(
            "the built-in model is untrained",
            model=name,
            fix="train it first, and give the run's folder",
        )
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ModelError("there is no such folder", model=name, fix="check the path")
    labels = (_named(name) or ()) if task.labels else ()
    _require_labels(name, labels, task)
    part, base = (part_in(folder) if folder.is_dir() else None) or (None, name)
    pooling: Any = "cls" if task.head == "sequence" else None  # the head of transformers
    spec = ModelSettings(name=base, freeze_embeddings=False, pooling=pooling)
    has_tokenizer = (folder / "tokenizer.json").is_file() or part is None
    tokenizer = load_tokenizer(ModelSettings(name=name) if has_tokenizer else spec)
    model = load_model(spec, task, tokenizer, 0, complete=part is None)
    if part is not None:
        model = part.read(model, folder)
    return LoadedModel(model.eval(), tokenizer, labels)


def _named(name: str) -> tuple[str, ...] | None:
    """The classes of a plain checkpoint, in the order of its outputs."""
    from secure_fl.learning.fetching import configured
    from secure_fl.settings import ModelSettings

    if name == "tiny":
        return None
    names = getattr(configured(ModelSettings(name=name), None, {}), "id2label", None) or {}
    labels = tuple(str(names[at]) for at in sorted(names))
    return None if not labels or all(map(UNNAMED.fullmatch, labels)) else labels


def _require_labels(name: str, labels: Collection[str], task: Task) -> None:
    if set(labels) != set(task.labels):
        has, wanted = (", ".join(sorted(names)[:12]) for names in (labels, task.labels))
        raise _unfit(
            name, f"its labels are {has or 'not named'}, the task's {wanted or 'not named'}"
        )


def _unfit(name: str, what: str) -> ModelError:
    return ModelError(
        f"this model does not fit the task: {what}",
        model=name,
        fix="give a model that was trained for this task, with its classes named in id2label of "
        "its config.json, or change [task]",
        field="task",
    )


def examine(site: Site, label: str, loaded: LoadedModel) -> dict[str, Contributions]:
    """Measure a model on the site's test records; return the contribution of each to the counts."""
    from secure_fl.learning.local_training import autocast

    if not site.silo.test:
        raise DataError(
            "there are no test records here, and an evaluation needs them",
            fix="give this site a test split",
            party=site.name,
            split=SPLIT,
        )
    reader = loaded.reader or site.task
    with site.recorder.phase("tokenise"):
        try:
            encoded = reader.encode(site.silo.test, loaded.tokenizer)
        except DataError as error:
            raise error.at(party=site.name, split=SPLIT) from None
    with site.recorder.phase("evaluate"), autocast(site):
        model = loaded.model.to(site.device)
        rows = site.at_once() * site.task.windows // reader.windows
        logits, batches = reader.outcomes(model, encoded, max(1, rows))
    with site.recorder.phase("count"):
        labels = site.task.labels
        logits = [loaded.in_order(z, labels) if labels else z for z in logits]
        site.scores.begin(label, (SPLIT,))
        site.scores.measure(label, SPLIT, 1, (logits, batches), site.silo.test)
        return site.task.rows(logits, batches)


def pulls(
    task: Task, rows: Mapping[str, Contributions], totals: Counts
) -> dict[str, NDArray[np.float64]]:
    """The distance that each record here moves each metric over all records, to first order.

    The variance of a metric is the sum of their squares. For a difference between two models, it is
    the sum of squared differences (Efron's infinitesimal jackknife).
    """
    counted = {name: vector for name, vector in totals.items() if name != SQUARES}
    return {
        metric: np.sum([rows[name].along(slope) for name, slope in by_name.items()], axis=0)
        for metric, by_name in task.slopes(counted).items()
    }


def difference(one: float, other: float, square: float) -> dict[str, Any]:
    """The gain of a metric over another model's, and its 95 % interval."""
    half = Z * float(np.sqrt(max(square, 0.0)))
    apart = other - one
    return {"difference": apart, "interval": [apart - half, apart + half]}
