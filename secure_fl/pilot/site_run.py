"""One run at one hospital, from the opening of its folder to its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from secure_fl.crypto.blame.inquiry import InquiryEvidence
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.display.run_page import PageWriter
from secure_fl.errors import CohortError, RunError, SecureFLError
from secure_fl.events import Event, Listener, PlanApproved
from secure_fl.federation.outcome import Outline, document_of, export_to
from secure_fl.federation.prepared import prepare
from secure_fl.federation.run_feature import SiteLimits
from secure_fl.federation.validation import require_ready, tasks_of
from secure_fl.party.rounds import Checkpoints
from secure_fl.pilot.plan import spec_of
from secure_fl.pilot.run_id import rules_of_roster
from secure_fl.pilot.site_memory import SiteMemory
from secure_fl.policy.rules import Plan
from secure_fl.protocol.frames import Link
from secure_fl.protocol.survivor_log import EquivocationProof
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.model_card import write_cards
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.statistics.opened_questions import OpenedQuestions

Records = Callable[[Plan], Silo]  # this site's records under the name that the plan uses


@dataclass(frozen=True, slots=True)
class Home:
    """What a hospital has over all runs."""

    keys: PartyKeys
    roster: Roster
    records: Records
    folder: Path
    listen: Listener
    ledger: Path
    memory: SiteMemory
    limits: SiteLimits = field(default_factory=SiteLimits)  # that its policy sets
    goes_back: bool = False  # as its operator says: rounds that are finished may be repeated

    @property
    def cards(self) -> dict[str, str]:
        """Which site is behind each name."""
        return {one.name: one.identity.fingerprint() for one in self.roster.members}


class SiteRun:
    """The hospital's part in a run: its session, and what comes of it."""

    def __init__(
        self, home: Home, plan: Plan, text: str, members: tuple[str, ...], link: Link
    ) -> None:
        """Begin, or refuse what this site's own records do not fit; `text`: the plan's."""
        self._home, self.link, self._closed, self._members = home, link, False, members
        self.told = False  # why its session ended
        self.cleared = False  # whether a sum failed, and a member was convicted of it
        self._approvals: list[dict[str, str]] = []
        spec = spec_of(plan, home.ledger)
        spec.check()
        rules = rules_of_roster(home.roster, plan, members)
        self._spec, self._rules = spec, replace(rules, goes_back=home.goes_back)
        self._silo = home.records(plan)
        spec.check_members(sum(name != rules.host for name in members), rules.min_cohort)
        require_ready(self._silo, spec.entry, spec.task)
        self._inputs = plan.run.name, plan.dataset, plan.run.seed
        home.memory.begin(*self._inputs)
        home.memory.require_same_sites(plan.run.name, home.roster)
        place = home.folder / plan.run.name
        resume = (place / "settings.toml").exists()
        self._folder = RunFolder.open(place, text, resume=resume)
        self._page = PageWriter(place)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        home, spec, rules, silo = self._home, self._spec, self._rules, self._silo
        task = tasks_of(spec.task, [silo], spec.entry)[silo.name]
        self._prepared = prepare(
            spec,
            silo,
            task,
            rules.threshold,
            folder=self._folder,
            listen=self._record,
            identity=home.keys.identity,
            limits=home.limits,
            hooks=[OpenedQuestions(home.ledger, home.cards)],
            opened=home.memory.opened(*self._inputs),
        )
        parties = sum(name != rules.host for name in home.roster.names)
        roster = home.roster.fingerprint()
        self._outline = Outline(
            spec, rules, {silo.name: task}, (silo.name,), parties, roster=roster
        )
        self._judge(self._prepared.checkpoints)
        self.session = self._prepared.join(rules, home.keys, self.link)

    def _judge(self, kept: Checkpoints) -> None:
        """Look at the evidence again; with who is convicted by it, this site does not go on."""
        if not isinstance(kept, PartyCheckpoints):
            return
        home, coordinator = self._home, self._home.roster.coordinator
        for name, file in kept.evidence().items():
            try:
                data = file.read_bytes()
                case = EquivocationProof.from_bytes(data) or InquiryEvidence.from_bytes(data)
                if isinstance(case, EquivocationProof):
                    case.check(coordinator)
                else:
                    case.check(home.keys, coordinator)
            except (OSError, SecureFLError) as error:
                raise RunError(
                    f"this is no evidence against {name}: it was edited, or is of other keys",
                    fix="remove the file, if you do not know where it comes from",
                    file=file,
                    reason="changed",
                ) from error
            if name != case.accused or name in (coordinator.name, *self._members):
                raise CohortError(
                    f"{name} is convicted of having spoiled a sum of this run, or of two stories "
                    "about one, and takes part",
                    fix="ask that site; the run goes on without it, and without a coordinator that "
                    "is convicted not at all",
                    party=name,
                )
            kept.leave_out(name)

    @property
    def name(self) -> str:
        """The run's name in the plan."""
        return self._folder.path.name

    def note_approvals(self, approvals: list[dict[str, str]]) -> None:
        """Keep, for whoever reads about the run, who approved it here."""
        self._approvals = approvals
        if approvals:
            self._record(PlanApproved(party=self._silo.name, by=tuple(approvals)))

    def finish(self) -> None:
        """Write this site's result and its models; they concern its own records alone."""
        site, noise, party = self._prepared.site, self._prepared.noise, self._silo.name
        recorder = site.recorder
        seconds = {"total": sum(recorder.seconds.values()), "party": {party: recorder.seconds}}
        accounts = {} if noise is None else {party: noise}
        hooks = self._prepared.hooks
        try:
            export_to(self._folder.path, [site])
            document = document_of(self._outline, [site], seconds, accounts, hooks=hooks)
            approved = {"approvals": self._approvals} if self._approvals else {}
            kept = self._prepared.checkpoints
            names = sorted(kept.evidence()) if isinstance(kept, PartyCheckpoints) else []
            self._folder.finish(document | {"convicted": names} | approved)
            write_cards(self._folder.path)
            self._page.write()
        except SecureFLError as error:
            raise error.at(party=party) from None
        except Exception as error:  # of the libraries that write models, each has its own
            raise RunError(
                f"the model could not be written ({type(error).__name__}: {error})",
                fix="the last round is kept: free disk space, then let the coordinator start again",
                file=self._folder.path,
                party=party,
                reason="unwritable",
            ) from error

    def close(self) -> None:
        """Let go of the run's folder; what was finished stays there."""
        self._closed = True
        self._folder.close()

    def _record(self, event: Event) -> None:
        if not self._closed:
            self._folder.record(event)
            self._page(event)
        self._home.listen(event)
