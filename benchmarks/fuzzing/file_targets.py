"""Targets in files that people or machines hand over: cards, rosters, kits, plans, models.

Where a signature covers a content, `signed` ones get a genuine signature of their author first, so
that the decoder behind it is reached: a member can sign what it likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.fuzzing.target import FuzzTarget, same
from benchmarks.fuzzing.world import (
    HUB,
    NORTH,
    SOUTH,
    cohort_keys,
    folder,
    ledger_file,
    plan,
    roster,
)
from secure_fl.crypto.keys import keyring
from secure_fl.crypto.keys.identity import seal_to
from secure_fl.crypto.keys.keyring import decode_keys, encode_keys, open_bundle
from secure_fl.crypto.keys.roster_files import card_bytes, read_card, read_roster, roster_bytes
from secure_fl.crypto.privacy import ledger
from secure_fl.crypto.privacy.ledger_store import NOTHING, Chain, LedgerRow, head_digest
from secure_fl.crypto.sealing.secret import SecretKey
from secure_fl.errors import SecureFLError, WireError
from secure_fl.learning.exporting import CARD, export, load_exported
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.pilot import approvals, kits
from secure_fl.pilot.approvals import Approval
from secure_fl.pilot.kits import CONNECTION, load_kit, write_kits
from secure_fl.pilot.plan import read_plan, write_plan
from secure_fl.runs import checkpoint
from secure_fl.settings import ModelSettings, TaskSettings

BUNDLE, RULES = b"bundle", {"site.max_rounds": "10"}


def card(data: bytes) -> None:
    """Read a card."""
    of = read_card(data)
    of.fingerprint()
    of.encapsulate()


def a_roster(data: bytes) -> None:
    """Read a roster, and check it as a site does."""
    of = read_roster(data)
    same(read_roster(roster_bytes(of)), of)
    for me in (None, NORTH.public, SOUTH.public):
        with suppress(SecureFLError):
            of.verify(me=me)
    with suppress(SecureFLError):
        of.check()
        of.bound  # noqa: B018 - a property that computes
        of.sign(SOUTH)


def _rosters() -> dict[str, bytes]:
    return {"plain": roster_bytes(roster()), "tiers": roster_bytes(roster("large"))}


# --- kits and bundles -----------------------------------------------------------------------------


def kit(data: bytes) -> None:
    """Open the file of a kit."""
    with folder() as place:
        (place / "north.kit").write_bytes(data)
        kits.open_kit(place / "north.kit", NORTH, place / "kit")


@cache
def _kit() -> Mapping[str, bytes]:
    """Return the files of a site's kit."""
    with folder() as place:
        made = write_kits(roster(), place, ["localhost"], 8443, days=3650)["north"]
        files = {file.name: file.read_bytes() for file in made.iterdir() if file.suffix != ".json"}
        files[CONNECTION] = (made / CONNECTION).read_bytes()
    return files | {kits.PLAN: write_plan(plan()).encode(), kits.BUNDLE: BUNDLE}


def _kit_file(contents: bytes) -> bytes:
    """Seal contents to a site, as the coordinator can."""
    of = roster()
    sealed = seal_to(HUB, NORTH.public, contents, kits._context(of))
    file = kits._File(kits.FORMAT, "north", roster_bytes(of), sealed)
    return msgspec.msgpack.encode(file)


def kit_contents(data: bytes) -> None:
    """Open a kit with contents that its coordinator sealed, and load it."""
    with folder() as place:
        (place / "north.kit").write_bytes(_kit_file(data))
        opened = kits.open_kit(place / "north.kit", NORTH, place / "kit")
        found = load_kit(opened)
        found.warnings()


def bundle(data: bytes) -> None:
    """Open the bundle of a ceremony."""
    open_bundle(NORTH, roster(), data)


def _bundle(plain: bytes) -> bytes:
    sealed = seal_to(SOUTH, NORTH.public, plain, keyring._context(roster()))
    return msgspec.msgpack.encode((keyring.FORMAT, SOUTH.name, NORTH.name, sealed))


def bundle_keys(data: bytes) -> None:
    """Decode keys as they are in a bundle, and use them."""
    keys = decode_keys(data)
    same(decode_keys(encode_keys(keys)).fingerprint(), keys.fingerprint())
    SecretKey.from_bytes(keys.secret)
    keys.check(roster())


# --- approvals, plans and ledgers -----------------------------------------------------------------


def _judged(approval: Approval) -> None:
    approval.facts()
    approval.changes(plan(), RULES)


def approval(data: bytes) -> None:
    """Read an approval, and compare it with a plan and rules; then one that its author signed."""
    with suppress(SecureFLError):
        _judged(approvals.read(data, "file"))
    try:
        of = msgspec.json.decode(data, type=Approval)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError("this is no approval") from None
    card = NORTH.public
    of = msgspec.structs.replace(
        of, who=card.name, signing=card.signing, agreement=card.agreement, signature=b""
    )
    signed = msgspec.structs.replace(of, signature=NORTH.sign_document(of.digest()))
    _judged(approvals.read(msgspec.json.encode(signed), "file"))


