"""Identities, sealed messages, cards, rosters and ledgers (2, 3 and 11)."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from vectors.reader.base import (
    Refused,
    derive,
    labelled,
    one_value,
    require,
    spoken,
    unpacked,
)
from vectors.reader.numbers import pair_secret

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?[0-5]\d)", re.ASCII)
V2 = b"\x02"
POINT, KEM, CIPHERTEXT = 32, 1184, 1088  # bytes: X25519 keys; keys and ciphertexts of ML-KEM-768
SIGNING, SIGNED = 32 + 1952, 64 + 3309  # bytes of keys and of signatures: Ed25519, then ML-DSA-65
PRIVATE = 1 + 32 + 32 + 32 + 64


class Card(NamedTuple):
    """The public half of an identity (2.1)."""

    name: str
    signing: bytes  # of Ed25519, then of ML-DSA-65
    agreement: bytes  # of X25519, then of ML-KEM-768

    @classmethod
    def read(cls, data: bytes) -> Card:
        """The card of its canonical bytes."""
        start = 1 + SIGNING
        cut = start + POINT + KEM
        return cls.of(data[cut:].decode(), data[1:start], data[start:cut])

    @classmethod
    def of(cls, name: str, signing: bytes, agreement: bytes) -> Card:
        """Check the fields."""
        require(bool(NAME.fullmatch(name)), "crypto:name")
        require((len(signing), len(agreement)) == (SIGNING, POINT + KEM), "crypto:key")
        return cls(name, signing, agreement)

    def canonical(self) -> bytes:
        """The same bytes at every site."""
        return V2 + self.signing + self.agreement + self.name.encode()

    @property
    def point(self) -> bytes:
        """The X25519 key."""
        return self.agreement[:POINT]

    def fingerprint(self) -> str:
        """The fingerprint that people compare."""
        return spoken(labelled(b"secure-fl identity", self.canonical()))

    def verify(self, digest: bytes, signature: bytes) -> None:
        """Check a signature of a digest (2.2)."""
        require(len(digest) in (32, 48, 64), "crypto:digest")
        try:
            Ed25519PublicKey.from_public_bytes(self.signing[:32]).verify(signature, digest)
        except (InvalidSignature, ValueError):
            raise Refused("crypto:signature") from None

    def verify_document(self, digest: bytes, signature: bytes) -> None:
        """Check both signatures of a document's digest (2.2)."""
        self.verify(digest, signature[:64])
        try:
            MLDSA65PublicKey.from_public_bytes(self.signing[32:]).verify(signature[64:], digest)
        except (InvalidSignature, ValueError):
            raise Refused("crypto:signature") from None


class Identity:
    """Private keys."""

    def __init__(self, data: bytes) -> None:
        require(data[:1] == V2 and len(data) > PRIVATE, "crypto:version")
        signing = Ed25519PrivateKey.from_private_bytes(data[1:33])
        mldsa = MLDSA65PrivateKey.from_seed_bytes(data[33:65])
        self.agreement = X25519PrivateKey.from_private_bytes(data[65:97])
        self.kem = MLKEM768PrivateKey.from_seed_bytes(data[97:PRIVATE])
        private = signing, mldsa, self.agreement, self.kem
        key, more, point, kem = (one.public_key().public_bytes_raw() for one in private)
        self.card = Card.of(data[PRIVATE:].decode(), key + more, point + kem)

    def x25519(self, card: Card) -> bytes:
        """The secret of X25519 with another site."""
        return pair_secret(self.agreement, card.point)


def open_sealed(me: Identity, sender: Card, blob: bytes, context: bytes) -> bytes:
    """A message to one site (2.3)."""
    cut = 1 + POINT + CIPHERTEXT
    require(len(blob) >= cut + SIGNED + 16, "crypto:length")
    require(blob[:1] == V2, "crypto:version")
    sent, body = blob[1:cut], blob[cut:]
    secret = pair_secret(me.agreement, sent[:POINT]) + me.kem.decapsulate(sent[POINT:])
    parts = sent, sender.canonical(), me.card.canonical()
    both = derive(secret, b"secure-fl seal", *parts, length=44)
    opened = _decrypted(both[:32], both[32:], body, V2 + context)
    signature, content = opened[:SIGNED], opened[SIGNED:]
    signed = sent, me.card.canonical(), context, content
    sender.verify_document(labelled(b"secure-fl sealed", *signed), signature)
    return content


