"""The specification of a run: the settings that all its parties share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS, Entry, entry_of
from secure_fl.config.build import Settings, plain
from secure_fl.config.toml import write
from secure_fl.errors import SettingsError
from secure_fl.faults import nearest
from secure_fl.features import FEATURES
from secure_fl.federation.run_feature import run_features
from secure_fl.federation.validation import require_adapters, require_masks
from secure_fl.learning.dp.scope import require_predictions, require_private
from secure_fl.learning.scores import Metric
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)


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
    def of(cls, settings: Settings) -> RunSpec:
        """Make the specification of a settings file."""
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

    def check(self) -> None:
        """Refuse settings that contradict each other, or that would only seem to protect."""
        name, entry = self.algorithm.name, self.entry
        if unknown := self.sections.keys() - FEATURES.keys():
            raise SettingsError(
                f"this installation has no feature for [{min(unknown)}]",
                fix="remove the section, or install a version with the feature",
                field=min(unknown),
            )
        if self.training.dp is not None and not entry.trains_nothing:
            require_private(self.task.kind, name, through_fit=entry.dp_covers_all)
        if self.protection.noise is not None:
            require_predictions(name, noised=entry.opens_predictions)
        require_masks(entry, self.protection)
        require_adapters(entry, name, self.model, self.training)
        for feature in run_features():
            feature.check(self)

    def check_members(self, parties: int, min_cohort: int) -> None:
        """Refuse a number of parties that a feature of the run cannot work with."""
        for feature in run_features():
            feature.check_members(self, parties, min_cohort)

    @property
    def passes(self) -> int:
        """The largest number of passes over the records, with all rounds that features may add."""
        extra = sum(feature.extra_rounds(self) for feature in run_features())
        return (self.algorithm.rounds + extra) * self.algorithm.epochs

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
    found = {name: getattr(settings, name, None) for name in FEATURES}
    return {name: section for name, section in found.items() if isinstance(section, Section)}
