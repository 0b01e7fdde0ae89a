"""A cell of a table: one method on one data set with one seed, run as a real federation.

A control of the distillation tables has the records, seeds and passes of the methods that it
controls. In "host alone" the host trains on its labelled records. In "mean prediction" hospitals
train alone, and the mean of their predictions is scored on the host's records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias, cast

import torch
from pydantic import ValidationError

from benchmarks import datasets
from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.collection import PARTS, SETS
from benchmarks.datasets import Spread
from benchmarks.evidence.one_class import answers
from benchmarks.report import processor
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.errors import SettingsError
from secure_fl.features import load
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.learning.site import AT_ONCE
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)

Control: TypeAlias = Literal["", "host alone", "mean prediction"]
Plain = Mapping[str, Any]
Outcome = dict[str, Any]

SCHEMA = "secure-fl/cell/1"
ANY_MODEL = Checkpoint(BUILT_IN, BUILT_IN)  # for a table's cells, which do not name a checkpoint
_SECTIONS: Mapping[str, type[Section]] = {
    "model": ModelSettings,
    "training": TrainingSettings,
    "protection": ProtectionSettings,
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data folder and the checkpoint of this machine."""

    data: Path | None
    model: Checkpoint


@dataclass(frozen=True, slots=True)
class Cell:
    """Definition of one run; settings are plain, as in a settings file."""

    data: str  # the title of the rows
    method: str
    seed: int
    spread: Spread
    algorithm: Plain
    model: Plain = field(default_factory=dict)
    training: Plain = field(default_factory=dict)
    protection: Plain = field(default_factory=dict)
    max_length: int = 128
    group: str = ""  # cells of one group are compared with one another
    note: str = ""  # printed below every table that shows the cell
    depths: tuple[int, ...] = ()  # of each party's own model, where they differ
    control: Control = ""
    features: Plain = field(default_factory=dict)  # sections of optional features, by name

    @property
    def title(self) -> str:
        """The cell in one line."""
        parts = (self.group, self.data, self.method, f"seed {self.seed}")
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Request:
    """The settings that a cell asks for: all of them, and those that differ from the defaults."""

    every: Plain
    named: Plain

    def fits(self, outcome: Plain) -> bool:
        """Return True if an outcome was measured with these settings.

        An outcome may lack settings that were introduced later, unless the cell names them.
        """
        return _fits(outcome, self.every, self.named)


def sections(cell: Cell, model: Checkpoint) -> tuple[Algorithm, dict[str, Section]]:
    """Complete and check the cell's settings."""
    name = str(cell.algorithm.get("name"))
    if name not in ALGORITHMS:
        fix = f"known algorithms are {', '.join(ALGORITHMS)}; skip this cell with --only"
        raise SettingsError(f"there is no algorithm {name!r}", fix=fix, cell=cell.title)
    about = SETS[cell.spread.sets[0]]
    labels, positive, length = about.labels, about.positive, cell.max_length
    task = TaskSettings(kind=about.kind, labels=labels, positive=positive, max_length=length)
    checked: dict[str, Section] = {"task": task}
    try:
        algorithm = ALGORITHMS[name].settings.model_validate(cell.algorithm)
        for section, cls in _SECTIONS.items():
            given = dict(getattr(cell, section))
            given = {"name": model.name} | given if section == "model" else given
            checked[section] = cls.model_validate(given)
        for section, given in cell.features.items():
            checked[section] = load("settings")[section].model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        fix = "correct the table's definition"
        raise SettingsError(wrong["msg"], fix=fix, cell=cell.title, field=where) from None
    return algorithm, checked


def request(cell: Cell) -> Request:
    """Collect the settings of a cell, without the checkpoint unless the cell names one."""
    algorithm, checked = sections(cell, ANY_MODEL)

    def dump(only_named: bool) -> dict[str, Any]:
        found = {
            **_identity(cell),
            "algorithm": algorithm.model_dump(mode="json", exclude_defaults=only_named),
            "settings": {
                name: section.model_dump(mode="json", exclude_defaults=only_named)
                for name, section in checked.items()
            },
        }
        if "name" not in cell.model:
            found["settings"]["model"].pop("name", None)
        return found

    every = dump(False) | {"spread": asdict(cell.spread)}
    return Request(json.loads(json.dumps(every)), dump(True))


def model_of(outcome: Outcome) -> str:
    """Return the checkpoint that an outcome was measured with."""
    return str(outcome["settings"]["model"]["name"])


