"""One run at one hospital, from the opening of its folder to its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from secure_fl.crypto.blame.inquiry import InquiryEvidence
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.record_problems import counted_labels, reversed_class
from secure_fl.data.silo import Silo
from secure_fl.display.learning_check import not_learned
from secure_fl.display.run_page import PageWriter
from secure_fl.errors import CohortError, RunError, SecureFLError
from secure_fl.events import Event, Listener, PlanApproved, Warned
from secure_fl.federation.outcome import ResultContext, document_of, export_to
from secure_fl.federation.prepared import RunContext, prepare
from secure_fl.federation.run_feature import SiteLimits, finish_run
from secure_fl.federation.validation import (
    check_members,
    check_spec,
    require_labels,
    require_ready,
    tasks_of,
)
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.party.context import Checkpoints
from secure_fl.pilot.plan import rules_of_roster, spec_of
from secure_fl.pilot.site_memory import OpenedQuestions, SiteMemory
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import EquivocationProof, Link
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.party_checkpoints import PartyCheckpoints

Records = Callable[[Plan], Silo]  # this site's records for a plan


@dataclass(frozen=True)
class HospitalContext:
    """The state of a hospital that outlives its runs."""

    keys: PartyKeys
    roster: Roster
    records: Records
    folder: Path  # of its runs
    listen: Listener = lambda event: None
    ledger_folder: Path | None = None  # of the ledger for all runs; None: in `folder`
    limits: SiteLimits = field(default_factory=SiteLimits)
    goes_back: bool = False  # allow repeated rounds

    @property
    def ledger(self) -> Path:
        """The folder of the ledger for all runs."""
        return self.ledger_folder or self.folder / "ledger"

    @cached_property
    def memory(self) -> SiteMemory:
        """The memory of all runs."""
        return SiteMemory(self.ledger)

    @property
    def cards(self) -> dict[str, str]:
        """The fingerprints of the sites by name."""
        return {one.name: one.identity.fingerprint() for one in self.roster.members}


class SiteRun:
    """One run at one hospital: its session, its folder and its result."""

    def __init__(
        self, context: HospitalContext, plan: Plan, text: str, members: tuple[str, ...], link: Link
    ) -> None:
        """Begin a run; refuse a plan that does not fit the records. `text` is the plan's."""
        self._context, self.link, self._closed, self._members = context, link, False, members
        self.error_logged = False  # true once the reason of the session's end is logged
        self.suspects = False  # true while a failed sum counts as forged
        self._approvals: list[dict[str, str]] = []
        spec = spec_of(plan, context.ledger)
        check_spec(spec)
        rules = rules_of_roster(context.roster, plan, members)
        self._spec, self._rules = spec, replace(rules, goes_back=context.goes_back)
        self._silo = context.records(plan)
        tiers = {m.name: m.tier for m in context.roster.members if m.name in members}
        tiers.pop(rules.host or "", None)
        check_members(spec, tiers, rules)
        require_ready(self._silo, spec.entry, spec.task)
        self._inputs = plan.run.name, plan.dataset, plan.run.seed
        if not spec.entry.trains_nothing:
            context.memory.require_unused(*self._inputs)
        context.memory.require_same_sites(plan.run.name, context.roster)
        place = context.folder / plan.run.name
        resume = (place / "settings.toml").exists()
        self._folder = RunFolder.open(place, text, resume=resume)
        self._page = PageWriter(place, in_background=True)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        context, spec, rules, silo = self._context, self._spec, self._rules, self._silo
        tasks = tasks_of(spec.task, [silo], spec.entry)
        require_labels([silo], tasks)
        task = tasks[silo.name]
        run = RunContext(
            rules,
            {silo.name: task},
            self._folder,
            self._record,
            identity=context.keys.identity,
            limits=replace(context.limits, ledger=self._open_ledger),
            hooks=(OpenedQuestions(context.ledger, context.cards),),
            opened=context.memory.opened(*self._inputs),
        )
        self._prepared = prepare(spec, silo, run)
        counts = counted_labels(silo.train)
        if (found := reversed_class(spec.task, task.labels, counts)) is not None:
            text = ". Fix: ".join(found)
            self._record(Warned(party=silo.name, code="positive class", text=text))
        parties = sum(name != rules.host for name in self._members)
        roster = context.roster.fingerprint()
        self._outline = ResultContext(
            spec, rules, {silo.name: task}, (silo.name,), parties, roster=roster
        )
        self._judge(self._prepared.checkpoints)
        # A refused plan uses neither its name nor its seed up.
        context.memory.note_sites(self._inputs[0], context.roster)
        if not spec.entry.trains_nothing:
            context.memory.begin(*self._inputs)
        self.session = self._prepared.join(context.keys, self.link)

    def _open_ledger(self) -> Ledger:
        name, keys = self._silo.name, self._context.keys
        return open_ledger(self._context.ledger / name, name, keys.identity)

    def _judge(self, kept: Checkpoints) -> None:
        """Verify saved evidence; refuse a run with a convicted member or coordinator."""
        if not isinstance(kept, PartyCheckpoints):
            return
        context, coordinator = self._context, self._context.roster.coordinator
        for name, file in kept.evidence().items():
            try:
                data = file.read_bytes()
                case = EquivocationProof.from_bytes(data) or InquiryEvidence.from_bytes(data)
                if isinstance(case, EquivocationProof):
                    case.check(coordinator)
                else:
                    case.check(context.keys, coordinator)
            except (OSError, SecureFLError) as error:
                what = f"this is not evidence against {name}: it was changed, or is of other keys"
                fix = "remove the file if you do not know its origin"
                raise RunError(what, fix=fix, file=file, reason="changed") from error
            if name != case.accused:
                what = f"this is evidence against {case.accused}, and not against {name}"
                fix = "do not rename evidence: copy the file again from the site that has it"
                raise RunError(what, fix=fix, file=file, reason="changed")
            if name in (coordinator.name, *self._members):
                raise CohortError(
                    f"{name} takes part, and is convicted of spoiling a sum of this run or of "
                    "signing contradictory statements about one",
                    fix="ask that site. The run can continue without a convicted member, but not "
                    "with a convicted coordinator",
                    party=name,
                )
            kept.leave_out(name)

    @property
    def name(self) -> str:
        """The run's name in the plan."""
        return self._folder.path.name

    def note_approvals(self, approvals: list[dict[str, str]]) -> None:
        """Record the approvals of this run."""
        self._approvals = approvals
        if approvals:
            self._record(PlanApproved(party=self._silo.name, by=tuple(approvals)))

    def finish(self) -> None:
        """Write this site's result and models."""
        site, party = self._prepared.site, self._silo.name
        phases = site.recorder.seconds
        seconds = {"total": sum(phases.values()), "party": {party: phases}}
        try:
            export_to(self._folder.path, [site])
            document = document_of(self._outline, [self._prepared], seconds)
            approved = {"approvals": self._approvals} if self._approvals else {}
            kept = self._prepared.checkpoints
            names = sorted(kept.evidence()) if isinstance(kept, PartyCheckpoints) else []
            self._folder.finish(document | {"convicted": names} | approved)
            if (text := not_learned(document)) is not None:
                self._record(Warned(party=party, code="not learned", text=text))
            finish_run(self._folder.path)
            self._page.write()
        except SecureFLError as error:
            raise error.at(party=party) from None
        except Exception as error:  # libraries that write models raise their own errors
            what = f"the model could not be written ({type(error).__name__}: {error})"
            fix = "the last round is saved: free disk space, then restart the coordinator"
            raise RunError(
                what, fix=fix, file=self._folder.path, party=party, reason="unwritable"
            ) from error

    def close(self) -> None:
        """Close the run's folder."""
        self._closed = True
        self._page.close()
        self._folder.close()

    def _record(self, event: Event) -> None:
        if not self._closed:
            self._folder.record(event)
            self._page(event)
        self._context.listen(event)
