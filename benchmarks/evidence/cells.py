"""A cell of a table: one method on one data set with one seed, run as a real federation."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from benchmarks import collection, datasets
from benchmarks.checkpoint import Checkpoint
from benchmarks.collection import PARTS, SETS
from benchmarks.datasets import Spread
from benchmarks.evidence.controls import Control, mean_scores, who_trains
from benchmarks.evidence.leakage import leakage
from benchmarks.evidence.one_class import answers
from benchmarks.evidence.recorded import recorded
from benchmarks.evidence.sketch import sketch
from benchmarks.evidence.spectra import spectra
from benchmarks.report import processor
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.algorithms.settings import PersonalDistillation
from secure_fl.errors import SettingsError
from secure_fl.federation.federation import Federation
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)

Plain = Mapping[str, Any]
Outcome = dict[str, Any]

SCHEMA = "secure-fl/cell/1"
_SECTIONS: Mapping[str, type[Section]] = {
    "model": ModelSettings,
    "training": TrainingSettings,
    "protection": ProtectionSettings,
}


@dataclass(frozen=True, slots=True)
class Place:
    """What a cell needs of the machine it runs on."""

    data: Path | None
    model: Checkpoint


@dataclass(frozen=True, slots=True)
class Cell:
    """One run; settings are plain, as in a settings file, and checked before anything is run."""

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
    mark: str = ""  # what must stand beside the figures wherever they are shown
    depths: tuple[int, ...] = ()  # of each party's own model, where they differ
    audited: bool = False  # of a first round, what each role could find out is measured, too
    control: Control = ""  # what stands beside distillation, with records spread in the same way
    decomposed: bool = False  # every round's mean update is taken apart into singular values

    @property
    def title(self) -> str:
        """The cell in a line."""
        parts = (self.group, self.data, self.method, f"seed {self.seed}")
        return " · ".join(part for part in parts if part)


def sections(cell: Cell, model: Checkpoint) -> tuple[Algorithm, dict[str, Section]]:
    """The cell's settings with all defaults; what is wrong with them is an error."""
    name = str(cell.algorithm.get("name"))
    if name not in ALGORITHMS:
        fix = f"there are {', '.join(ALGORITHMS)}; leave it out with --only"
        raise SettingsError(f"there is no algorithm {name!r}", fix=fix, cell=cell.title)
    about = SETS[cell.spread.sets[0]]
    labels, positive, length = about.labels, about.positive, cell.max_length
    task = TaskSettings(kind=about.kind, labels=labels, positive=positive, max_length=length)
    found: dict[str, Section] = {"task": task}
    try:
        algorithm = ALGORITHMS[name].settings.model_validate(cell.algorithm)
        for section, cls in _SECTIONS.items():
            given = dict(getattr(cell, section))
            given = {"name": model.name} | given if section == "model" else given
            found[section] = cls.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        fix = "correct the table's definition"
        raise SettingsError(wrong["msg"], fix=fix, cell=cell.title, field=where) from None
    return algorithm, found


def key_of(cell: Cell, place: Place) -> str:
    """A digest of everything that the cell's figures depend on."""
    algorithm, found = sections(cell, place.model)
    everything = {
        "schema": SCHEMA,
        "seed": cell.seed,
        "spread": asdict(cell.spread),
        "depths": cell.depths,
        "files": [collection.sizes(name, place.data) for name in cell.spread.reads],
        "algorithm": algorithm.model_dump(mode="json"),
        **_plain(found, place.model),
    }
    # Finished cells were measured when these could be chosen, and their keys name what was.
    everything["protection"] |= {"host_sums": "masks"}
    if algorithm.name == "inclusivefl":
        everything["algorithm"] |= {"mix": "tiers"}
    if everything["algorithm"].get("scaler") == "training":
        everything["algorithm"].pop("scaler")
    if isinstance(algorithm, PersonalDistillation) and algorithm.exchanging == algorithm.rounds:
        everything["algorithm"].pop("alone")
    if not everything["algorithm"].get("tied", True):
        everything["algorithm"].pop("tied")
    if everything["task"].get("score_range", ...) is None:
        everything["task"].pop("score_range")
    if not cell.spread.each_tier:
        everything["spread"].pop("each_tier")
    if not cell.spread.mislabels:
        everything["spread"].pop("mislabels")
    flags = ("audited", "control", "decomposed")
    everything |= {name: getattr(cell, name) for name in flags if getattr(cell, name)}
    text = json.dumps(everything, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def about(cell: Cell) -> dict[str, Any]:
    """What an outcome says of its cell, beside the settings: defaults of the spread left out."""
    defaults = {f.name: f.default for f in fields(Spread) if f.default is not MISSING}
    spread = asdict(cell.spread)
    own = {k: v for k, v in spread.items() if k not in defaults or v != defaults[k]}
    found: dict[str, Any] = json.loads(json.dumps({"spread": own, "depths": cell.depths}))
    return {"seed": cell.seed, **found, **({"control": cell.control} if cell.control else {})}


def run(cell: Cell, place: Place) -> Outcome:
    """Run a cell and keep of its result what tables are made of."""
    import torch

    algorithm, found = sections(cell, place.model)
    silos = datasets.silos(cell.spread, place.data, cell.seed)
    for at, depth in enumerate(cell.depths):
        own = found["model"].model_copy(update={"layers": depth})
        silos[at] = replace(silos[at], model=cast(ModelSettings, own))
    started, spent = time.perf_counter(), time.process_time()
    options: dict[str, Any] = dict(found)
    extra: Outcome = {}
    if cell.decomposed:
        with recorded(silos, algorithm, found, cell.seed) as (result, audit):
            extra["spectra"] = spectra(audit, algorithm.rounds)
    else:
        members = who_trains(cell.control, silos)
        result = Federation(members, algorithm, seed=cell.seed, **options).run()
    if cell.audited:
        extra["leakage"] = leakage(silos, algorithm, found, cell.seed)
    document = result.document
    metrics = document["metrics"]
    if cell.control == "mean prediction":
        metrics = mean_scores(result, silos[-1])
    return {
        "schema": SCHEMA,
        "title": cell.title,
        **about(cell),
        "metric": SETS[cell.spread.sets[0]].metric,
        "parties": {silo.name: silo.tier for silo in silos},
        "records": {part: sum(len(getattr(s, part)) for s in silos) for part in PARTS},
        "values": max((_values(model) for model in result.models.values()), default=0),
        "sketch": sketch(result.models),
        "rounds": document["rounds"],
        "metrics": metrics,
        "answers": answers(document),
        "bytes": document["bytes"],
        **extra,
        "privacy_share": document["seconds"]["privacy_share"],
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - spent,
        "caveat": algorithm.caveat,
        "algorithm": document["algorithm_settings"],
        "protection": document["protection"],
        "settings": _plain(found, place.model),
        "machine": {
            "processor": processor(),
            "torch_threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": document["versions"],
    }


def _plain(found: Mapping[str, Section], model: Checkpoint) -> dict[str, Any]:
    """Settings as JSON holds them; the model goes by its weights: folders differ by machine."""
    plain = {name: section.model_dump(mode="json") for name, section in found.items()}
    if plain["model"]["name"] == model.name:
        plain["model"]["name"] = model.identity
    return plain


def _values(model: Any) -> int:
    """How many values of a model are trained, and so would be sent whole."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)
