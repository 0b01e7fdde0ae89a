"""The kinds of vectors; vectors/README.md lists their fields."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from vectors.reader import base, bfv, frames, keys, numbers, sums

FOLDER = Path(__file__).resolve().parents[1]
Case = Mapping[str, Any]
KINDS: dict[str, Callable[[Case], Any]] = {}


def kind(function: Callable[[Case], Any]) -> Callable[[Case], Any]:
    """Register a kind by the function's name."""
    KINDS[function.__name__.replace("_", "-")] = function
    return function


def shared() -> dict[str, Any]:
    """The cohort's keys, which all files share."""
    return dict(json.loads((FOLDER / "keys.json").read_text()))


def _slots(of: Any) -> numbers.Slots:
    return np.array(of, np.uint64)


def _card(case: Case, name: str = "sender") -> keys.Card:
    return keys.Card.read(bytes.fromhex(case[name]))


def _codec(case: Case) -> numbers.Codec:
    return numbers.Codec(case["bits"], case["parties"], case["extra"])


@kind
def codec(case: Case) -> Any:
    """Parameters of the encoding."""
    of = _codec(case)
    return {"levels": of.levels, "offset": of.offset, "width": of.width, "per_slot": of.per_slot}


@kind
def quantize(case: Case) -> Any:
    """Values to integers, with given draws."""
    values = np.array([np.nan if v is None else v for v in case["values"]], np.float32)
    return numbers.quantized(case["bits"], values, case["clip"], case["draws"])


@kind
def pack(case: Case) -> Any:
    """Integers to slots."""
    return numbers.pack(_codec(case), case["integers"])


@kind
def unpack(case: Case) -> Any:
    """Sums of slots to sums of integers."""
    of = _codec(case), _slots(case["slots"]), case["contributors"], case["values"]
    return numbers.unpack(*of).tolist()


@kind
def wide(case: Case) -> Any:
    """Exact numbers to slots."""
    return numbers.encode_wide(case["values"])


@kind
def unwide(case: Case) -> Any:
    """Sums of slots to exact numbers."""
    return numbers.decode_wide(_slots(case["slots"]), case["contributors"])


@kind
def segment(case: Case) -> Any:
    """A segment's sums of slots to its vectors."""
    return numbers.decode(case["layout"], _slots(case["slots"]), case["contributors"])


@kind
def masked_slots(case: Case) -> Any:
    """Slots on the wire."""
    return numbers.from_wire(bytes.fromhex(case["data"]), case["count"]).tolist()


@kind
def segment_key(case: Case) -> Any:
    """A segment's digest, with the history of its readers."""
    seen = numbers.common(numbers.chain(_notes(case)), (*case["owners"], *case["readers"]))
    key = base.derive(
        bytes.fromhex(case["channel_key"]), b"secure-fl agree", bytes.fromhex(case["run"])
    )
    return numbers.segment_key(case, base.keyed(key, seen, b"seen")).hex()


def _notes(case: Case) -> list[tuple[str, list[bytes]]]:
    return [(audience, [bytes.fromhex(one) for one in what]) for audience, what in case["notes"]]


@kind
def stream(case: Case) -> Any:
    """A key stream."""
    at = case["run"], case["segment"], case["sum"], case["purpose"]
    return numbers.stream(bytes.fromhex(case["secret"]), *at, case["length"]).tolist()


@kind
def uniform(case: Case) -> Any:
    """A key stream below any modulus."""
    return numbers.uniform(bytes.fromhex(case["key"]), case["length"], case["modulus"]).tolist()


@kind
def mask_key(case: Case) -> Any:
    """A mask key, from its seed."""
    return numbers.public(bytes.fromhex(case["seed"])).hex()


@kind
def pair_secret(case: Case) -> Any:
    """The secret of two mask keys."""
    key = numbers.mask_key(bytes.fromhex(case["seed"]))
    return numbers.pair_secret(key, bytes.fromhex(case["peer"])).hex()


@kind
def share(case: Case) -> Any:
    """Shares of a seed."""
    secret = bytes.fromhex(case["secret"])
    return {str(x): numbers.share(secret, case["coefficients"], x).hex() for x in case["holders"]}


