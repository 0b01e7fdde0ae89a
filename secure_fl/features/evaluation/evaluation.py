"""Evaluation without training: a comparison of models on all hospitals' test records.

evaluation = evaluate(["runs/first", "runs/second/model"], silos)
evaluation.scores["first"]["accuracy"], evaluation.intervals["first"]["accuracy"]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl.config.build import Settings
from secure_fl.data.silo import Silo
from secure_fl.display.figures import main_metric, number
from secure_fl.errors import ModelError, RunError
from secure_fl.events import Listener
from secure_fl.features.evaluation.algorithm import Evaluate, EvaluatedModel
from secure_fl.features.evaluation.examine import labels_of, read
from secure_fl.features.evaluation.page import models_of, score_table
from secure_fl.federation.federation import Federation
from secure_fl.federation.run_spec import feature_sections
from secure_fl.learning.tasks import make_task
from secure_fl.runs.folder import RESULT, write_json
from secure_fl.settings import LABELLED, ProtectionSettings, TaskSettings, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan

OUTSIDE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """Scores of models on all hospitals' test records, with the document of result.json."""

    document: Mapping[str, Any]

    @property
    def models(self) -> dict[str, str]:
        """The folder or hub name of each model, by its label."""
        return {model["label"]: model["name"] for model in self.document["evaluation"]["models"]}

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The metrics of each model over all records."""
        return models_of(self.document, "pooled")

    @property
    def intervals(self) -> dict[str, dict[str, list[float]]]:
        """The 95 % intervals of the metrics that follow from counts."""
        return models_of(self.document, "intervals")

    @property
    def differences(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The `difference` of each model from the first, with its paired `interval`, by metric."""
        compared = self.document["evaluation"].get("compared", ())
        return {model["model"]: model["metrics"] for model in compared}

    def to_frame(self) -> Any:
        """Make a pandas data frame with a line for each model and metric."""
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
        """Return the document of result.json."""
        return dict(self.document)

    def save(self, folder: Path | str) -> Path:
        """Write the document into a folder that `Evaluation.load` reads."""
        file = Path(folder) / RESULT
        if file.exists():
            fix = "choose another folder"
            raise RunError(
                "this folder already holds a result", fix=fix, file=file, reason="exists"
            )
        write_json(file, self.document)
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str) -> Evaluation:
        """Read the folder of an evaluation or of `save`."""
        file = Path(folder) / RESULT
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            fix = "give the folder of an evaluation"
            problem = "there is no result to read here"
            raise RunError(problem, fix=fix, file=file, reason="missing") from error
        if not document.get("evaluation"):
            fix = "read it by Result.load"
            raise RunError("this result is not an evaluation", fix=fix, file=file, reason="missing")
        return cls(document)

    def __repr__(self) -> str:
        """Summarise in one line."""
        metric = self.document["main_metric"]
        scores = ", ".join(f"{k} {number(v.get(metric))}" for k, v in self.scores.items())
        parties = len(self.document["parties"])
        return f"<Evaluation over {parties} hospitals, test {main_metric(self.document)}: {scores}>"

    def _repr_html_(self) -> str:
        """Render for notebooks."""
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
    epsilon: float | None = None,
) -> Evaluation:
    """Measure models on all hospitals' test records, by sealed sums, without training.

    `models`: folders of transformers or peft, hub names, or folders of runs. `task`: its labels
    default to those of the first model. `training`: only its device and precision are used.
    `epsilon`: privacy loss per test record, by noise on the scores; None: exact scores.
    """
    cfg = Evaluate(models=named(models), epsilon=epsilon)
    given = task or TaskSettings(), training or TrainingSettings()
    sections = _sections(cfg, *given, protection or ProtectionSettings())
    done = Federation(silos, **sections, folder=folder, progress=progress).run()
    return Evaluation(done.document)


def evaluate_settings(
    models: Sequence[Path | str],
    settings: Settings,
    folder: Path | None,
    listener: Listener | None,
    *,
    epsilon: float | None = None,
) -> Evaluation:
    """Measure models on the hospitals of a settings file, with its task and its protection."""
    cfg = Evaluate(models=named(models), epsilon=epsilon)
    changed = settings.model_copy(update=evaluating(settings, cfg))
    return Evaluation(Federation.of(changed, folder, listener=listener).run().document)


def evaluating(settings: Settings | Plan, cfg: Evaluate) -> dict[str, Any]:
    """Return the sections that change when a study or a plan becomes an evaluation."""
    sections = _sections(cfg, settings.task, settings.training, settings.protection)
    return sections | dict.fromkeys(feature_sections(settings))


def _sections(
    cfg: Evaluate, task: TaskSettings, training: TrainingSettings, protection: ProtectionSettings
) -> dict[str, Any]:
    """Keep what an evaluation uses, such as the device, and no noise on predictions."""
    return {
        "algorithm": cfg,
        "task": with_labels(task, cfg),
        "training": TrainingSettings(device=training.device, precision=training.precision),
        "protection": protection.model_copy(update={"noise": None}),
    }


def pinned(models: Sequence[Path | str], task: TaskSettings) -> Evaluate:
    """Name models for a pilot's plan, with the digests of the models on this machine."""
    cfg = Evaluate(models=named(models, here=False))
    made = make_task(with_labels(task, cfg))
    with_digests = (
        model.model_copy(update={"digest": read(model.name, made).digest()}) for model in cfg.models
    )
    return Evaluate(models=tuple(with_digests))


def named(models: Sequence[Path | str], *, here: bool = True) -> tuple[EvaluatedModel, ...]:
    """Name models by short labels: the run or folder, with a number if two are equal.

    `here`: name them by absolute paths; for other machines, names stay as they were given.
    """
    by_label: dict[str, EvaluatedModel] = {}
    for given in models:
        place = Path(given).expanduser()
        where = _to_use(place) if (place / RESULT).is_file() else place
        there = where.is_dir()
        short = where.parent.name if there and where.name == "model" else where.name
        label = first = OUTSIDE.sub("-", short).strip("-._")[:36] or "model"
        count = 2
        while label in by_label:
            label, count = f"{first}-{count}", count + 1
        name = str(where.resolve() if here and there else where if there else given)
        by_label[label] = EvaluatedModel(name=name, label=label)
    return tuple(by_label.values())


def _to_use(run: Path) -> Path:
    """Return the shared model of a finished run."""
    use = json.loads((run / RESULT).read_text(encoding="utf-8")).get("use") or "model"
    if not (run / use).is_dir():
        raise ModelError(
            "this run has no shared model",
            model=str(run),
            fix="name the folder of one of its hospitals' own models: RUN/parties/NAME/model",
        )
    return run / use


def with_labels(task: TaskSettings, cfg: Evaluate) -> TaskSettings:
    """Return the task with its labels, by default those of the first model."""
    if task.labels is not None or task.kind not in LABELLED:
        return task
    labels = labels_of(cfg.models[0].name) if cfg.models else None
    return task.model_copy(update={"labels": labels})
