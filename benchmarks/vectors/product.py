"""The kinds of vectors, by the product's own functions."""

from __future__ import annotations

import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.vectors.replay import Replay, layout_of, public_of
from secure_fl.crypto.keys import vault
from secure_fl.crypto.keys.identity import (
    Channel,
    Identity,
    commit,
    derive,
    keyed_digest,
    open_sealed,
)
from secure_fl.crypto.keys.keyring import decode_keys
from secure_fl.crypto.keys.roster_files import read_card, read_roster
from secure_fl.crypto.privacy.ledger_store import Chain, LedgerRow
from secure_fl.crypto.sealing import masking, packing, secret, tags
from secure_fl.crypto.sealing.envelopes import Envelopes, PartyKeys
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.public import to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.transcript import SeenHistory
from secure_fl.errors import SecureFLError
from secure_fl.pilot import approvals
from secure_fl.pilot.plan import run_id
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame, Link
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group, Rule

Case = Mapping[str, Any]
T = COHORT.modulus


def code_of(error: SecureFLError) -> str:
    """Return the stated reason of a refusal: the class's code, and its reason or field."""
    detail = error.reason or error.where.get("field")
    return f"{error.code}:{detail}" if detail else error.code


def _one(case: Case, name: str) -> bytes:
    return bytes.fromhex(case[name])


def _slots(of: Any) -> packing.Slots:
    return np.array(of, np.uint64)