class Receiver:
    """One member's end of a channel with another, for messages in one direction (2.4)."""

    def __init__(self, me: Identity, sender: Card, run: bytes) -> None:
        self.me, self.sender, self.run, self.root = me, sender, run, b""

    def open(self, blob: bytes, context: bytes) -> bytes:
        """A message."""
        with_text = blob[1:2] == b"\x01"
        start = 2 + (CIPHERTEXT if with_text else 0)
        require(len(blob) >= start + 12 + 16, "crypto:length")
        require(blob[:1] == V2, "crypto:version")
        root, sent, nonce = self.root, blob[2:start], blob[start : start + 12]
        if with_text:
            secret = self.me.x25519(self.sender) + self.me.kem.decapsulate(sent)
            ends = self.sender.canonical(), self.me.card.canonical()
            root = derive(secret, b"secure-fl channel", self.run, sent, *ends)
        require(with_text or (blob[1] == 0 and bool(root)), "crypto:seal")
        key = derive(root, b"secure-fl channel message", context)
        opened = _decrypted(key, nonce, blob[start + 12 :], V2 + context)
        self.root = root
        return opened


def _decrypted(
    key: bytes, nonce: bytes, body: bytes, about: bytes, code: str = "crypto:seal"
) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, body, about)
    except (InvalidTag, ValueError):
        raise Refused(code) from None


def open_envelope(channel_key: bytes, run: bytes, data: bytes, context: bytes) -> bytes:
    """A value for all parties (2.5)."""
    key = derive(channel_key, b"secure-fl envelope", run)
    return _decrypted(key, data[:12], data[12:], context, "tamper:relayed-value")


# --- cards and rosters (3) ---------------------------------------------------------------


