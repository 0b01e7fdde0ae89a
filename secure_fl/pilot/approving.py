"""The check that people at a site have approved a plan, and the record of it on the ledger.

Editing the site's file cannot remove an approval rule: the ledger has the rule of the last approved
plan, and the people that it names must approve the change too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.privacy.ledger import Ledger, load_chain
from secure_fl.errors import RunError
from secure_fl.files import replace_whole
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.approvals import FOLDER, Approval, ApprovalFiles, read, rules_of
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import ApprovalRule, SiteFile
from secure_fl.policy.violations import PolicyRefusal, Violation, shown

RULE = "site.approval"
ASKED = "asked.toml"  # the last plan without approval, for people to read
MOST_CHANGES = 20  # changes named in an error


@dataclass(frozen=True, slots=True)
class Approving:
    """The approvals of one site, in files and on its ledger."""

    site: SiteFile
    me: PublicIdentity

    @property
    def folder(self) -> Path:
        """The folder of approval files."""
        return self.site.file.absolute().parent / FOLDER

    def require(self, ledger: Ledger, plan: Plan) -> list[dict[str, str]]:
        """Refuse a plan without approval; otherwise record its approvals and return them."""
        if broken := list(self.missing(plan)):
            self._keep(plan)
            raise PolicyRefusal(broken, party=self.me.name)
        known = {one.signature for one in self.noted()}
        approvals = self._valid(plan)
        for approval in approvals:
            if approval.signature not in known:
                text = msgspec.json.encode(approval).decode()
                ledger.note("approved", text, run=approval.run)
        return [approval.facts() for approval in approvals]

    def missing(self, plan: Plan) -> Iterator[Violation]:
        """List missing approvals of a plan, with fixes."""
        for rule in self._asking():
            if len(self._among(rule, self._valid(plan))) < rule.least:
                yield from self._lacks(rule, plan)
                return

    def noted(self) -> list[Approval]:
        """Return all approvals on the ledger, in order."""
        file = self.site.ledger / self.me.name / LEDGER
        if not file.exists():
            return []
        chain = load_chain(file)
        chain.check(self.me)
        rows = (entry.event for entry in chain.entries if entry.state == "approved")
        return [read(text.encode(), str(file)) for text in rows]

    def _asking(self) -> list[ApprovalRule]:
        """Return the rule of the site's file, and that of the last approved plan."""
        noted = self.noted()
        last = noted[-1].rules if noted else {}
        table: dict[str, object] = {
            field.rpartition(".")[2]: json.loads(value)
            for field, value in last.items()
            if field.startswith(f"{RULE}.")
        }
        before = [ApprovalRule.model_validate_json(json.dumps(table))] if table else []
        now = [] if self.site.policy.approval is None else [self.site.policy.approval]
        return now + [rule for rule in before if rule not in now]

    def _valid(self, plan: Plan) -> list[Approval]:
        """Return approvals of this plan under these rules, by people that the rules list."""
        rules, asking = rules_of(self.site), self._asking()
        if not asking:
            return []
        files = ApprovalFiles(self.folder, self.me.name).of(plan.run.name)
        same = [one for one in files if not one.changes(plan, rules)]
        return [one for one in same if any(self._among(rule, [one]) for rule in asking)]

    def _among(self, rule: ApprovalRule, approvals: list[Approval]) -> set[str]:
        return {one.card.fingerprint() for one in approvals} & set(rule.by)

    def _lacks(self, rule: ApprovalRule, plan: Plan) -> Iterator[Violation]:
        rules, name = rules_of(self.site), shown(plan.run.name)
        allowed = f"approval by {rule.least} of {len(rule.by)} keys"
        fix = (
            f"secure-fl site approve {self.site.file} --plan {FOLDER}/{ASKED} --keys KEYS, "
            "once by each person"
        )
        have = len(self._among(rule, self._valid(plan)))
        yield Violation(RULE, f"{name}, approved by {have}", allowed, fix)
        for paper in ApprovalFiles(self.folder, self.me.name).of(plan.run.name):
            for change in paper.changes(plan, rules)[:MOST_CHANGES]:
                what = f"since {paper.who} approved it: {change}"
                yield Violation(RULE, what, "no change", "approve it again, or undo the change")

    def _keep(self, plan: Plan) -> None:
        """Write the plan for people to read."""
        try:
            self.folder.mkdir(exist_ok=True)
            replace_whole(self.folder / ASKED, write_plan(plan).encode())
        except OSError as error:
            what = f"the plan for approval could not be written ({error.strerror})"
            raise RunError(
                what, file=self.folder / ASKED, party=self.me.name, reason="unwritable"
            ) from error
