"""Evaluation without training: models side by side on all hospitals' test records.

found = evaluate(["runs/first", "runs/second/model"], silos)
found.scores["first"]["accuracy"], found.intervals["first"]["accuracy"]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from secure_fl.config.build import Settings
from secure_fl.data.silo import Silo
from secure_fl.display.evaluation_page import models_of, score_table
from secure_fl.display.figures import number
from secure_fl.errors import ModelError, RunError
from secure_fl.events import Listener
from secure_fl.features.evaluation.algorithm import Evaluate, EvaluatedModel
from secure_fl.features.evaluation.examine import labels_of, read
from secure_fl.federation.federation import Federation
from secure_fl.federation.run_spec import feature_sections
from secure_fl.learning.tasks import make_task
from secure_fl.runs.folder import RESULT, write_json
from secure_fl.settings import ProtectionSettings, TaskSettings, TrainingSettings

OUTSIDE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """What models are worth on all hospitals' test records: its document, as in result.json."""

    document: Mapping[str, Any]

    @property
    def models(self) -> dict[str, str]:
        """Where each model lies, by its label."""
        return {one["label"]: one["name"] for one in self.document["evaluation"]["models"]}

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Each model's metrics over all records together."""
        return models_of(self.document, "pooled")

    @property
    def intervals(self) -> dict[str, dict[str, list[float]]]:
        """Their 95 % intervals, where counts tell them."""
        return models_of(self.document, "intervals")

    @property
    def differences(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Of each other model to the first, by metric: `difference` and its paired `interval`."""
        found = self.document["evaluation"].get("compared", ())
        return {one["model"]: one["metrics"] for one in found}

    def to_frame(self) -> Any:
        """A pandas data frame: a line for each model and metric."""
        import pandas

        lines = []
        for label, scores in self.scores.items():
            for metric, value in scores.items():
                low, high = self.intervals[label].get(metric, (None, None))
                lines.append(
                    {"model": label, "metric": metric, "value": value, "low": low, "high": high}
                )
        return pandas.DataFrame(lines)

    def to_json(self) -> dict[str, Any]:
        """The document of result.json."""
        return dict(self.document)

    def save(self, folder: Path | str) -> Path:
        """Write the document into a folder that `Evaluation.load` reads."""
        file = Path(folder) / RESULT
        if file.exists():
            fix = "choose another folder"
            raise RunError("there is a result already", fix=fix, file=file, reason="exists")
        write_json(file, self.document)
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str) -> Evaluation:
        """Read an evaluation's folder, or one of `save`."""
        file = Path(folder) / RESULT
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            fix = "give the folder of an evaluation"
            what = "there is no result to read here"
            raise RunError(what, fix=fix, file=file, reason="missing") from error
        if not document.get("evaluation"):
            fix = "read it by Result.load"
            raise RunError("this is no evaluation", fix=fix, file=file, reason="missing")
        return cls(document)

    def __repr__(self) -> str:
        """In a line."""
        metric = self.document["main_metric"]
        said = ", ".join(f"{k} {number(v.get(metric))}" for k, v in self.scores.items())
        parties = len(self.document["parties"])
        return f"<Evaluation over {parties} hospitals, test {metric}: {said}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<p>{escape(repr(self)[1:-1])}</p>{score_table(self.document)._repr_html_()}"


def evaluate(
    models: Sequence[Path | str],
    silos: Sequence[Silo],
    *,
    task: TaskSettings | None = None,
    training: TrainingSettings | None = None,
    protection: ProtectionSettings | None = None,
    folder: Path | str | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Measure models on all hospitals' test records, by sealed sums, without training.

    `models`: folders of transformers or peft, hub names, or runs' folders. `task`: without labels,
    they are those of the first model. Of `training` only the device and the precision count.
    """
    cfg = Evaluate(models=named(models))
    done = Federation(
        silos,
        cfg,
        task=with_labels(task or TaskSettings(), cfg),
        training=looking(training or TrainingSettings()),
        protection=without_noise(protection or ProtectionSettings()),
        folder=folder,
        progress=progress,
    ).run()
    return Evaluation(done.document)


def evaluate_settings(
    models: Sequence[Path | str], settings: Settings, folder: Path | None, listener: Listener | None
) -> Evaluation:
    """The same over the hospitals of a settings file, by its task and its protection."""
    cfg = Evaluate(models=named(models))
    asked = settings.model_copy(
        update={
            "algorithm": cfg,
            "task": with_labels(settings.task, cfg),
            "training": looking(settings.training),
            "protection": without_noise(settings.protection),
            **dict.fromkeys(feature_sections(settings)),
        }
    )
    return Evaluation(Federation.of(asked, folder, listener=listener).run().document)


def pinned(models: Sequence[Path | str], task: TaskSettings) -> Evaluate:
    """What a pilot's plan names: models with the digests of what lies here."""
    cfg = Evaluate(models=named(models, here=False))
    made = make_task(with_labels(task, cfg))
    each = (one.model_copy(update={"digest": read(one.name, made).digest()}) for one in cfg.models)
    return Evaluate(models=tuple(each))


def named(models: Sequence[Path | str], *, here: bool = True) -> tuple[EvaluatedModel, ...]:
    """Models with short labels: a run's or a folder's name, with a number where two are alike.

    `here`: by their whole paths; for other machines, as they were given.
    """
    found: dict[str, EvaluatedModel] = {}
    for given in models:
        place = Path(given).expanduser()
        where = _to_use(place) if (place / RESULT).is_file() else place
        there = where.is_dir()
        short = where.parent.name if there and where.name == "model" else where.name
        label = OUTSIDE.sub("-", short).strip("-._")[:36] or "model"
        if label in found:
            label = f"{label}-{sum(one.startswith(label) for one in found) + 1}"
        name = str(where.resolve() if here and there else where if there else given)
        found[label] = EvaluatedModel(name=name, label=label)
    return tuple(found.values())


def _to_use(run: Path) -> Path:
    """The shared model of a finished run."""
    use = json.loads((run / RESULT).read_text(encoding="utf-8")).get("use") or "model"
    if not (run / use).is_dir():
        raise ModelError(
            "this run has no shared model",
            model=str(run),
            fix="name the folder of one of its hospitals' own models: RUN/parties/NAME/model",
        )
    return run / use


def with_labels(task: TaskSettings, cfg: Evaluate) -> TaskSettings:
    """The task with its labels, which the first model names where nobody else does."""
    if task.labels is not None or task.kind not in ("classification", "pair", "ner"):
        return task
    found = labels_of(cfg.models[0].name) if cfg.models else None
    return task.model_copy(update={"labels": found})


def looking(training: TrainingSettings) -> TrainingSettings:
    """Of settings of training, what it takes to look at records."""
    return TrainingSettings(device=training.device, precision=training.precision)


def without_noise(protection: ProtectionSettings) -> ProtectionSettings:
    """There are no sums of predictions that noise could be on."""
    return protection.model_copy(update={"noise": None})