def _json(data: bytes, fields: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    try:
        read = json.loads(data.decode())
        json.dumps(read, ensure_ascii=False).encode()  # no half of a surrogate pair
    except (ValueError, RecursionError):
        raise Refused("keyring:malformed") from None
    _closed(read, fields)
    require(read["format"] == 2, "keyring:other-format")
    return dict(read)


def _closed(read: Any, fields: Mapping[str, Callable[[Any], bool]]) -> None:
    fits = isinstance(read, dict) and read.keys() == fields.keys()
    require(fits and all(is_valid(read[f]) for f, is_valid in fields.items()), "keyring:malformed")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return type(value) is int


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2**31


def _base64(value: Any) -> bool:
    try:
        return _text(value) and len(value) % 4 == 0 and b64decode(value, validate=True) is not None
    except ValueError:
        return False


def _moment(value: Any) -> bool:
    try:
        return _text(value) and bool(MOMENT.fullmatch(value)) and bool(_date(value))
    except ValueError:
        return False


def _date(value: str) -> datetime:
    return datetime.fromisoformat(value.upper())


CARD = {"name": _text, "signing": _base64, "agreement": _base64}
CARD_FILE = {
    "format": _whole,
    "card": lambda v: v is not None,
    "signature": _base64,
    "fingerprint": _text,
}
ROSTER_FILE: dict[str, Callable[[Any], bool]] = {
    "format": _whole, "version": _count, "threshold": lambda v: v is None or _count(v),
    "created": _moment, "expires": _moment, "coordinator": lambda v: True,
    "members": lambda v: isinstance(v, list), "fingerprint": _text,
    "signatures": lambda v: isinstance(v, dict) and all(map(_base64, v.values())),
}  # fmt: skip
MEMBER: dict[str, Callable[[Any], bool]] = {
    "role": lambda v: v in ("party", "host"),
    "tier": lambda v: v is None or (_text(v) and len(v) <= 64),
    "card": lambda v: True,
}


def _card(read: Any) -> Card:
    try:
        card = Card.of(read["name"], b64decode(read["signing"]), b64decode(read["agreement"]))
        pair_secret(X25519PrivateKey.generate(), card.point)
        require(card.point[-1] < 0x80, "crypto:point")
        packed = int.from_bytes(card.agreement[POINT:-32], "little")
        require(all(packed >> at & 0xFFF < 3329 for at in range(0, 768 * 12, 12)), "crypto:kem")
        return card
    except Refused:
        raise Refused("keyring:card") from None


def read_card(data: bytes) -> Card:
    """A card (3.1)."""
    read = _json(data, CARD_FILE)
    _closed(read["card"], CARD)
    card = _card(read["card"])
    try:
        digest = labelled(b"secure-fl card", card.canonical())
        card.verify_document(digest, b64decode(read["signature"]))
    except Refused:
        raise Refused("keyring:card") from None
    require(card.fingerprint() == read["fingerprint"], "keyring:changed")
    return card


class Roster(NamedTuple):
    """A roster (3.2)."""

    coordinator: Card
    members: list[tuple[Card, str, str | None]]  # in order of names: card, role, tier
    threshold: int | None
    created: datetime
    expires: datetime
    version: int
    signatures: dict[str, bytes]

    def canonical(self) -> bytes:
        """The signed content."""
        head = self.version, self.threshold or 0, self.created.isoformat(), self.expires.isoformat()
        fields = [*(str(one).encode() for one in head), self.coordinator.canonical()]
        for card, role, tier in self.members:
            named = b"" if tier is None else b"tier " + tier.encode()
            fields += [card.name.encode(), role.encode(), named, card.canonical()]
        return b"\x01" + b"".join(len(f).to_bytes(4, "big") + f for f in fields)

    def digest(self) -> bytes:
        """The digest that members sign."""
        return labelled(b"secure-fl roster", self.canonical())

    def check(self) -> None:
        """The rules of 3.2, in their order."""
        names = [card.name for card, _, _ in self.members]
        folded = [name.casefold() for name in names]
        require(len(set(folded)) == len(folded), "keyring:duplicate-names")
        require(sum(role == "host" for _, role, _ in self.members) <= 1, "keyring:several-hosts")
        n = sum(role == "party" for _, role, _ in self.members)
        require(n > 0, "keyring:no-party")
        cards = [self.coordinator, *(card for card, _, _ in self.members)]
        pairs = [pair for card in cards for pair in (card.signing, card.agreement)]
        keys = [key for pair in pairs for key in (pair[:32], pair[32:])]
        require(len(set(keys)) == len(keys), "keyring:shared-key")
        require(self.threshold is None or n < 2 * self.threshold <= 2 * n, "keyring:threshold")
        require(self.created < self.expires and self.version >= 1, "keyring:dates")

    def verify(self, now: datetime, me: Card | None) -> None:
        """Check the signatures, and the time."""
        self.check()
        cards = {card.name: card for card, _, _ in self.members}
        require(self.signatures.keys() <= cards.keys(), "keyring:not-listed")
        if me is not None:
            require(me.name in cards, "keyring:not-listed")
            require(cards[me.name] == me, "keyring:other-keys")
        require(
            bool(self.signatures) and (me is None or me.name in self.signatures), "keyring:unsigned"
        )
        for name, signature in self.signatures.items():
            try:
                cards[name].verify_document(self.digest(), signature)
            except Refused:
                raise Refused("keyring:signature") from None
        require(now < self.expires, "keyring:expired")


def read_roster(data: bytes) -> Roster:
    """A roster's file; its rules are checked apart."""
    read = _json(data, ROSTER_FILE)
    for one in read["members"]:
        _closed(one, MEMBER)
    for card in (read["coordinator"], *(one["card"] for one in read["members"])):
        _closed(card, CARD)
    members = [(_card(one["card"]), one["role"], one["tier"]) for one in read["members"]]
    coordinator = _card(read["coordinator"])
    require(all((tier or "").isprintable() for _, _, tier in members), "keyring:malformed")
    dates = (_date(read[name]) for name in ("created", "expires"))
    try:
        whole = [date.astimezone(UTC).replace(microsecond=0) for date in dates]
    except OverflowError:
        raise Refused("keyring:dates") from None
    members.sort(key=lambda member: member[0].name)
    signatures = {name: b64decode(of) for name, of in read["signatures"].items()}
    (created, expires), threshold = whole, read["threshold"]
    rest = created, expires, read["version"], signatures
    roster = Roster(coordinator, members, threshold, *rest)
    require(spoken(roster.digest()) == read["fingerprint"], "keyring:changed")
    return roster


def open_key_file(kind: int, data: bytes, passphrase: str) -> bytes:
    """The secret in a key file (2.7)."""
    require(data[:1] == b"\x01", "keyring:other-format")
    head, body = data[:53], data[53:]
    fits = len(head) == 53 and len(body) == int.from_bytes(head[49:], "big") >= 16
    require(fits, "keyring:malformed")
    log_n, r, p = head[2:5]
    bounded = 10 <= log_n <= 20 and 1 <= r <= 16 and 1 <= p <= 16 and r * p << log_n <= 1 << 23
    require(head[1] == kind and bounded, "keyring:changed")
    both = Scrypt(salt=head[5:21], length=48, n=1 << log_n, r=r, p=p).derive(passphrase.encode())
    require(both[32:] == head[33:49], "keyring:passphrase")
    return _decrypted(both[:32], head[21:33], body, head, "keyring:changed")


def check_keys(data: bytes, roster: bytes, now: datetime) -> str:
    """The fingerprint of the cohort's keys, if they are of this roster and valid (2.6)."""
    try:
        require(data[:1] == b"\x98", "keyring:malformed")
        form, of, version, expires, dealer, secret, tag_key, channel_key = _array_of_8(data)
        types = map(type, (form, of, version, dealer, secret, tag_key, channel_key))
        require([*types] == [int, bytes, int, str, bytes, bytes, bytes], "keyring:malformed")
    except ValueError:
        raise Refused("keyring:malformed") from None
    fits = form == 2 and len(tag_key) == len(channel_key) == 32 and secret
    require(fits, "keyring:other-format")
    require(of == read_roster(roster).digest(), "keyring:other-roster")
    require(now < expires, "keyring:expired")
    return spoken(labelled(b"secure-fl cohort", data))


def _array_of_8(data: bytes) -> list[Any]:
    """The fields of an array whose fourth is a timestamp of 4 bytes."""
    start = end = 1
    for _ in range(3):
        end = one_value(data, end)[1]
    time = data[end : end + 6]
    if time[:2] != b"\xd6\xff" or len(time) < 6:
        raise ValueError("no timestamp of 4 bytes")
    first, last = (b"\x93" + data[start:end], b"\x94" + data[end + 6 :])
    moment = datetime.fromtimestamp(int.from_bytes(time[2:], "big"), UTC)
    return [*unpacked(first), moment, *unpacked(last)]


# --- approvals and ids of runs (3) --------------------------------------------------------


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


APPROVAL: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("site", "who", "time", "run", "plan"), _text),
    **dict.fromkeys(("signing", "agreement", "signature"), _base64),
    **dict.fromkeys(("rules", "programs"), _texts),
    "format": lambda v: v == "secure-fl/approval/2",
}


