"""Statistics as a feature: the check of a run's settings, its results, and a site's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from secure_fl.errors import SettingsError
from secure_fl.features.statistics.codebook import OF_LABEL, Codebook
from secure_fl.federation.run_feature import RunFeature, require_hidden_noise
from secure_fl.federation.run_spec import RunSpec
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation, at_least, at_most, listed
from secure_fl.settings import Positive, Section

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.policy.plan import Plan

LEAST_BITS = 8


class StatisticsFeature(RunFeature):
    """The checks of a run that opens a codebook."""

    section = "statistics"

    def check(self, spec: RunSpec) -> None:
        """Refuse settings that a codebook cannot work with."""
        if not isinstance(spec.algorithm, Codebook):
            return
        if spec.protection.bits < LEAST_BITS:
            raise SettingsError(
                f"counts need {LEAST_BITS} bits, and the sums have {spec.protection.bits}",
                fix=f"set protection.bits = {LEAST_BITS}",
                field="protection.bits",
            )
        require_hidden_noise(spec)
        for field, wrong in {
            "training.dp": spec.training.dp is not None,
            "protection.noise": spec.protection.noise is not None,
        }.items():
            if wrong:
                raise SettingsError(
                    "this noise is for training or predictions, and a codebook has neither",
                    fix=f"remove {field}, and set algorithm.epsilon for noise on counts",
                    field=field,
                )

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return the released tables, which are equal at all members."""
        if not isinstance(spec.algorithm, Codebook):
            return {}
        return {self.section: sites[0].findings.get("statistics")}


STATISTICS = StatisticsFeature()


class StatisticsRules(Section):
    """Rules for codebooks over this site's records. Default: none is opened."""

    columns: tuple[str, ...] | None = None
    """Columns that codebooks may use. Default: all but texts and identifiers."""
    min_patients: Positive = 10
    """A codebook hides counts of fewer patients, over all hospitals."""
    records_per_patient: Positive = 1
    """Most records of one patient that a codebook counts."""
    max_tables: Positive = 20
    """Most tables of one codebook."""
    noise_required: bool = False
    """A codebook has epsilon: exact counts are not opened."""
    max_epsilon: Annotated[float, Field(ge=0)] = 1.0
    """Privacy budget of all codebooks with epsilon, ever."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


class StatisticsFields(Section):
    """The section [site.statistics] of a site's policy."""

    statistics: StatisticsRules | None = None


class StatisticsPolicy(SiteRules[StatisticsFields]):
    """The rules of a site about codebooks."""

    fields = StatisticsFields

    def broken(self, policy: StatisticsFields, plan: Plan) -> Iterator[Violation]:
        """Give every rule that a plan's codebook breaks."""
        codebook = plan.algorithm
        if not isinstance(codebook, Codebook):
            return
        if policy.statistics is None:
            fix = "add [site.statistics]"
            yield Violation("site.statistics", "a codebook", "none", fix)
        else:
            yield from broken_rules(policy.statistics, codebook)

    def sentences(self, policy: StatisticsFields) -> Iterator[str]:
        """Describe the rules."""
        rules = policy.statistics
        if rules is None:
            yield "No codebook is opened over the records."
            return
        columns = "all but texts and identifiers" if rules.columns is None else rules.columns
        named = columns if isinstance(columns, str) else ", ".join(columns) or "none"
        yield (
            f"A codebook has at most {rules.max_tables} tables, of these columns: {named}. "
            f"It hides counts of fewer than {rules.min_patients} patients."
        )
        if rules.noise_required:
            yield f"Its counts carry noise, within epsilon {rules.max_epsilon:g} for all codebooks."
        if rules.min_patients < StatisticsRules().min_patients:
            yield f"COUNTS OF {rules.min_patients} PATIENTS MAY BE RELEASED."

    def limits(self, policy: StatisticsFields) -> Mapping[str, Any]:
        """Return the privacy budget of all codebooks."""
        rules = policy.statistics or StatisticsRules()
        return {"max_epsilon": rules.max_epsilon}


def broken_rules(rules: StatisticsRules, codebook: Codebook) -> Iterator[Violation]:
    """Give every rule of a site that a codebook breaks."""
    at = "site.statistics"
    tables = len(codebook.scopes)
    if rules.columns is not None:
        for column in sorted({codebook.column(name) for name in codebook.variables}):
            given = "label" if column.startswith(OF_LABEL) else column
            yield from listed(f"{at}.columns", given, rules.columns)
    yield from at_most(f"{at}.max_tables", tables, rules.max_tables)
    most = rules.records_per_patient
    yield from at_most(f"{at}.records_per_patient", codebook.records_per_patient, most)
    if codebook.epsilon is None:
        yield from at_least(f"{at}.min_patients", codebook.min_patients, rules.min_patients)
        if rules.noise_required:
            fix = f"set epsilon in the codebook, or noise_required = false in [{at}]"
            yield Violation(f"{at}.noise_required", "exact counts", "counts with noise", fix)
    else:
        yield from at_most(f"{at}.max_epsilon", codebook.epsilon, rules.max_epsilon)
        yield from at_most(f"{at}.max_delta", codebook.delta, rules.max_delta)


STATISTICS_RULES = StatisticsPolicy()
