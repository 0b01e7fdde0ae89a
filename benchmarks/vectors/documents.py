"""Vectors of approvals, of the ids of runs, and of files in unusual forms."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from benchmarks.vectors.book import Book
from benchmarks.vectors.keys import BEGUN, NORTH, NOW, SOUTH, WEST, signed_roster
from benchmarks.vectors.seeds import bytes_of
from secure_fl.crypto.keys.roster_files import card_bytes, roster_bytes
from secure_fl.pilot.approvals import Approval

PLAN = """[run]
name = "ward é"

[algorithm]
name = "fedavg"
"""


def documents(book: Book) -> None:
    """Approvals, and the ids of runs."""
    _files(book)
    _approvals(book)
    file = roster_bytes(signed_roster()).decode()
    nonces = {name: bytes_of(f"nonce {name}", 16).hex() for name in ("west", "north", "south")}
    runs = book.series("run-id", file=file, plan=PLAN, nonces=nonces)
    runs.ok("id of a run")
    runs.ok("id of a run without one member", nonces={"south": nonces["south"], "north": "00" * 16})
    runs.ok("id of a run under another plan", plan=PLAN.replace("fedavg", "fedadam"))


def _files(book: Book) -> None:
    """Add rosters and cards whose moments, texts and bytes have unusual forms."""
    file = roster_bytes(signed_roster()).decode()
    read, rosters = json.loads(file), book.series("roster", file=file, now=NOW, me="")
    for created in ("2026-01-01t00:00:00z", "2026-01-01 02:00:00.25+0200"):
        rosters.ok(f"roster of {created}", file=json.dumps({**read, "created": created}))
    for created in ("20260101T000000Z", "2026-W01-4T00:00:00Z", "2026-01-01T00:00Z",
                    "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00+00",
                    "2026-01-01T00:00:00+00:00:30", "2026-01-01T00:00:60Z"):  # fmt: skip
        no = json.dumps({**read, "created": created})
        rosters.no("keyring:malformed", f"roster of {created}", file=no)
    signature = read["signatures"]["north"]
    last = {**read, "signatures": {"north": signature[:-3] + chr(ord(signature[-3]) + 1) + "=="}}
    rosters.ok("signature with other unused bits", file=json.dumps(last))
    more = {**read, "signatures": {"north": "AAAA="}}
    rosters.no("keyring:malformed", "signature with too much padding", file=json.dumps(more))
    other = json.dumps({**read, "format": -1})
    rosters.no("keyring:other-format", "roster of a negative format", file=other)
    nested = "[" * 5000 + "]" * 5000
    rosters.no("keyring:malformed", "roster of nested lists", file=nested)
    card = json.loads(card_bytes(NORTH))
    half = {**card, "card": {**card["card"], "name": "\ud800"}}
    book.no("keyring:malformed", "half of a character", "card", file=json.dumps(half))


def _approvals(book: Book) -> None:
    card = NORTH.public
    rules = {
        "site.max_rounds": "3",
        "data.set.Ärzte": 'a "quoted" \\ text',
        "data.set.z": "",
        "B": "",
    }
    programs = {"secure_fl": "0.1.0 0123abcd", "Plug": "1"}
    approval = Approval(
        "clinic", card.name, card.signing, card.agreement, BEGUN.isoformat(), "ward é", PLAN, rules,
        programs, "secure-fl/approval/2",
    )  # fmt: skip
    book.ok("approval", "approval", file=_signed(approval, NORTH))

    def no(name: str, file: str) -> None:
        book.no("keyring:signature", name, "approval", file=file)

    read = json.loads(_signed(approval, NORTH))
    no("approval signed by another", _signed(approval, SOUTH))
    no("approval with another plan", json.dumps({**read, "plan": PLAN + "# more\n"}))
    no("approval in another name", json.dumps({**read, "who": WEST.name}))
    no("approval without its format", json.dumps({k: v for k, v in read.items() if k != "format"}))
    no("approval with a field too many", json.dumps({**read, "more": ""}))


def _signed(approval: Approval, signer: Any) -> str:
    made = msgspec.structs.replace(approval, signature=signer.sign_document(approval.digest()))
    return msgspec.json.encode(made).decode()