def read_approval(data: bytes) -> bytes:
    """The digest of an approval with a valid signature (3.5)."""
    try:
        read = json.loads(data.decode())
        _closed(read, APPROVAL)
        card = Card.of(read["who"], b64decode(read["signing"]), b64decode(read["agreement"]))
        text = json.dumps(
            {**read, "signature": ""}, ensure_ascii=False, sort_keys=True, separators=(",", ":")
        )
        digest = labelled(b"secure-fl approval", text.encode())
        card.verify_document(digest, b64decode(read["signature"]))
    except (ValueError, Refused):
        raise Refused("keyring:signature") from None
    return digest


def run_id(roster: bytes, plan: str, nonces: Mapping[str, str]) -> bytes:
    """The id of a run (3.6)."""
    parts = [read_roster(roster).canonical(), plan.encode()]
    parts += [x for name in sorted(nonces) for x in (name.encode(), bytes.fromhex(nonces[name]))]
    return labelled(b"secure_fl/1 run", *parts)[:16]


# --- the ledger (11) ------------------------------------------------------------------------------


def check_ledger(case: Mapping[str, Any]) -> None:
    """Check the chain, the anchor, a pinned head and every signature."""
    try:
        owner = json.loads(case["rows"][0][6])
        require(owner["format"] == 2, "budget:ledger-unusable")
        keys = bytes.fromhex(owner["signing"]), bytes.fromhex(owner["agreement"])
        card = Card.of(owner["name"], *keys)
    except (ValueError, KeyError, IndexError, TypeError):
        raise Refused("tamper:owner") from None
    hashes = [bytes.fromhex(one) for one in case["hashes"]]
    previous = bytes(32)
    for number, (row, found) in enumerate(zip(case["rows"], hashes, strict=True)):
        require(row[0] == number, "tamper:row-missing")
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        hashed = labelled(b"secure-fl ledger entry", previous, text.encode())
        require(hashed == found, "tamper:row-changed")
        previous = found
    require(bool(case["anchor"]), "tamper:truncated")
    sequence, head, signature = case["anchor"]
    at_end = (sequence, head) == (len(hashes) - 1, previous.hex())
    require(at_end, "tamper:truncated")
    digest = labelled(b"secure-fl ledger head", sequence.to_bytes(8, "big"), previous)
    _signed(card, digest, signature)
    require(not case["pinned"] or case["pinned"] in case["hashes"], "tamper:older-copy")
    for found, signed in zip(hashes, case["signatures"], strict=True):
        _signed(card, found, signed)


def _signed(card: Card, digest: bytes, signature: str) -> None:
    try:
        card.verify(digest, bytes.fromhex(signature))
    except Refused:
        raise Refused("tamper:signature") from None
