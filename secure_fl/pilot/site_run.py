"""One run at one hospital, from the opening of its folder to its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from secure_fl.crypto.blame.inquiry import InquiryEvidence
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.record_problems import counted_labels, many_labels, reversed_class
from secure_fl.data.silo import Silo
from secure_fl.display.learning_check import not_learned
from secure_fl.display.run_page import PageWriter
from secure_fl.errors import CohortError, RunError, SecureFLError
from secure_fl.events import Event, Listener, PlanApproved, Warned
from secure_fl.federation.assembly import keys_of_sums
from secure_fl.federation.outcome import ResultContext, document_of, export_to
from secure_fl.federation.prepared import Prepared, RunContext, prepare
from secure_fl.federation.run_feature import SiteLimits, finish_run
from secure_fl.federation.validation import (
    check_members,
    check_spec,
    noise_warning,
    require_labels,
    require_ready,
    tasks_of,
)
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.party.context import Checkpoints
from secure_fl.pilot.plan import rules_of_roster, spec_of
from secure_fl.pilot.site_memory import OpenedQuestions, SiteMemory, inputs_of
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
    goes_back: bool = False  # allow rounds before the last two to be repeated
    other_ledger: str | None = None  # a warning: the ledger does not count earlier runs

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
    """One run at one hospital: its session, its folder and its result.

    `HospitalProcess` keeps two flags here: `error_logged` once it has logged the error of the
    session, and `suspects` while a failed sum counts as forged.
    """

    def __init__(
        self, context: HospitalContext, plan: Plan, text: str, members: tuple[str, ...], link: Link
    ) -> None:
        """Begin a run; refuse a plan that does not fit the records. `text`: the plan as sent.

        The site's memory is written last, so that a refused plan can be corrected and sent again.
        """
        self._context, self._members, self.link = context, members, link
        self.error_logged = self.suspects = self._closed = False
        self._approvals: list[dict[str, str]] = []
        self._spec = spec_of(plan, context.ledger)
        check_spec(self._spec)
        self._silo = context.records(plan)
        self._inputs = inputs_of(plan, self._silo)
        self._check(plan)
        folder = context.folder / plan.run.name
        self._folder = RunFolder.open(folder, text, resume=(folder / "settings.toml").exists())
        self._page = PageWriter(folder, in_background=True)
        try:
            self._prepared = self._prepare()
            keys = keys_of_sums(context.keys, plan.protection.mode)
            apply_evidence(self._prepared.checkpoints, replace(context, keys=keys), members)
            self._note_start()
            self.session = self._prepared.join(context.keys, link, members=members)
        except BaseException:
            self.close()
            raise

    def _check(self, plan: Plan) -> None:
        """Refuse a plan that does not suit the members, the records or earlier runs."""
        context, spec, silo = self._context, self._spec, self._silo
        rules = rules_of_roster(context.roster, plan, self._members)
        self._rules = replace(rules, goes_back=context.goes_back)
        present = [m for m in context.roster.members if m.name in self._members]
        tiers = {m.name: m.tier for m in present if m.name != rules.host}
        resumed = (context.folder / plan.run.name / "settings.toml").exists()
        check_members(spec, tiers, rules, resumed=resumed)
        require_ready(silo, spec.entry, spec.task)
        tasks = tasks_of(spec.task, [silo], spec.entry)
        require_labels([silo], tasks)
        self._task = tasks[silo.name]
        if not spec.entry.trains_nothing:
            context.memory.require_unused(self._inputs)
        context.memory.require_same_sites(plan.run.name, context.roster)

    def _prepare(self) -> Prepared:
        """Build this site's party, and log its warnings."""
        context, silo, task = self._context, self._silo, self._task
        run = RunContext(
            self._rules,
            {silo.name: task},
            self._folder,
            self._record,
            identity=context.keys.identity,
            limits=replace(context.limits, ledger=self._open_ledger),
            hooks=(OpenedQuestions(context.ledger, context.cards),),
            opened=context.memory.opened(self._inputs),
        )
        prepared = prepare(self._spec, silo, run)
        self._warn()
        return prepared

    def _warn(self) -> None:
        """Log what this site's people should know before the first round."""
        spec, silo, task = self._spec, self._silo, self._task
        parties = sum(name != self._rules.host for name in self._members)
        counts = counted_labels(silo.train)
        classes = reversed_class(spec.task, task.labels, counts)
        labels = many_labels(len(task.labels))
        texts = {
            "ledger": self._context.other_ledger,
            "positive class": classes and ". Fix: ".join(classes),
            "labels": labels and ". Fix: ".join(labels),
            "noise": noise_warning(spec, silo, parties, self._rules.threshold),
        }
        for code, text in texts.items():
            if text is not None:
                self._record(Warned(party=silo.name, code=code, text=text))

    def _open_ledger(self) -> Ledger:
        name, keys = self._silo.name, self._context.keys
        return open_ledger(self._context.ledger / name, name, keys.identity)

    def _note_start(self) -> None:
        """Note the run's sites and inputs in the site's memory; `_check` has compared them."""
        memory = self._context.memory
        memory.note_sites(self.name, self._context.roster)
        if not self._spec.entry.trains_nothing:
            memory.begin(self._inputs)

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
        try:
            export_to(self._folder.path, [self._prepared.site])
            document = self._document()
            self._folder.finish(document)
            if (text := not_learned(document)) is not None:
                self._record(Warned(party=self._silo.name, code="not learned", text=text))
            finish_run(self._folder.path)
            self._page.write()
        except SecureFLError as error:
            raise error.at(party=self._silo.name) from None
        except Exception as error:  # libraries that write models raise their own errors
            what = f"model and result cannot be written ({type(error).__name__}: {error})"
            fix = (
                "the last round is saved: free disk space if there is none, restart the coordinator"
            )
            place = {"file": self._folder.path, "party": self._silo.name}
            raise RunError(what, fix=fix, reason="unwritable", **place) from error

    def _document(self) -> dict[str, Any]:
        """Make the content of result.json."""
        party, checkpoints = self._silo.name, self._prepared.checkpoints
        in_sum = sum(name != self._rules.host for name in self._members)
        tasks, roster = {party: self._task}, self._context.roster.fingerprint()
        run = ResultContext(self._spec, self._rules, tasks, (party,), in_sum, roster=roster)
        phases = self._prepared.site.recorder.seconds
        seconds = {"total": sum(phases.values()), "party": {party: phases}}
        document = document_of(run, [self._prepared], seconds)
        evidence = checkpoints.evidence() if isinstance(checkpoints, PartyCheckpoints) else {}
        document["convicted"] = sorted(evidence)
        return document | ({"approvals": self._approvals} if self._approvals else {})

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