def _approvals() -> dict[str, bytes]:
    return {"approval": msgspec.json.encode(Approval.make(NORTH, "north", plan(), RULES))}


def a_plan(data: bytes) -> None:
    """Read a plan of the coordinator."""
    of = read_plan(data.decode("utf-8", "replace"))
    same(read_plan(write_plan(of)), of)


def _plans() -> dict[str, bytes]:
    return {"fedavg": write_plan(plan()).encode()}


def _shown(chain: Chain) -> None:
    """Check and show a ledger, as `secure-fl ledger` does."""
    chain.check_all(chain.owner)
    ledger.notes(chain)
    ledger.export(chain)


def ledger_of(data: bytes) -> None:
    """Read the file of a ledger."""
    with folder() as place:
        (place / "ledger.db").write_bytes(data)
        _shown(ledger.load_chain(place / "ledger.db"))


def ledger_rows(data: bytes) -> None:
    """Read rows that the ledger's owner chained and signed."""
    try:
        rows = [LedgerRow(*row) for row in msgspec.json.decode(data, type=list[_Row])]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError("these are no rows") from None
    previous, hashes = NOTHING, []
    for row in rows:
        previous = row.chained(previous)
        hashes.append(previous)
    last = len(rows) - 1
    anchor = last, previous, NORTH.sign(head_digest(max(last, 0), previous))
    _shown(Chain(tuple(rows), tuple(hashes), tuple(map(NORTH.sign, hashes)), anchor))


_Row = tuple[  # the columns of the table, which is strict
    int, str, str, str, str, str, str, float | None, float | None, str, int | None, int | None
]


# --- checkpoints and models -----------------------------------------------------------------------


@cache
def _state() -> Mapping[str, Any]:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": np.ones(2, np.float32)}
    return {
        "shared": {"model": tensors, "counts": [1, 2.5, None, "x"], "pair": (torch.ones(1), True)},
        "sums": {"scale": {"a": 1.0}},
    }


def handed_over(data: bytes) -> None:
    """Read the state that another party hands over to a newcomer."""
    of = checkpoint.from_bytes(data)
    with suppress(SecureFLError):
        checkpoint.to_bytes(of)


def checkpoint_file(data: bytes) -> None:
    """Load a checkpoint's file: the same bytes as the state that is handed over."""
    with folder() as place:
        (place / "round-00001").write_bytes(data)
        checkpoint.load(place / "round-00001")


def model_folder(data: bytes) -> None:
    """Load an exported model, of which some files of JSON are others."""
    try:
        files = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError("these are no files") from None
    with folder() as place:
        for name, content in _model().items():
            (place / name).write_bytes(content)
            if name.endswith(".json") and name in files:
                (place / name).write_bytes(msgspec.json.encode(files[name]))
        load_exported(place)


@cache
def _model() -> Mapping[str, bytes]:
    """Return the files of a small exported model."""
    with folder() as place:
        task = make_task(TaskSettings(labels=("no", "yes"), max_length=32))
        spec = ModelSettings(layers=1)
        tokenizer = load_tokenizer(spec)
        export(load_model(spec, task, tokenizer, 0), tokenizer, place, task)
        return {file.name: file.read_bytes() for file in place.iterdir()}


def _models() -> dict[str, bytes]:
    few = {n: msgspec.json.decode(d) for n, d in _model().items() if n in (CARD, "config.json")}
    return {"card": msgspec.json.encode({CARD: few[CARD]}), "both": msgspec.json.encode(few)}


FILES = {
    "cards": FuzzTarget(card, lambda: {"north": card_bytes(NORTH)}, "json"),
    "rosters": FuzzTarget(a_roster, _rosters, "json"),
    "kits": FuzzTarget(kit, lambda: {"kit": _kit_file(msgspec.msgpack.encode(_kit()))}, "msgpack"),
    "kit-contents": FuzzTarget(
        kit_contents, lambda: {"kit": msgspec.msgpack.encode(_kit())}, "msgpack"
    ),
    "bundles": FuzzTarget(bundle, lambda: {"b": _bundle(encode_keys(cohort_keys()))}, "msgpack"),
    "bundle-keys": FuzzTarget(bundle_keys, lambda: {"b": encode_keys(cohort_keys())}, "msgpack"),
    "approvals": FuzzTarget(approval, _approvals, "json"),
    "plans": FuzzTarget(a_plan, _plans),
    "ledgers": FuzzTarget(ledger_of, lambda: {"ledger": ledger_file()[0]}),
    "ledger-rows": FuzzTarget(ledger_rows, lambda: {"ledger": ledger_file()[1]}, "json"),
    "checkpoints": FuzzTarget(handed_over, lambda: {"state": checkpoint.to_bytes(_state())}),
    "checkpoint-files": FuzzTarget(
        checkpoint_file, lambda: {"state": checkpoint.to_bytes(_state())}
    ),
    "models": FuzzTarget(model_folder, _models, "json"),
}