def run(cell: Cell, inputs: Inputs) -> Outcome:
    """Run a cell and collect the results that tables read."""
    algorithm, checked = sections(cell, inputs.model)
    silos = datasets.silos(cell.spread, inputs.data, cell.seed)
    for at, depth in enumerate(cell.depths):
        model = checked["model"].model_copy(update={"layers": depth})
        silos[at] = replace(silos[at], model=cast(ModelSettings, model))
    started, spent = time.perf_counter(), time.process_time()
    options: dict[str, Any] = {name: checked[name] for name in ("task", *_SECTIONS)}
    options["sections"] = {name: checked[name] for name in cell.features}
    members = members_of(cell.control, silos)
    result = Federation(members, algorithm, seed=cell.seed, **options).run()
    document = result.document
    metrics = document["metrics"]
    if cell.control == "mean prediction":
        metrics = mean_scores(result, silos[-1])
    if document.get("personal"):
        metrics = with_own_models(metrics, document["personal"])
    settings = {name: section.model_dump(mode="json") for name, section in checked.items()}
    if settings["model"]["name"] == inputs.model.name:
        settings["model"]["name"] = inputs.model.identity  # folders differ by machine
    return {
        "schema": SCHEMA,
        "title": cell.title,
        **_identity(cell),
        "metric": SETS[cell.spread.sets[0]].metric,
        "parties": {silo.name: silo.tier for silo in silos},
        "records": {part: sum(len(getattr(s, part)) for s in silos) for part in PARTS},
        "values": max((_values(model) for model in result.models.values()), default=0),
        "rounds": document["rounds"],
        "metrics": metrics,
        "answers": answers(document),
        "bytes": document["bytes"],
        "privacy_share": document["seconds"]["privacy_share"],
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - spent,
        "caveat": algorithm.caveat,
        "algorithm": document["algorithm_settings"],
        "protection": document["protection"],
        "settings": settings,
        "machine": {
            "processor": processor(),
            "torch_threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": document["versions"],
    }


def _identity(cell: Cell) -> dict[str, Any]:
    """Describe a cell beyond its settings; a spread without its defaults."""
    defaults = {f.name: f.default for f in fields(Spread) if f.default is not MISSING}
    spread = asdict(cell.spread)
    named = {k: v for k, v in spread.items() if k not in defaults or v != defaults[k]}
    found = {"seed": cell.seed, "spread": named, "depths": cell.depths, "control": cell.control}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _values(model: Any) -> int:
    """Count the trained values of a model."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def _fits(found: Any, every: Any, named: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(every, dict):
        return bool(found == every)
    if any(name not in found for name in named):
        return False
    return all(
        _fits(value, every[name], named.get(name, {}))
        for name, value in found.items()
        if name in every
    )


BELOW = "below"  # 1 at a hospital where a model is significantly below training alone
SPLITS = ("dev", "test")
MODELS = {"": "model", "personal": "personal", "alone": "alone"}  # a row's model -> the run's
SERVED = "served"
NAMES = {"model": "shared"}  # of models, in differences

Scores = dict[str, dict[str, float]]  # "model/split" -> metric -> value


def with_own_models(metrics: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Add each hospital's own models, and whether a model is below training alone, to scores."""
    added = {name: scores_of(own) for name, own in section["party"].items() if own["dev"]}
    mean = {
        place: {name: fmean(own[place][name] for own in added.values() if place in own)
                for name in next(own[place] for own in added.values() if place in own)}
        for place in dict.fromkeys(place for own in added.values() for place in own)
    }  # fmt: skip
    return {
        which: {
            **one,
            "party": {
                name: _merged(own, added.get(name, {})) for name, own in one["party"].items()
            },
            "mean": _merged(one["mean"], mean),
        }
        for which, one in metrics.items()
    }


def scores_of(own: Mapping[str, Any]) -> Scores:
    """List one hospital's scores by model and split; `served` is the model that it uses."""
    found: Scores = {}
    for split in SPLITS:
        scores, apart = own[split], own["differences"].get(split, {})
        for row, model in {**MODELS, SERVED: own["use"]}.items() if scores else ():
            if model not in scores:
                continue
            difference = apart.get(f"{NAMES.get(model, model)} - alone")
            below = difference is not None and difference["interval"][1] < 0
            place = f"{row}/{split}" if row else split
            found[place] = {own["metric"]: scores[model], BELOW: float(below)}
    return found


def _merged(scores: Mapping[str, Any], added: Scores) -> dict[str, Any]:
    return {
        place: {**scores.get(place, {}), **added.get(place, {})} for place in {**scores, **added}
    }


def members_of(control: Control, silos: Sequence[Silo]) -> list[Silo]:
    """Return the members of a control's run; the host is the last of all members."""
    if control == "host alone":
        return [replace(silos[-1], role="party")]
    return list(silos[:-1] if control == "mean prediction" else silos)


def mean_scores(result: Result, host: Silo) -> dict[str, Any]:
    """Score the hospitals' mean prediction on the host's dev and test records, once, at the end."""
    found = {
        split: _scores(result, examples)
        for split, examples in (("dev", host.dev), ("test", host.test))
        if examples
    }
    at = {"round": result.document["rounds"], "mean": found, "party": {host.name: found}}
    return {"last": at, "best": at}


def _scores(result: Result, examples: Sequence[Example]) -> dict[str, float]:
    """Score the mean of all models' class probabilities, by the logs of that mean."""
    task, predictions = result.task, []
    for name, model in result.models.items():
        encoded = result.tasks[name].encode(examples, result.tokenizers[name])
        logits, batches = result.tasks[name].outcomes(model, encoded, AT_ONCE)
        predictions.append([z.softmax(-1) for z in logits])
    means = [torch.stack(shares).mean(0).log() for shares in zip(*predictions, strict=True)]
    pairs = zip(means, batches, strict=True)
    losses = [task.loss(z, batch, reduction="none") for z, batch in pairs]
    return task.score(means, batches) | {"loss": float(torch.cat(losses).mean())}
