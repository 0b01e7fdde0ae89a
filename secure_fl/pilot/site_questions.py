"""A coordinator's questions at one hospital: the session and the answers."""

from __future__ import annotations

from dataclasses import replace

from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.crypto.keys.identity import Identity
from secure_fl.errors import QuestionRefused, RunError
from secure_fl.events import Event, EventLog, PlanApproved, Refused
from secure_fl.federation.assembly import PartyContext, join_run
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.party.cohort import Cohort
from secure_fl.pilot.run_id import rules_of_roster
from secure_fl.pilot.site_run import HospitalContext
from secure_fl.policy.policy_file import SiteFile
from secure_fl.policy.questions import QuestionPlan
from secure_fl.protocol.frames import Link
from secure_fl.runs.folder import RunFolder
from secure_fl.statistics.exact import sealed
from secure_fl.statistics.noise import NoiseBudget, unit_of
from secure_fl.statistics.note import NOTE, Note
from secure_fl.statistics.pages import write_answers
from secure_fl.statistics.program import answer
from secure_fl.statistics.site import StatisticsSite
from secure_fl.statistics.tables import of_files


class SiteQuestions:
    """A run of questions at one hospital, with the interface of `SiteRun`."""

    def __init__(
        self,
        context: HospitalContext,
        plan: QuestionPlan,
        text: str,
        members: tuple[str, ...],
        link: Link,
        site: StatisticsSite,
    ) -> None:
        self._context, self._plan, self._site = context, plan, site
        self.link, self._closed = link, False
        self.error_logged = self.suspects = False  # as in a `SiteRun`
        rules = rules_of_roster(context.roster, plan, members)
        place = context.folder / plan.run.name
        resume = (place / "settings.toml").exists()
        self._folder = RunFolder.open(place, text, resume=resume)
        self.session = join_run(
            self._program,
            PartyContext(
                context.keys,
                link,
                replace(rules, goes_back=context.goes_back),
                sealed(plan.protection),
                recorder=EventLog(site.name, self._record),
            ),
        )

    @property
    def name(self) -> str:
        """The run's name in the plan."""
        return self._folder.path.name

    def note_approvals(self, approvals: list[dict[str, str]]) -> None:
        """Record the approvals of this run."""
        if approvals:
            self._record(PlanApproved(party=self._site.name, by=tuple(approvals)))

    def finish(self) -> None:
        """Write the answers, which are equal at all sites."""
        try:
            write_answers(self._folder.path, self._site.answers, self._plan.protection.mode)
        except OSError as error:
            raise RunError(
                f"the answers could not be written ({error.strerror})",
                file=self._folder.path,
                party=self._site.name,
                reason="unwritable",
            ) from error
        for question, refusal in self._site.refusals.items():
            why = f"{question}: {refusal}"
            self._context.listen(Refused(party=self._site.name, code=refusal.code, why=why))

    def close(self) -> None:
        """Close the run's folder."""
        self._closed = True
        self._folder.close()

    async def _program(self, cohort: Cohort) -> None:
        await answer(cohort, self._site, self._plan.asked)

    def _record(self, event: Event) -> None:
        if not self._closed:
            self._folder.record(event)
        self._context.listen(event)


def statistics_of(
    site: SiteFile, me: str, plan: QuestionPlan, identity: Identity
) -> StatisticsSite:
    """Return a site's tables for questions, with its rules, note and ledger."""
    files, rules = site.sets.get(plan.dataset), site.policy.statistics
    if files is None or rules is None:
        raise QuestionRefused(
            f"this site answers no questions about {plan.dataset!r}",
            fix=f"add [site.statistics] and the data set to {site.file.name}",
            party=me,
        )
    mine = PartyFiles(name=me, train=files.train, dev=files.dev, test=files.test)
    data = PartyData(party=(mine,), format=files.format, columns=files.columns)
    table, own = of_files(mine, data), site.ledger / me
    budget = NoiseBudget(me, unit_of(table), open_ledger(own, me, identity))
    return StatisticsSite(me, table, rules, Note(own / f"{plan.dataset}-{NOTE}"), budget)
