"""Questions about hospitals' records, asked instead of training, and the permission to ask them.

What a single question may be is looked at when it is asked (`statistics.rules`): one that a site
refuses does not end the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from secure_fl.config.build import RunSettings
from secure_fl.config.data import PartyName
from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import RUN_NAME, Company, sums_broken, when_broken, who_broken
from secure_fl.policy.violations import PolicyRefusal, Violation, listed
from secure_fl.settings import ProtectionSettings, Section
from secure_fl.statistics.questions import KINDS, Question

if TYPE_CHECKING:
    from secure_fl.policy.policy_file import SitePolicy

MOST = 100_000  # characters of all questions


class QuestionPlan(Section):
    """Questions about one set of records at every site."""

    run: RunSettings = RunSettings()
    protection: ProtectionSettings = ProtectionSettings()
    dataset: PartyName
    """Name of the records at each site."""
    questions: Annotated[str, Field(min_length=2, max_length=MOST)]
    """JSON, as one text in a plan."""

    @classmethod
    def of(cls, asked: tuple[Question, ...], **fields: object) -> QuestionPlan:
        """Take questions that were read."""
        text = json.dumps([one.model_dump(mode="json") for one in asked])
        return cls.model_validate({**fields, "questions": text})

    @property
    def asked(self) -> tuple[Question, ...]:
        """The questions, checked again: they came over a wire."""
        return tuple(
            KINDS[one["kind"]].model_validate_json(json.dumps(one))
            for one in json.loads(self.questions)
        )

    @property
    def work(self) -> str:
        """The kind of work: questions."""
        return "statistics"

    @property
    def rounds(self) -> int:
        """None: it is asked once."""
        return 0

    @property
    def joinable(self) -> bool:
        """Nobody can come in between: answers are over those who were there at the beginning."""
        return False


Proposal: TypeAlias = Plan | QuestionPlan


def check_questions(
    policy: SitePolicy, plan: QuestionPlan, company: Company, *, today: date | None = None
) -> None:
    """Raise PolicyRefusal with every rule of the site that the asking breaks."""
    broken = tuple(_broken(policy, plan, company, today or datetime.now(UTC).date()))
    if broken:
        raise PolicyRefusal(broken, party=company.me)


def _broken(
    policy: SitePolicy, plan: QuestionPlan, company: Company, today: date
) -> Iterator[Violation]:
    yield from when_broken(policy, today)
    yield from who_broken(policy, company)
    yield from listed("site.datasets", plan.dataset, policy.datasets)
    yield from sums_broken(policy, plan.protection, company)
    if policy.statistics is None:
        fix = "add [site.statistics]"
        yield Violation("site.statistics", "questions about records", "none", fix)
    if plan.run.folder is not None or RUN_NAME.fullmatch(plan.run.name) is None:
        fix = "nothing here: where files lie is this site's affair; ask for a plan without it"
        yield Violation("plan.places", "run.folder or run.name", "no place, and a plain name", fix)
