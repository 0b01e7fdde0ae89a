"""A person's signed approval of one plan under a site's rules, for the programs that run it.

A change of plan, rules or programs voids an approval (docs/protocol-bytes.md 3.5). People have
their own keys, so the user who starts `join` cannot approve for somebody else. A plan only names
its algorithm, so an approval signs the installed packages too: a digest of their files, which says
nothing about Python, torch or other dependencies. The ledger and the history of ledgers have the
rule of the last approved plan, so that its removal needs the people that it names, and a new or
different ledger voids approvals. The user who starts `join` should have no right to change the
site's file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution, EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from secure_fl.algorithms.registry import ALGORITHMS, package_of
from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, PublicIdentity, digest_of
from secure_fl.crypto.privacy.ledger import Ledger, load_chain
from secure_fl.errors import KeyringError, RunError, SecureFLError
from secure_fl.files import replace_whole
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.ledger_history import LedgerHistory
from secure_fl.pilot.plan import plan_tables, require_run_name, write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import ApprovalRule, SiteFile
from secure_fl.policy.violations import PolicyRefusal, Violation, shown
from secure_fl.version import VERSION

FOLDER = "approvals"  # beside the site's file
MISSING = "nothing"


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One person's approval of one plan under one site's rules."""

    site: str
    who: str
    signing: bytes
    agreement: bytes
    time: str
    run: str
    plan: str  # as plans are written
    rules: dict[str, str]
    programs: dict[str, str]
    """Version and digest of each package that runs the plan."""
    format: Literal["secure-fl/approval/2"]
    signature: bytes = b""

    @classmethod
    def make(cls, me: Identity, site: str, plan: Plan, rules: Mapping[str, str]) -> Approval:
        """Sign a plan under these rules, with the programs that are installed here."""
        require_run_name(plan.run.name)
        card, now = me.public, datetime.now(UTC).isoformat(timespec="seconds")
        made = cls(
            site,
            card.name,
            card.signing,
            card.agreement,
            now,
            plan.run.name,
            write_plan(plan),
            dict(rules),
            programs_of(plan),
            "secure-fl/approval/2",
        )
        return msgspec.structs.replace(made, signature=me.sign_document(made.digest()))

    def digest(self) -> bytes:
        """Compute the digest of all fields but the signature."""
        unsigned = msgspec.to_builtins(msgspec.structs.replace(self, signature=b""))
        return digest_of(b"secure-fl approval", msgspec.json.encode(unsigned, order="sorted"))

    @property
    def card(self) -> PublicIdentity:
        """The card of the person; the approval counts if the rules list its fingerprint."""
        return PublicIdentity(self.who, self.signing, self.agreement)

    def changes(self, plan: Plan, rules: Mapping[str, str]) -> list[str]:
        """List the differences of a plan, rules and installed programs from the approved ones."""
        approved = {f"program {name}": what for name, what in self.programs.items()}
        installed = {f"program {name}": what for name, what in programs_of(plan).items()}
        return [
            *_changes(_fields(self.plan), _fields(write_plan(plan))),
            *_changes(self.rules, rules),
            *_changes(approved, installed),
        ]

    def facts(self) -> dict[str, str]:
        """Return the fields for display."""
        return {
            "who": self.who,
            "fingerprint": self.card.fingerprint(),
            "time": self.time,
            "plan": _short(self.plan.encode()),
            "rules": _short(msgspec.json.encode(self.rules, order="sorted")),
            "programs": ", ".join(f"{name} {what}" for name, what in self.programs.items()),
        }


@dataclass(frozen=True, slots=True)
class ApprovalFiles:
    """The signed approvals of a site, one file each."""

    folder: Path
    site: str

    def add(self, approval: Approval) -> Path:
        """Save an approval; it replaces the same person's older one for the run."""
        require_run_name(approval.run)
        self.folder.mkdir(exist_ok=True)
        digits = approval.card.fingerprint().replace(" ", "")[:8]  # people can share a name
        file = self.folder / f"{approval.run}-{approval.who}-{digits}.json"
        write_atomic(file, msgspec.json.encode(approval))
        return file

    def of(self, run: str) -> Iterator[Approval]:
        """Yield a run's approvals; refuse a broken or forged file."""
        for file in sorted(self.folder.glob("*.json")):
            approval = read(read_bounded(file), str(file))
            if (approval.site, approval.run) == (self.site, run):
                yield approval


def read(data: bytes, file: str) -> Approval:
    """Decode an approval and verify its signature."""
    try:
        approval = msgspec.json.decode(data, type=Approval)
        approval.card.verify_document(approval.digest(), approval.signature)
        plan_tables(approval.plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, SecureFLError):
        fix = "remove it, and have the plan approved again"
        raise KeyringError(
            "is not a valid approval", file=file, fix=fix, reason="signature"
        ) from None
    return approval


def rules_of(site: SiteFile) -> dict[str, str]:
    """Return a site's rules by name, with digests of the paths of data sets and ledger."""
    fields = dict(_flat("site", site.policy.model_dump(mode="json")))
    fields["keys.ledger"] = _short(str(site.ledger).encode())
    if later := _history(site).later():
        known = _short("\n".join(later).encode())
        fields["keys.ledger"] += f", budget {len(later) + 1} of this site ({known})"
    for name, one in site.sets.items():
        for field, value in _flat(f"data.set.{name}", one.model_dump(mode="json")):
            fields[field] = _short(value.encode())
    return fields


