"""What a person at a site signs: this plan, under these rules. Who changes either needs them again.

A person has a key of their own (`secure-fl keys identity anna --keys anna`), whose card's
fingerprint stands in the site's rules. So whoever starts `join` cannot approve for somebody else.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, PublicIdentity, digest_of
from secure_fl.errors import CryptoError, KeyringError
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.policy_file import SiteFile
from secure_fl.policy.questions import Proposal

FOLDER = "approvals"  # beside the site's file
MISSING = "nothing"


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One person's word about one plan and the rules of one site."""

    site: str
    who: str
    signing: bytes
    agreement: bytes
    time: str
    run: str
    plan: str  # as plans are written
    rules: dict[str, str]
    signature: bytes = b""
    format: Literal["secure-fl/approval/1"] = "secure-fl/approval/1"

    @classmethod
    def make(cls, me: Identity, site: str, plan: Proposal, rules: Mapping[str, str]) -> Approval:
        """Sign a plan under these rules."""
        card, now = me.public, datetime.now(UTC).isoformat(timespec="seconds")
        keys = card.signing, card.agreement
        made = cls(site, card.name, *keys, now, plan.run.name, write_plan(plan), dict(rules))
        return msgspec.structs.replace(made, signature=me.sign(made.digest()))

    def digest(self) -> bytes:
        """What is signed: everything else."""
        unsigned = msgspec.structs.replace(self, signature=b"")
        return digest_of(b"secure-fl approval", msgspec.json.encode(unsigned, order="sorted"))

    @property
    def card(self) -> PublicIdentity:
        """Whose word it is; it counts if the rules list the card's fingerprint."""
        return PublicIdentity(self.who, self.signing, self.agreement)

    def changes(self, plan: Proposal, rules: Mapping[str, str]) -> list[str]:
        """In what a plan and rules differ from those that were approved."""
        return [
            *_changes(_fields(self.plan), _fields(write_plan(plan))),
            *_changes(self.rules, rules),
        ]

    def facts(self) -> dict[str, str]:
        """What is shown of it."""
        return {
            "who": self.who,
            "fingerprint": self.card.fingerprint(),
            "time": self.time,
            "plan": _short(self.plan.encode()),
            "rules": _short(msgspec.json.encode(self.rules, order="sorted")),
        }


@dataclass(frozen=True, slots=True)
class Papers:
    """The approvals of a site, a file each, as people signed them."""

    folder: Path
    site: str

    def add(self, approval: Approval) -> Path:
        """Keep it; a person's newer word about a run replaces the older one."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{approval.run}-{approval.who}.json"
        write_atomic(file, msgspec.json.encode(approval))
        return file

    def of(self, run: str) -> Iterator[Approval]:
        """Those about a run that are whole, and signed by the keys that they name."""
        for file in sorted(self.folder.glob("*.json")):
            found = read(read_bounded(file), str(file))
            if (found.site, found.run) == (self.site, run):
                yield found


def read(data: bytes, file: str) -> Approval:
    """Read an approval, or say that it is none."""
    try:
        found = msgspec.json.decode(data, type=Approval)
        found.card.verify(found.digest(), found.signature)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, CryptoError):
        fix = "remove it, and have the plan approved again"
        raise KeyringError("is no approval", file=file, fix=fix, reason="signature") from None
    return found


def rules_of(site: SiteFile) -> dict[str, str]:
    """A site's rules as names and values; of the files behind a data set, only digests of paths."""
    fields = dict(_flat("site", site.policy.model_dump(mode="json")))
    for name, one in site.sets.items():
        for field, value in _flat(f"data.set.{name}", one.model_dump(mode="json")):
            fields[field] = _short(value.encode())
    return fields


def _fields(plan: str) -> dict[str, str]:
    return dict(_flat("", tomllib.loads(plan)))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}".lstrip("."), inner)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for field in sorted(before.keys() | now.keys()):
        then, found = before.get(field, MISSING), now.get(field, MISSING)
        if then != found:
            yield f"{field} is {found[:60]}, and was {then[:60]}"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
