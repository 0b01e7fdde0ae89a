"""What all algorithms' settings share, and what each must say of itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from secure_fl.algorithms.demands import Demands
from secure_fl.settings import ModelSettings, Positive, Section, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.algorithms.entry import Entry


class Algorithm(Section):
    """The settings of one algorithm; `name` picks it in a settings file."""

    name: str
    rounds: Positive = 5  # exchanges of models
    epochs: Positive = 1  # local passes over the records in each round

    @abstractmethod
    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Say what these settings ask of a site, whatever their fields are called.

        `values`: of all models that it trains; 0 while these are not looked up.
        """

    @abstractmethod
    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the models that a site trains at once, given [model]; the first one travels.

        Together they are held against max_values of a site's policy.
        """

    @classmethod
    def entry(cls) -> Entry | None:
        """Bring what a registry would say, for a class that is in none: see `registry.entry_of`."""
        return None

    @property
    def caveat(self) -> str:
        """What these settings let parties see beyond sums, for the result's statement."""
        return ""

    def releases(self, public: int, batch: int) -> tuple[int, int] | None:
        """How many predictions a sum for the host holds, and how many such sums a run opens.

        Given the number of public records and `training.batch_size`. None: no sum holds
        predictions, so no noise could be sized for them.
        """
        return None