def apply_evidence(
    checkpoints: Checkpoints, context: HospitalContext, members: tuple[str, ...]
) -> None:
    """Verify saved evidence, and repeat sums without the input of convicted members.

    A run with a convicted member or coordinator is refused. Evidence that this site verified once
    is not verified again: the keys of a new roster cannot do it.
    """
    if not isinstance(checkpoints, PartyCheckpoints):
        return
    coordinator = context.roster.coordinator.name
    for name, file in checkpoints.evidence().items():
        try:
            data = file.read_bytes()
        except OSError as error:
            what = f"this evidence cannot be read ({error.strerror})"
            raise RunError(what, file=file, reason="unreadable") from error
        accused = name if checkpoints.verified(name, data) else _accused_by(data, file, context)
        if name != accused:
            what = f"this is evidence against {accused}, and not against {name}"
            fix = "do not rename evidence: copy the file again from the site that has it"
            raise RunError(what, fix=fix, file=file, reason="changed")
        checkpoints.note_evidence(name, data)
        if name in (coordinator, *members):
            raise CohortError(
                f"{name} takes part, and is convicted of spoiling a sum of this run or of "
                "signing contradictory statements about one",
                fix="ask that site. The run can continue without a convicted member, but not "
                "with a convicted coordinator",
                party=name,
            )
        checkpoints.leave_out(name)


def _accused_by(data: bytes, file: Path, context: HospitalContext) -> str:
    """Verify one file of evidence, and return the name of the site that it convicts."""
    coordinator = context.roster.coordinator
    try:
        evidence = EquivocationProof.from_bytes(data) or InquiryEvidence.from_bytes(data)
        if isinstance(evidence, EquivocationProof):
            evidence.check(coordinator)
        else:
            host = context.roster.host
            evidence.check(context.keys, coordinator, host.name if host else None)
    except SecureFLError as error:
        what = f"this is not evidence against {file.name}: it was changed, or is of other keys"
        fix = (
            "copy it again from the site that has it. If the roster changed before this site "
            "verified it, start a new run with another seed"
        )
        raise RunError(what, fix=fix, file=file, reason="changed") from error
    return evidence.accused
