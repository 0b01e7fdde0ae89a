"""The interface of optional features that take part in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.errors import SettingsError
from secure_fl.features import load
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook
from secure_fl.settings import ModelSettings

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.learning.site import Site
    from secure_fl.party.cohort import Cohort


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """Limits that a site's own policy sets, whatever the run asks for."""

    max_batch: int | None = None  # records in memory at once; None: as the algorithm asks
    options: Mapping[str, Any] = field(default_factory=dict)  # of optional features, by name
    ledger: Callable[[], Ledger] | None = None  # the site's own, for all runs
    own_epsilon: float | None = None  # of one run; None: the plan's target


class RunFeature:
    """Base class of features; every method adds nothing, and a feature overrides some of them."""

    section = ""  # its section of result.json, None there in runs without it

    def check(self, spec: RunSpec) -> None:
        """Refuse settings that the feature cannot work with."""

    def check_members(self, spec: RunSpec, parties: int, min_cohort: int) -> None:
        """Refuse a number of parties that the feature cannot work with."""

    def check_model(self, spec: RunSpec, model: ModelSettings) -> None:
        """Refuse a party's model that the feature cannot work with."""

    def stops_early(self, spec: RunSpec) -> bool:
        """Return true if the feature ends the run when `training.patience` is over."""
        return False

    def extra_rounds(self, spec: RunSpec) -> int:
        """Return how many rounds the feature may add to the run."""
        return 0

    def statement(self, spec: RunSpec, rules: CoordinatorRules, parties: int) -> str:
        """Return a sentence about what sums reveal because of the feature, or nothing."""
        return ""

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the hook of one party, or None if the run does not use the feature."""
        return None

    async def after_rounds(self, spec: RunSpec, cohort: Cohort, site: Site) -> None:
        """Act at one party after the last round, when the program has delivered its models.

        Sums are possible. A resumed run whose last round is saved comes here again.
        """

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return sections of result.json, given the sites whose results it holds."""
        return {}

    def finish(self, folder: Path) -> None:
        """Add files to the folder of a finished run."""


def run_features() -> tuple[RunFeature, ...]:
    """Load the features that take part in runs, in the table's order."""
    return tuple(load("run").values())


def finish_run(folder: Path) -> None:
    """Let each feature add its files to the folder of a finished run."""
    for feature in run_features():
        feature.finish(folder)


def rounds_of(spec: RunSpec) -> int:
    """Return the largest number of rounds, with those that features may add."""
    return spec.algorithm.rounds + sum(f.extra_rounds(spec) for f in run_features())


def passes_of(spec: RunSpec) -> int:
    """Return the largest number of passes over the records of a run."""
    return rounds_of(spec) * spec.algorithm.epochs


def require_hidden_noise(spec: RunSpec) -> None:
    """Refuse noise of `algorithm.epsilon` whose shares the coordinator would see."""
    if getattr(spec.algorithm, "epsilon", None) is not None and spec.protection.mode == "none":
        raise SettingsError(
            "noise needs a mode that hides what each hospital sends: with none, the coordinator "
            "would see each hospital's counts with a share of the noise only",
            fix='set protection.mode = "he+secagg", or remove algorithm.epsilon',
            field="algorithm.epsilon",
        )