def _history(site: SiteFile) -> LedgerHistory:
    return LedgerHistory(site.file.absolute().parent / FOLDER)


def ledger_warning(site: SiteFile, me: str) -> tuple[str, str] | None:
    """Describe a ledger that does not count earlier runs of this site, and its fix."""
    return _history(site).warning(site.ledger / me / LEDGER)


def _rule_in(rules: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of [site.approval] in the rules that an approval signs."""
    return {
        field.rpartition(".")[2]: json.loads(value)
        for field, value in rules.items()
        if field.startswith(f"{RULE}.")
    }


def _fields(plan: str) -> dict[str, str]:
    return dict(_flat("", plan_tables(plan)))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}".lstrip("."), inner)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for field in sorted(before.keys() | now.keys()):
        old, new = before.get(field, MISSING), now.get(field, MISSING)
        if old != new:
            yield f"{field} is {new[:60]}; approved: {old[:60]}"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


OWN = "secure_fl"
HEX = 40  # digits of a digest in an approval: 160 bits
COMPILED = (".pyc", ".pyo")


def programs_of(plan: Plan) -> dict[str, str]:
    """Return version and digest of this package, and of the package of a plug-in's algorithm."""
    programs = {OWN: _identified(OWN, VERSION, _package_files(OWN))}
    point = ALGORITHMS.plugins.get(plan.algorithm.name)
    if point is not None:
        programs[package_of(point)] = _plugin(point)
    return programs


def _plugin(point: EntryPoint) -> str:
    name = point.module.partition(".")[0]
    files = _package_files(name)
    if (dist := point.dist) is not None:
        files |= _listed_files(dist)
    return _identified(name, dist.version if dist is not None else "unknown", files)


def _package_files(name: str) -> dict[str, Path]:
    """Find the files of a top-level package or module as an import does, without importing it.

    This includes linked folders, as in a checkout, and packages that are installed editable.
    """
    spec = find_spec(name)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {Path(spec.origin).name: Path(spec.origin)} if spec.origin else {}
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": file
        for folder in spec.submodule_search_locations
        for inside, _, files in os.walk(folder, followlinks=True)
        for file in (Path(inside, file) for file in files)
        if file.is_file() and file.suffix not in COMPILED
    }


def _listed_files(dist: Distribution) -> dict[str, Path]:
    """Return the files that an installer listed, without its own notes."""
    return {
        file.as_posix(): Path(str(dist.locate_file(file)))
        for file in dist.files or ()
        if ".dist-info/" not in file.as_posix() and file.suffix not in COMPILED
    }


def _identified(package: str, version: str, files: dict[str, Path]) -> str:
    if not files:
        what = f"no file of the package {package} was found, so nobody can approve it"
        fix = "install it from a wheel"
        raise RunError(what, fix=fix, reason="missing")
    whole = hashlib.sha256()
    for name, file in sorted(files.items()):
        content = file.read_bytes() if file.is_file() else b"missing"
        whole.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return f"{version} {whole.hexdigest()[:HEX]}"


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

    @property
    def history(self) -> LedgerHistory:
        """The ledgers that this site has used."""
        return _history(self.site)

    def require(self, ledger: Ledger, plan: Plan) -> list[dict[str, str]]:
        """Refuse a plan without approval; otherwise record its approvals and return them."""
        self._meet(ledger)
        if broken := list(self.missing(plan)):
            self._keep(plan)
            raise PolicyRefusal(broken, party=self.me.name)
        known = {one.signature for one in self.noted()}
        approvals = self._valid(plan)
        for approval in approvals:
            if approval.signature not in known:
                text = msgspec.json.encode(approval).decode()
                ledger.note("approved", text, run=approval.run)
        if approvals:
            self.history.approved(ledger, _rule_in(approvals[-1].rules))
        return [approval.facts() for approval in approvals]

    def _meet(self, ledger: Ledger) -> None:
        """Note another ledger before approvals are judged: it voids them."""
        try:
            self.history.meet(ledger)
        except RunError:
            if self._asking():
                raise  # a site without approvers does not depend on the file

    def missing(self, plan: Plan) -> Iterator[Violation]:
        """List missing approvals of a plan, with fixes."""
        for rule in self._asking():
            if len(self._among(rule, self._valid(plan))) < rule.least:
                yield from self._lacks(rule, plan)
                return

    def lists(self, fingerprint: str) -> bool:
        """Return True if the site's file or the rule of the last approved plan names this key."""
        now = self.site.policy.approval
        if now is not None and fingerprint in now.by:
            return True  # without the ledger, which only the site's user may be able to read
        return any(fingerprint in rule.by for rule in self._asking())

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
        """Return the rule of the site's file, and those of the last approved plan.

        The last one on this ledger and the last one of this site are equal, if the ledger is.
        """
        noted = self.noted()
        tables = (_rule_in(noted[-1].rules) if noted else {}, self.history.approval)
        asking = [] if self.site.policy.approval is None else [self.site.policy.approval]
        for table in filter(None, tables):
            rule = ApprovalRule.model_validate_json(json.dumps(table))
            asking += [] if rule in asking else [rule]
        return asking

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
