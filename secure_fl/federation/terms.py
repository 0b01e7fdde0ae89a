"""What all parties of a run have in common, but for who they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS, Entry, entry_of
from secure_fl.config.build import plain
from secure_fl.config.toml import write
from secure_fl.errors import SettingsError, nearest
from secure_fl.federation.ground_rules import (
    require_a_look,
    require_adapters,
    require_guardable,
    require_masks,
)
from secure_fl.learning.dp.scope import require_predictions, require_private
from secure_fl.learning.scores import Metric
from secure_fl.settings import (
    GuardSettings,
    ModelSettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)


def algorithm_of(given: object) -> Algorithm:
    """An algorithm by its settings, by their class, or by its name in settings files."""
    if isinstance(given, Algorithm):
        return given
    what = f"found {type(given).__name__}"
    fix = 'give an algorithm, its class or its name, as in FedAvg(rounds=8), FedAvg or "fedavg"'
    if isinstance(given, str):
        if given in ALGORITHMS:
            given = ALGORITHMS[given].settings
        else:
            what, fix = f"there is no algorithm {given!r}", nearest(given, list(ALGORITHMS))
    if isinstance(given, type) and issubclass(given, Algorithm):
        made: Algorithm = given.model_validate({})
        return made
    raise SettingsError(what, fix=fix, field="algorithm")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is trained, how, and under which protection."""

    algorithm: Algorithm
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    protection: ProtectionSettings = field(default_factory=ProtectionSettings)
    seed: int = 0
    metrics: Mapping[str, Metric] = field(
        default_factory=dict
    )  # a program's own, beside the task's
    guard: GuardSettings | None = None

    @property
    def entry(self) -> Entry:
        """The algorithm's program, and what is special about it."""
        return entry_of(self.algorithm)

    def require_sound(self) -> None:
        """Refuse what would seem to protect and does not: noise here, and a host without masks."""
        name, entry = self.algorithm.name, self.entry
        if entry.trains_nothing:
            require_a_look(self.training)
        if self.training.dp is not None:
            require_private(self.task.kind, name, through_fit=entry.dp_covers_all)
        if self.protection.noise is not None:
            require_predictions(name, noised=entry.opens_predictions)
        require_masks(entry, self.protection)
        require_adapters(entry, name, self.model, self.training)
        if self.guard is not None:
            require_guardable(self.algorithm, entry, self.guard)
        if self.training.patience is not None and not self.pools_scores:
            raise SettingsError(
                "rounds can wait for a better score only where scores of all hospitals are summed: "
                "not with a host, with noise on predictions, or where nothing is ever summed",
                fix="remove training.patience, and set training.pooled_scores = true if it is not",
                field="training.patience",
            )

    @property
    def pools_scores(self) -> bool:
        """Whether the parties' dev and test counts are summed at each round's end.

        A host has its own records to measure the central model on, and would learn nothing of sums
        for the parties; and in a run with noise no sum leaves without it.
        """
        alone = self.entry.has_host or self.entry.sums_nothing
        return self.training.pooled_scores and not alone and self.protection.noise is None

    @property
    def passes(self) -> int:
        """How many passes over the records a run can take, with rounds that make up for others."""
        extra = self.guard.most if self.guard is not None and self.guard.again else 0
        return (self.algorithm.rounds + extra) * self.algorithm.epochs

    def describe(self) -> str:
        """Write the settings of a run started from the library, for `resume` to compare."""
        sections: dict[str, Section] = {
            "algorithm": self.algorithm,
            "task": self.task,
            "model": self.model,
            "training": self.training,
            "protection": self.protection,
        }
        if self.guard is not None:
            sections["guard"] = self.guard
        tables = {name: plain(section) for name, section in sections.items()}
        return write({"run": {"seed": self.seed}, **tables}).lstrip()