def _hex(case: Case, *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


def _codec(case: Case) -> packing.Codec:
    return packing.Codec(case["bits"], case["parties"], T, case["extra"])


def _codec_of(case: Case) -> Any:
    of = _codec(case)
    return {name: getattr(of, name) for name in ("levels", "offset", "width", "per_slot")}


class _Draws:
    """A generator that returns given draws of 16 bits."""

    def __init__(self, draws: list[int]) -> None:
        self.draws, self.bit_generator = draws, self

    def random_raw(self, size: int) -> Any:
        """Return the draws, four to a word."""
        return np.array([*self.draws, *[0] * (4 * size - len(self.draws))], "<u2").view(np.uint64)


def _quantize(case: Case) -> Any:
    values = np.array([np.nan if v is None else v for v in case["values"]], np.float32)
    codec = packing.Codec(case["bits"], 1, T)
    rng: Any = _Draws(case["draws"])
    return packing.quantize(codec, values, case["clip"], rng)[0].tolist()


def _grid(scale: float | None) -> Any:
    return None if scale is None else SimpleNamespace(scale=scale)


def _segment_key(case: Case) -> Any:
    key, run = _hex(case, "channel_key", "run")
    seen, host = SeenHistory(), case["audience"] == "host"
    for audience, what in case["notes"]:
        seen.note(audience, *map(bytes.fromhex, what))
    noise: Any = case["noise"] and SimpleNamespace(scale=case["noise"][0], reach=case["noise"][1])
    rule = Rule(Audience(case["audience"]), case["carry"], case["bound"], noise)
    vectors = {name: np.zeros(size, np.float32) for name, size in case["vectors"]}
    group = Group(tuple(case["owners"]), vectors, tuple(case["readers"]))
    common = seen.by((*group.owners, *group.readers), host=host)
    digest_key = derive(key, b"secure-fl agree", run)
    at = case["at"][0], case["at"][1]
    return packing.segment_key(group, rule, at, keyed_digest(digest_key, common, b"seen")).hex()


def _stream_of(case: Case) -> StreamId:
    return StreamId(case["run"], case["segment"], case["sum"])


def _stream(case: Case) -> Any:
    key = masking.stream_key(bytes.fromhex(case["secret"]), _stream_of(case), case["purpose"])
    return masking.uniform(key, case["length"], T).tolist()


def _uniform(case: Case) -> Any:
    return masking.uniform(bytes.fromhex(case["key"]), case["length"], case["modulus"]).tolist()


def _pair_secret(case: Case) -> Any:
    seed, peer = _hex(case, "seed", "peer")
    return masking.agree(masking.mask_key(seed), peer).hex()


def _share(case: Case) -> Any:
    """Share with given coefficients: those of the highest power are drawn first."""
    from unittest.mock import patch

    drawn = iter(reversed(case["coefficients"]))
    with patch.object(secrets, "randbelow", lambda below: next(drawn)):
        shares = masking.share_secret(
            bytes.fromhex(case["secret"]), len(case["coefficients"]) + 1, case["holders"]
        )
    return {str(holder): share.hex() for holder, share in shares.items()}


def _recover(case: Case) -> Any:
    held = {int(holder): bytes.fromhex(one) for holder, one in case["shares"].items()}
    return masking.recover_secret(held, case["threshold"]).hex()


def _tag(case: Case) -> Any:
    (key,), stream = _hex(case, "key"), _stream_of(case)
    found = tags.make(key, _slots(case["slots"]), case["members"], T, stream)
    salts = {int(peer): bytes.fromhex(one) for peer, one in case.get("salts", {}).items()}
    return (found + tags.bonds(key, case["members"][0], salts, T, stream)) % T


def _total(case: Case) -> Any:
    key, slots = bytes.fromhex(case["key"]), _slots(case["slots"])
    tags.check(key, slots, case["tag"], case["members"], T, _stream_of(case))


def _signature(case: Case) -> Any:
    sender, digest, signature = _hex(case, "sender", "digest", "signature")
    public_of(sender).verify(digest, signature)


def _document(case: Case) -> Any:
    sender, digest, signature = _hex(case, "sender", "digest", "signature")
    public_of(sender).verify_document(digest, signature)


def _sealed(case: Case) -> Any:
    me, sender, blob, context = _hex(case, "recipient", "sender", "sealed", "context")
    return open_sealed(Identity.from_private_bytes(me), public_of(sender), blob, context).hex()


def _channel(case: Case) -> Any:
    me, sender, run, context = _hex(case, "recipient", "sender", "channel", "context")
    end = Channel(Identity.from_private_bytes(me), public_of(sender), run)
    blobs = (*case.get("before", ()), case["sealed"])
    return [end.open(bytes.fromhex(blob), context).hex() for blob in blobs][-1]


def _envelope(case: Case) -> Any:
    key, run, sealed, context = _hex(case, "channel_key", "run", "sealed", "context")
    keys = PartyKeys(Identity.generate("east"), {}, None, b"", key)
    return Envelopes(keys, run).open(sealed, context).hex()


def _frame(case: Case) -> Any:
    frame = Frame.from_bytes(b64decode(case["frame"]))
    found = frames.decode(frame, public_of(bytes.fromhex(case["sender"])).verify)
    address = {name: getattr(found, name) for name in ("exchange", "round", "sender", "receiver")}
    return {"run": found.run.hex(), "kind": type(found.message).__name__, **address}


def _link(case: Case) -> Any:
    me, peer = Identity.generate(case["me"]), public_of(bytes.fromhex(case["sender"]))
    end = Link(bytes.fromhex(case["run"]), me, peer, case["asks"], case["exchange"], case["round"])
    for data in case["frames"]:
        end.unpack(Frame.from_bytes(b64decode(data)))


def _roster(case: Case) -> Any:
    read = read_roster(case["file"].encode())
    me = public_of(bytes.fromhex(case["me"])) if case["me"] else None
    read.verify(now=datetime.fromisoformat(case["now"]), me=me)
    return read.digest().hex()


def _keys(case: Case) -> Any:
    found = decode_keys(_one(case, "data"))
    now = datetime.fromisoformat(case["now"])
    found.check(read_roster(case["file"].encode()), now=now)
    return found.fingerprint()


def _run_id(case: Case) -> Any:
    nonces = {name: bytes.fromhex(one) for name, one in case["nonces"].items()}
    return run_id(read_roster(case["file"].encode()), case["plan"], nonces).hex()


def _ledger(case: Case) -> Any:
    anchor = case["anchor"] and (
        case["anchor"][0],
        bytes.fromhex(case["anchor"][1]),
        bytes.fromhex(case["anchor"][2]),
    )
    chain = Chain(
        tuple(LedgerRow(*row) for row in case["rows"]),
        tuple(map(bytes.fromhex, case["hashes"])),
        tuple(map(bytes.fromhex, case["signatures"])),
        anchor,
    )
    chain.check_all(chain.owner, pinned=bytes.fromhex(case["pinned"]) or None)


KINDS: Mapping[str, Callable[[Case], Any]] = {
    "codec": _codec_of,
    "quantize": _quantize,
    "pack": lambda c: packing.pack(_codec(c), np.array(c["integers"], np.int64)).tolist(),
    "unpack": lambda c: packing.unpack(
        _codec(c), _slots(c["slots"]), c["contributors"], c["values"]
    ).tolist(),
    "wide": lambda c: packing.encode_wide(np.array(c["values"], np.float64)).tolist(),
    "unwide": lambda c: packing.decode_wide(_slots(c["slots"]), c["contributors"]).tolist(),
    "segment": lambda c: {
        name: values.tolist()
        for name, values in layout_of(c["layout"])
        .decode(_slots(c["slots"]), c["contributors"], _grid(c["layout"]["scale"]))[0]
        .items()
    },
    "masked-slots": lambda c: packing.to_slots(_one(c, "data"), c["count"], T).tolist(),
    "segment-key": _segment_key,
    "stream": _stream,
    "uniform": _uniform,
    "mask-key": lambda c: masking.public_key(_one(c, "seed")).hex(),
    "half": lambda c: masking.half(_one(c, "seed"), c["peer"]).hex(),
    "pair-secret": _pair_secret,
    "share": _share,
    "recover": _recover,
    "commitment": lambda c: commit(_one(c, "secret"), *c["about"]).hex(),
    "tag": _tag,
    "total": _total,
    "fingerprint": lambda c: public_of(_one(c, "card")).fingerprint(),
    "signature": _signature,
    "document": _document,
    "sealed": _sealed,
    "channel": _channel,
    "envelope": _envelope,
    "frame": _frame,
    "link": _link,
    "card": lambda c: read_card(c["file"].encode()).canonical().hex(),
    "roster": _roster,
    "approval": lambda c: approvals.read(c["file"].encode(), "").digest().hex(),
    "cohort-keys": _keys,
    "run-id": _run_id,
    "key-file": lambda c: vault.decrypt(
        vault.KeyFileKind(c["holds"]), _one(c, "data"), c["passphrase"]
    ).hex(),
    "private-identity": lambda c: (
        Identity.from_private_bytes(_one(c, "data")).public.canonical().hex()
    ),
    "ledger": _ledger,
}


def kinds(cohort: bytes) -> Mapping[str, Callable[[Case], Any]]:
    """Return all kinds; `cohort`: the key of ciphertexts."""

    def ciphertexts(case: Case) -> Any:
        parts = to_parts(b64decode(case["data"]), case["count"])
        key = secret.SecretKey.from_bytes(cohort)
        return secret.open(key, parts, case["count"], case["contributors"]).tolist()

    def recording(case: Case) -> Any:
        own = b64decode(case["cohort"]) if "cohort" in case else cohort
        return Replay(case, own).play()

    return {**KINDS, "ciphertexts": ciphertexts, "recording": recording}
