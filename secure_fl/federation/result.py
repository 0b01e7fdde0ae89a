"""The result of a run: its scores, and models that predict, save and load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from secure_fl.data.examples import Example, Text
from secure_fl.display.figures import counted, main_metric, metric_of, number, of_round
from secure_fl.display.result_tables import result_table
from secure_fl.errors import DataError, RunError, SettingsError
from secure_fl.events import metric_name
from secure_fl.runs.folder import RESULT, write_json

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from secure_fl.learning.tasks import Task

MODEL = "model"  # the shared model's name
CARD = "secure_fl.json"  # in each folder that holds a model
Which = Literal["delivered", "last", "best"]


class Entity(TypedDict):
    """A named entity of a text."""

    type: str
    text: str


class Ranked(TypedDict):
    """A title with its score."""

    title: str
    score: float


class Prediction(TypedDict):
    """The prediction of a model for one record; its fields depend on the task.

    No field is marked as not required: type checkers would refuse `predictions[0]["label"]`.
    """

    id: str
    label: str  # classification, pairs
    labels: list[str]  # several labels
    probabilities: dict[str, float]
    score: float  # regression
    entities: list[Entity]
    ranking: list[Ranked]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The document of a run, as in result.json, and its models."""

    document: Mapping[str, Any]
    models: Mapping[str, torch.nn.Module]  # "model", or "PARTY/model" where parties keep their own
    tasks: Mapping[str, Task]  # by model: parties with local heads have their own labels
    tokenizers: Mapping[str, Any]

    @property
    def task(self) -> Task:
        """The task of the shared model, or else of the first party's model."""
        return next(iter(self.tasks.values()))

    @property
    def model(self) -> torch.nn.Module:
        """The shared model; if there are several, the recommended one."""
        return self.models[self._known(MODEL)]

    def mean(self, split: str = "test", which: Which = "delivered") -> Mapping[str, float]:
        """Return the metrics of the delivered, last or best round, averaged over parties."""
        return self._scores(which, "mean", split)

    def pooled(self, split: str = "test", which: Which = "delivered") -> Mapping[str, float]:
        """Return the metrics of the delivered, last or best round, over all parties' records."""
        return self._scores(which, "pooled", split)

    def intervals(
        self, split: str = "test", which: Which = "delivered"
    ) -> Mapping[str, tuple[float, float]]:
        """Return 95 % intervals of the pooled metrics that have them: docs/evaluation.md."""
        return {
            name: (limits[0], limits[1])
            for name, limits in self._scores(which, "intervals", split).items()
        }

    def predict(
        self, texts: Sequence[str], model: str = MODEL, *, pairs: Sequence[str] | None = None
    ) -> list[Prediction]:
        """Predict for texts, or for pairs of texts."""
        _require_texts(texts, pairs)
        seconds: Sequence[str | None] = pairs if pairs is not None else [None] * len(texts)
        both = enumerate(zip(texts, seconds, strict=True))
        return self.predict_records([Text(str(i), text, pair) for i, (text, pair) in both], model)

    def predict_records(self, records: Sequence[Example], model: str = MODEL) -> list[Prediction]:
        """Predict for records of the task's own shape, labelled or not."""
        name = self._known(model)
        predictions: list[Any] = self.tasks[name].predict(
            self.models[name], records, self.tokenizers[name]
        )
        return predictions

    def evaluate(self, records: Sequence[Example], model: str = MODEL) -> dict[str, float]:
        """Measure a model on labelled records, such as your own test set."""
        name = self._known(model)
        task = self.tasks[name]
        return task.evaluate(self.models[name], task.encode(records, self.tokenizers[name]))

    def plot(self, metric: str = "") -> Figure:
        """Draw a metric over rounds, over all records and at each hospital.

        It is a figure of matplotlib: notebooks show it, and `savefig` writes it.
        """
        from secure_fl.display.curves_figure import curves_figure

        name = metric or str(self.document["main_metric"])
        points: dict[str, list[tuple[float, float]]] = {}
        for line in self.document["history"]:
            if name in line and "model" not in line:
                who = "all records" if line.get("pooled") else line["party"]
                curve = points.setdefault(f"{who}, {line['split']}", [])
                if not curve or curve[-1][0] < line["round"]:  # every hospital records the sums
                    curve.append((float(line["round"]), float(line[name])))
        if not points:
            problem = f"no hospital measured {name!r}"
            raise DataError(
                problem, fix="give hospitals dev and test records, or name another metric"
            )
        return curves_figure(points, metric_name(name, self.document.get("scored_class")))

    def to_frame(self) -> Any:
        """Make a pandas data frame of all measurements: party, round, split, pooled, metrics.

        A pooled measurement is over the records of all hospitals; each of them has the same.
        """
        import pandas

        hidden = ("counts",)
        lines = [
            {
                "party": line["party"],
                "round": line["round"],
                "split": line["split"],
                "pooled": False,
            }
            | {name: value for name, value in line.items() if name not in hidden}
            for line in self.document["history"]
        ]
        return pandas.DataFrame(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the document of result.json."""
        return dict(self.document)

    def save(self, folder: Path | str) -> Path:
        """Write the document and every model into a folder that `Result.load` reads."""
        from secure_fl.learning.exporting import export

        folder = Path(folder)
        if (folder / RESULT).exists():
            what, fix = "this folder already holds a result", "choose another folder"
            raise RunError(what, fix=fix, file=folder, reason="exists")
        for name, model in self.models.items():
            party, _, own = name.rpartition("/")
            place = folder / "parties" / party / own if party else folder / own
            export(model, self.tokenizers[name], place, self.tasks[name])
        write_json(folder / RESULT, self.document)
        return folder

    @classmethod
    def load(cls, folder: Path | str, party: str | None = None) -> Result:
        """Read the folder of a finished run or of `save`, with its shared models.

        It also reads the own models of `party`, and those of all hospitals if there is no shared
        one.
        """
        from secure_fl.learning.exporting import load_exported

        folder = Path(folder)
        document = _document(folder / RESULT)
        shared = {place.parent.name: place.parent for place in folder.glob(f"*/{CARD}")}
        own = {
            f"{place.parts[-3]}/{place.parts[-2]}": place.parent
            for place in folder.glob(f"parties/*/*/{CARD}")
            if not shared or place.parts[-3] == party
        }
        read = {name: load_exported(place) for name, place in sorted((shared | own).items())}
        return cls(
            document,
            {name: model for name, (model, _, _) in read.items()},
            {name: task for name, (_, _, task) in read.items()},
            {name: tokenizer for name, (_, tokenizer, _) in read.items()},
        )

    def __repr__(self) -> str:
        """Summarise in one line."""
        d = self.document
        last = of_round(d, "last")
        value = metric_of(d, "delivered", "test")
        score = "nothing measured" if value is None else f"test {main_metric(d)} {number(value)}"
        mode = d["protection"]["mode"]
        return (
            f"<Result of {d['algorithm']} over {len(d['parties'])} hospitals, "
            f"{counted(last.get('round', d['rounds']), 'round')}, protection {mode}: {score}>"
        )

    def _repr_html_(self) -> str:
        """Render for notebooks."""
        table = result_table(self.document)._repr_html_()
        return f"<p>{escape(repr(self)[1:-1])}</p>{table}"

    def _scores(self, which: Which, kind: str, split: str) -> Mapping[str, Any]:
        if which not in (allowed := get_args(Which)):
            fix = f"allowed: {', '.join(allowed)}"
            raise SettingsError(f"there is no round {which!r}", fix=fix)
        by_split = of_round(self.document, which).get(kind, {})
        if split not in by_split:
            known = ", ".join(sorted(by_split)) or "nothing"
            raise DataError(
                f"no hospital measured a model on {split} records; measured: {known}",
                fix=f"give hospitals some: Silo(name, train, dev, test) or Silo.from_files(..., "
                f"{split}=0.2)",
                split=split,
            )
        scores: Mapping[str, Any] = by_split[split]
        return scores

    def _known(self, name: str) -> str:
        if name == MODEL and name not in self.models:
            name = self.document.get("use") or name  # FedKD's student
        if name not in self.models:
            fix = f"name one of {', '.join(self.models)}" if self.models else "train a model first"
            raise RunError(f"there is no model {name!r} in this result", fix=fix, reason="missing")
        return name


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "give the folder of a finished run, or one that Result.save wrote"
        raise RunError(
            "there is no result to read here", fix=fix, file=file, reason="missing"
        ) from error
    return dict(document)


def _require_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> None:
    given: tuple[object, ...] = (*texts, *(pairs or ()))  # a program may pass anything
    others = [value for value in given if not isinstance(value, str)]
    if isinstance(texts, str):
        problem = "one text"
    elif others:
        problem = f"records of the type {type(others[0]).__name__}"
    elif pairs is not None and len(pairs) != len(texts):
        problem = f"{len(texts)} texts, {len(pairs)} pairs"
    else:
        return
    raise DataError(f"found {problem}", fix="give a list of texts, and as many pairs or none")