@kind
def recover(case: Case) -> Any:
    """A seed, from shares."""
    held = {int(x): bytes.fromhex(one) for x, one in case["shares"].items()}
    return numbers.recover(held, case["threshold"]).hex()


@kind
def commitment(case: Case) -> Any:
    """A commitment to a share or a seed."""
    return base.commit(bytes.fromhex(case["secret"]), *case["about"]).hex()


@kind
def tag(case: Case) -> Any:
    """A tag, with the salts of single peers."""
    at, key = (case["run"], case["segment"], case["sum"]), bytes.fromhex(case["key"])
    found = numbers.tag(key, _slots(case["slots"]), case["members"], at)
    salts = {int(peer): bytes.fromhex(one) for peer, one in case.get("salts", {}).items()}
    return (found + numbers.bonds(key, case["members"][0], salts, at)) % numbers.T


@kind
def total(case: Case) -> Any:
    """An opened total and its tag."""
    at, key = (case["run"], case["segment"], case["sum"]), bytes.fromhex(case["key"])
    found = numbers.tag(key, _slots(case["slots"]), case["members"], at)
    base.require(found == case["tag"], "tamper:wrong-sum")


@kind
def fingerprint(case: Case) -> Any:
    """A card's fingerprint."""
    return _card(case, "card").fingerprint()


@kind
def signature(case: Case) -> Any:
    """A signature of a digest."""
    _card(case).verify(bytes.fromhex(case["digest"]), bytes.fromhex(case["signature"]))


@kind
def sealed(case: Case) -> Any:
    """A message to one site."""
    me = keys.Identity(bytes.fromhex(case["recipient"]))
    blob, context = bytes.fromhex(case["sealed"]), bytes.fromhex(case["context"])
    return keys.open_sealed(me, _card(case), blob, context).hex()


@kind
def channel(case: Case) -> Any:
    """A message in a channel."""
    me = keys.Identity(bytes.fromhex(case["recipient"]))
    fields = (bytes.fromhex(case[name]) for name in ("channel", "sealed", "context"))
    return keys.open_channel(me, _card(case), *fields).hex()


@kind
def envelope(case: Case) -> Any:
    """A value for all parties."""
    fields = (bytes.fromhex(case[name]) for name in ("channel_key", "run", "sealed", "context"))
    return keys.open_envelope(*fields).hex()


@kind
def frame(case: Case) -> Any:
    """A single frame: its address and the kind of its message."""
    found = frames.decode(b64decode(case["frame"]), _card(case))
    return {
        "run": found.run.hex(), "exchange": found.exchange, "round": found.round,
        "sender": found.sender, "receiver": found.receiver, "kind": found.message["kind"],
    }  # fmt: skip


@kind
def link(case: Case) -> Any:
    """The frames that one end gets, in their order."""
    end = frames.Link(bytes.fromhex(case["run"]), case["me"], _card(case), case["asks"])
    end.exchange, end.round = case["exchange"], case["round"]
    for data in case["frames"]:
        end.accept(b64decode(data))


@kind
def card(case: Case) -> Any:
    """A card's file."""
    return keys.read_card(case["file"].encode()).canonical().hex()


@kind
def roster(case: Case) -> Any:
    """A roster's file, at a time, for one member or for nobody."""
    read = keys.read_roster(case["file"].encode())
    me = _card(case, "me") if case["me"] else None
    read.verify(datetime.fromisoformat(case["now"]), me)
    return read.digest().hex()


@kind
def ledger(case: Case) -> Any:
    """A ledger's rows."""
    keys.check_ledger(case)


@kind
def ciphertexts(case: Case) -> Any:
    """Ciphertexts of an upload or a total."""
    key = bfv.secret_key(b64decode(shared()["cohort"]))
    parts = bfv.cut(b64decode(case["data"]), case["count"])
    return bfv.opened(key, parts, case["count"], case["contributors"]).tolist()


@kind
def recording(case: Case) -> Any:
    """A recorded run; the values of all sums that its reader opens."""
    key = bfv.secret_key(b64decode(case.get("cohort") or shared()["cohort"]))
    played = sums.Recording(case, key).play()
    return {str(number): values for number, values in played}
