"""The specification of a run: the settings that all its parties share, and its arguments' forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import finalize

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS, Entry, entry_of
from secure_fl.config.build import Settings, plain
from secure_fl.config.toml import write
from secure_fl.errors import ModelError, SettingsError, nearest
from secure_fl.features import places
from secure_fl.learning.scores import Metric
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from secure_fl.policy.plan import Plan


def algorithm_of(given: object) -> Algorithm:
    """Return the settings of an algorithm, given as settings, as their class, or by name."""
    if isinstance(given, Algorithm):
        return given
    problem = f"found {type(given).__name__}"
    fix = 'give an algorithm, its class or its name, as in FedAvg(rounds=8), FedAvg or "fedavg"'
    if isinstance(given, str):
        if given in ALGORITHMS:
            given = ALGORITHMS[given].settings
        else:
            problem, fix = f"there is no algorithm {given!r}", nearest(given, list(ALGORITHMS))
    if isinstance(given, type) and issubclass(given, Algorithm):
        defaults: Algorithm = given.model_validate({})
        return defaults
    raise SettingsError(problem, fix=fix, field="algorithm")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The settings of a run that all its parties share."""

    algorithm: Algorithm
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    protection: ProtectionSettings = field(default_factory=ProtectionSettings)
    seed: int = 0
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # in addition to the task's own
    sections: Mapping[str, Section] = field(default_factory=dict)  # of features, by section name

    @classmethod
    def of(cls, settings: Settings | Plan) -> RunSpec:
        """Make the specification of a settings file, or of a coordinator's plan."""
        return cls(
            settings.algorithm,
            settings.task,
            settings.model,
            settings.training,
            settings.protection,
            settings.run.seed,
            sections=feature_sections(settings),
        )

    @property
    def entry(self) -> Entry:
        """The registry's entry of the algorithm."""
        return entry_of(self.algorithm)

    def describe(self) -> str:
        """Write the settings as TOML; `resume` compares them with those of the run's folder."""
        sections: dict[str, Section] = {
            "algorithm": self.algorithm,
            "task": self.task,
            "model": self.model,
            "training": self.training,
            "protection": self.protection,
            **self.sections,
        }
        tables = {name: plain(section) for name, section in sections.items()}
        return write({"run": {"seed": self.seed}, **tables}).lstrip()


def feature_sections(settings: object) -> dict[str, Section]:
    """Collect the sections of features that these settings or this plan have, by name."""
    found = {name: getattr(settings, name, None) for name in places("settings")}
    return {name: section for name, section in found.items() if isinstance(section, Section)}


S = TypeVar("S", bound=Section)
Model: TypeAlias = "ModelSettings | Mapping[str, Any] | str | Path | PreTrainedModel"


def section_of(cls: type[S], given: object, name: str) -> S:
    """Return the settings of an argument, which may be a dictionary; None: the defaults."""
    if isinstance(given, cls):
        return given
    if given is None or isinstance(given, Mapping):
        return cls(**(given or {}))
    what = f"found {type(given).__name__}"
    fix = f"give {cls.__name__}(...), or a dictionary of its fields"
    raise SettingsError(what, fix=fix, field=name)


def model_of(given: object, owner: object) -> ModelSettings:
    """Return the settings of a model.

    A model in memory is saved into a temporary folder, which is removed with its `owner`.
    """
    if isinstance(given, str | Path):
        return ModelSettings(name=str(given))
    if hasattr(given, "save_pretrained") and hasattr(given, "config"):
        folder = mkdtemp(prefix="secure-fl-model-")
        finalize(owner, rmtree, folder, ignore_errors=True)
        return ModelSettings(name=_saved(given, Path(folder)))
    if given is None or isinstance(given, ModelSettings | Mapping):
        return section_of(ModelSettings, given, "model")
    what = f"found {type(given).__name__}"
    fix = "give a name or folder, a transformers model, or ModelSettings(name=..., layers=...)"
    raise SettingsError(what, fix=fix, field="model")


def _saved(model: Any, folder: Path) -> str:
    """Save a model with the tokenizer of the checkpoint that it was loaded from."""
    from transformers import AutoTokenizer

    from secure_fl.learning.fetching import quiet

    source = str(getattr(model, "name_or_path", ""))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        what = "the tokenizer of this model was not found"
        fix = "save model and tokenizer into one folder by save_pretrained, and give the folder"
        raise ModelError(what, model=source or type(model).__name__, fix=fix) from error
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
