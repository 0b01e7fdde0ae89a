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


def shared() -> dict[str, Any]:
    """The key of all ciphertexts, which all files share."""
    return dict(json.loads((FOLDER / "keys.json").read_text()))


def _hex(case: Case, *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


def _one(case: Case, name: str) -> bytes:
    return bytes.fromhex(case[name])


def _slots(of: Any) -> numbers.Slots:
    return np.array(of, np.uint64)


def _card(case: Case, name: str = "sender") -> keys.Card:
    return keys.Card.read(_one(case, name))


def _codec(case: Case) -> numbers.Codec:
    return numbers.Codec(case["bits"], case["parties"], case["extra"])


def _at(case: Case) -> tuple[str, str, int]:
    return case["run"], case["segment"], case["sum"]


def _codec_of(case: Case) -> Any:
    return {n: getattr(_codec(case), n) for n in ("levels", "offset", "width", "per_slot")}


def _quantize(case: Case) -> Any:
    values = np.array([np.nan if v is None else v for v in case["values"]], np.float32)
    return numbers.quantized(case["bits"], values, case["clip"], case["draws"])


def _unpack(case: Case) -> Any:
    of = _codec(case), _slots(case["slots"]), case["contributors"], case["values"]
    return numbers.unpack(*of).tolist()


def _segment_key(case: Case) -> Any:
    chains: dict[str, bytes] = {}
    for audience, what in case["notes"]:
        numbers.note(chains, audience, *map(bytes.fromhex, what))
    seen = numbers.common(chains, (*case["owners"], *case["readers"]), case["audience"])
    channel_key, run = _hex(case, "channel_key", "run")
    key = base.derive(channel_key, b"secure-fl agree", run)
    return numbers.segment_key(case, base.keyed(key, seen, b"seen")).hex()


def _recover(case: Case) -> Any:
    held = {int(x): bytes.fromhex(one) for x, one in case["shares"].items()}
    return numbers.recover(held, case["threshold"]).hex()


def _share(case: Case) -> Any:
    of = _one(case, "secret"), case["coefficients"]
    return {str(x): numbers.share(*of, x).hex() for x in case["holders"]}


def _tag(case: Case) -> Any:
    (key,), members = _hex(case, "key"), case["members"]
    salts = {int(peer): bytes.fromhex(one) for peer, one in case.get("salts", {}).items()}
    found = numbers.tag(key, _slots(case["slots"]), members, _at(case))
    return (found + numbers.bonds(key, members[0], salts, _at(case))) % numbers.T


def _frame(case: Case) -> Any:
    found = frames.decode(b64decode(case["frame"]), _card(case))
    address = {n: getattr(found, n) for n in ("exchange", "round", "sender", "receiver")}
    return {"run": found.run.hex(), "kind": found.message["kind"], **address}


def _link(case: Case) -> Any:
    end = frames.Link(_one(case, "run"), case["me"], _card(case), case["asks"])
    end.exchange, end.round = case["exchange"], case["round"]
    for data in case["frames"]:
        end.accept(b64decode(data))


def _roster(case: Case) -> Any:
    read = keys.read_roster(case["file"].encode())
    me = _card(case, "me") if case["me"] else None
    read.verify(datetime.fromisoformat(case["now"]), me)
    return read.digest().hex()


def _ciphertexts(case: Case) -> Any:
    key = bfv.secret_key(b64decode(shared()["cohort"]))
    parts = bfv.cut(b64decode(case["data"]), case["count"])
    return bfv.opened(key, parts, case["count"], case["contributors"]).tolist()


def _recording(case: Case) -> Any:
    key = bfv.secret_key(b64decode(case.get("cohort") or shared()["cohort"]))
    return {str(number): values for number, values in sums.Recording(case, key).play()}


def _identity(case: Case) -> keys.Identity:
    return keys.Identity(_one(case, "recipient"))


def _channel(case: Case) -> Any:
    run, context = _hex(case, "channel", "context")
    end = keys.Receiver(_identity(case), _card(case), run)
    blobs = (*case.get("before", ()), case["sealed"])
    return [end.open(bytes.fromhex(blob), context).hex() for blob in blobs][-1]


KINDS: Mapping[str, Callable[[Case], Any]] = {
    "codec": _codec_of,
    "quantize": _quantize,
    "pack": lambda c: numbers.pack(_codec(c), c["integers"]),
    "unpack": _unpack,
    "wide": lambda c: numbers.encode_wide(c["values"]),
    "unwide": lambda c: numbers.decode_wide(_slots(c["slots"]), c["contributors"]),
    "segment": lambda c: numbers.decode(c["layout"], _slots(c["slots"]), c["contributors"]),
    "masked-slots": lambda c: numbers.from_wire(_one(c, "data"), c["count"]).tolist(),
    "segment-key": _segment_key,
    "stream": lambda c: numbers.stream(
        _one(c, "secret"), *_at(c), c["purpose"], c["length"]
    ).tolist(),
    "uniform": lambda c: numbers.uniform(_one(c, "key"), c["length"], c["modulus"]).tolist(),
    "mask-key": lambda c: numbers.public(_one(c, "seed")).hex(),
    "half": lambda c: numbers.half(_one(c, "seed"), c["peer"]).hex(),
    "pair-secret": lambda c: numbers.pair_secret(
        numbers.mask_key(_one(c, "seed")), _one(c, "peer")
    ).hex(),
    "share": _share,
    "recover": _recover,
    "commitment": lambda c: base.commit(_one(c, "secret"), *c["about"]).hex(),
    "tag": _tag,
    "total": lambda c: base.require(_tag(c) == c["tag"], "tamper:wrong-sum"),
    "fingerprint": lambda c: _card(c, "card").fingerprint(),
    "signature": lambda c: _card(c).verify(*_hex(c, "digest", "signature")),
    "document": lambda c: _card(c).verify_document(*_hex(c, "digest", "signature")),
    "sealed": lambda c: keys.open_sealed(
        _identity(c), _card(c), *_hex(c, "sealed", "context")
    ).hex(),
    "channel": _channel,
    "envelope": lambda c: keys.open_envelope(
        *_hex(c, "channel_key", "run", "sealed", "context")
    ).hex(),
    "frame": _frame,
    "link": _link,
    "card": lambda c: keys.read_card(c["file"].encode()).canonical().hex(),
    "roster": _roster,
    "approval": lambda c: keys.read_approval(c["file"].encode()).hex(),
    "key-file": lambda c: keys.open_key_file(c["holds"], _one(c, "data"), c["passphrase"]).hex(),
    "private-identity": lambda c: keys.Identity(_one(c, "data")).card.canonical().hex(),
    "cohort-keys": lambda c: keys.check_keys(
        _one(c, "data"), c["file"].encode(), datetime.fromisoformat(c["now"])
    ),
    "run-id": lambda c: keys.run_id(c["file"].encode(), c["plan"], c["nonces"]).hex(),
    "ledger": keys.check_ledger,
    "ciphertexts": _ciphertexts,
    "recording": _recording,
}
