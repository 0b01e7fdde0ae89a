"""A person's signed approval of one plan under a site's rules, for the programs that run it.

Specified in docs/protocol-bytes.md 3.5.

A change of plan, rules or programs voids an approval.

People have their own keys (`secure-fl keys identity anna --keys anna`), whose fingerprints are in
the site's rules. So the user who starts `join` cannot approve for somebody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, PublicIdentity, digest_of
from secure_fl.errors import KeyringError, SecureFLError
from secure_fl.pilot.plan import plan_tables, require_run_name, write_plan
from secure_fl.pilot.program_digests import programs_of
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SiteFile

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
    signature: bytes = b""
    format: Literal["secure-fl/approval/2"] = "secure-fl/approval/2"

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
        file = self.folder / f"{approval.run}-{approval.who}.json"
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
    """Return a site's rules by name, with digests of the data sets' paths."""
    fields = dict(_flat("site", site.policy.model_dump(mode="json")))
    for name, one in site.sets.items():
        for field, value in _flat(f"data.set.{name}", one.model_dump(mode="json")):
            fields[field] = _short(value.encode())
    return fields


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
