"""Vectors of approvals and of the ids of runs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from benchmarks.vectors.book import Book
from benchmarks.vectors.keys import BEGUN, NORTH, SOUTH, WEST, signed_roster
from benchmarks.vectors.seeds import bytes_of
from secure_fl.crypto.keys.roster_files import roster_bytes
from secure_fl.pilot.approvals import Approval

PLAN = """[run]
name = "ward é"

[algorithm]
name = "fedavg"
"""


def documents(book: Book) -> None:
    """Approvals, and the ids of runs."""
    _approvals(book)
    file = roster_bytes(signed_roster()).decode()
    nonces = {name: bytes_of(f"nonce {name}", 16).hex() for name in ("west", "north", "south")}
    runs = book.series("run-id", file=file, plan=PLAN, nonces=nonces)
    runs.ok("id of a run")
    runs.ok("id of a run without one member", nonces={"south": nonces["south"], "north": "00" * 16})
    runs.ok("id of a run under another plan", plan=PLAN.replace("fedavg", "fedadam"))


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
