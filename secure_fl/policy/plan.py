"""A coordinator's proposal of a training run to a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SerializeAsAny

from secure_fl.algorithms.base import Algorithm
from secure_fl.config.build import RunSettings, Settings, with_feature_sections
from secure_fl.config.data import PartyName
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Entry


class PlanSections(Section):
    """The sections of a plan that belong to no optional feature."""

    run: RunSettings = RunSettings()
    task: TaskSettings = TaskSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    protection: ProtectionSettings = ProtectionSettings()


if TYPE_CHECKING:
    _AllSections = PlanSections
else:
    _AllSections = with_feature_sections(PlanSections)


class Plan(_AllSections):
    """A coordinator's proposal to a site: all of a run but the site's own settings."""

    algorithm: SerializeAsAny[Algorithm]
    dataset: PartyName
    """Name of the records at the site."""

    @classmethod
    def of(cls, settings: Settings, dataset: str) -> Plan:
        """Take a run's settings without its data and its audit policy."""
        shared = {name: getattr(settings, name) for name in cls.model_fields if name != "dataset"}
        return cls(**shared, dataset=dataset)

    @property
    def work(self) -> str:
        """The kind of work: training."""
        return self.algorithm.name

    @property
    def rounds(self) -> int:
        """How often, as it is shown."""
        return self.algorithm.rounds

    @property
    def joinable(self) -> bool:
        """Tell if newcomers can get the run's state: not with tiers, and not if nothing trains."""
        entry = entry_of(self.algorithm.name)
        return entry is None or not (entry.partial_sums or entry.trains_nothing)


def entry_of(name: str) -> Entry | None:
    """Return the entry of an algorithm, if it is installed at this site."""
    from secure_fl.algorithms.registry import ALGORITHMS

    return ALGORITHMS.get(name)
