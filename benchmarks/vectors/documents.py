"""Vectors of key files, approvals, the ids of runs, and files in unusual forms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from benchmarks.vectors.book import Book
from benchmarks.vectors.keys import BEGUN, NORTH, NOW, SOUTH, WEST, signed_roster
from benchmarks.vectors.seeds import bytes_of
from secure_fl.crypto.keys.keyring import CohortKeys, encode_keys
from secure_fl.crypto.keys.roster_files import card_bytes, roster_bytes
from secure_fl.crypto.keys.vault import Cost, KeyFileKind, encrypt
from secure_fl.pilot.approvals import Approval

PLAN = """[run]
name = "ward é"

[algorithm]
name = "fedavg"
"""


def documents(book: Book) -> None:
    """Approvals, and the ids of runs."""
    _key_files(book)
    _cohort_keys(book)
    _files(book)
    _approvals(book)
    file = roster_bytes(signed_roster()).decode()
    nonces = {name: bytes_of(f"nonce {name}", 16).hex() for name in ("west", "north", "south")}
    runs = book.series("run-id", file=file, plan=PLAN, nonces=nonces)
    runs.ok("id of a run")
    runs.ok("id of a run without one member", nonces={"south": nonces["south"], "north": "00" * 16})
    runs.ok("id of a run under another plan", plan=PLAN.replace("fedavg", "fedadam"))


def _key_files(book: Book) -> None:
    secret, word = NORTH.to_private_bytes(), "an old pass phrase é"
    book.ok("private identity", "private-identity", data=secret.hex())
    named = (secret + b" x").hex()
    book.no("crypto:name", "private identity with a bad name", "private-identity", data=named)
    salt, nonce, kind = bytes_of("salt", 16), bytes_of("nonce", 12), KeyFileKind.IDENTITY
    data = encrypt(kind, secret, word, Cost(10), _salt=salt, _nonce=nonce)
    files = book.series("key-file", "keyring:", holds=1, data=data.hex(), passphrase=word)
    files.ok("key file")
    files.no("changed", "key file of another kind", holds=2)
    files.no("passphrase", "key file with a wrong passphrase", passphrase=word[:-1])
    files.no("malformed", "key file cut short", data=data[:-1].hex())
    files.no("malformed", "key file cut in its head", data=data[:40].hex())
    for code, name, at, value in (
        ("other-format", "version", 0, 2), ("changed", "kind", 1, 2), ("changed", "N of 2^9", 2, 9),
        ("changed", "N of 2^21", 2, 21), ("changed", "r of 17", 3, 17), ("changed", "p of 0", 4, 0),
        ("passphrase", "N of 2^11", 2, 11), ("passphrase", "salt", 5, 0),
        ("changed", "nonce", 21, 0), ("passphrase", "check", 33, 0), ("malformed", "length", 49, 1),
        ("changed", "body", 60, 0),
    ):  # fmt: skip
        changed = data[:at] + bytes([value]) + data[at + 1 :]
        files.no(code, f"key file with another {name}", data=changed.hex())
    much = data[:2] + bytes([20, 16, 1]) + data[5:]
    files.no("changed", "key file with too much work", data=much.hex())


def _cohort_keys(book: Book) -> None:
    roster = signed_roster()
    file = roster_bytes(roster).decode()
    tag, channel = bytes_of("tag key"), bytes_of("channel key")
    made = CohortKeys(
        roster.digest(), roster.version, roster.expires, NORTH.name, b"secret", tag, channel
    )
    keys = book.series("cohort-keys", "keyring:", data=encode_keys(made).hex(), file=file, now=NOW)
    keys.ok("cohort's keys")
    keys.no("expired", "expired keys", now="2027-01-01T00:00:00+00:00")
    other, short = replace(made, roster=bytes(32)), replace(made, tag_key=tag[:31])
    keys.no("other-roster", "keys of another roster", data=encode_keys(other).hex())
    keys.no("other-format", "keys with a short tag key", data=encode_keys(short).hex())
    empty = replace(made, secret=b"")
    keys.no("other-format", "keys without the key of 8.5", data=encode_keys(empty).hex())
    data = encode_keys(made)
    keys.no("other-format", "keys of another format", data=(b"\x98\x03" + data[2:]).hex())
    keys.no("malformed", "keys with a ninth field", data=(b"\x99" + data[1:] + b"\x00").hex())
    keys.no("malformed", "keys cut short", data=data[:-1].hex())


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
