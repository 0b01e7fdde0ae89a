"""Vectors of signatures, sealed messages, cards, rosters, frames and ledgers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import structs

from benchmarks.vectors.book import Book, Series
from benchmarks.vectors.seeds import bytes_of, identity, seeded
from secure_fl.crypto.keys.identity import Channel, Identity, PublicIdentity, digest_of, seal_to
from secure_fl.crypto.keys.roster import Member, Roster
from secure_fl.crypto.keys.roster_files import card_bytes, roster_bytes
from secure_fl.crypto.privacy.ledger_store import NOTHING, LedgerRow, head_digest
from secure_fl.crypto.sealing.envelopes import Envelopes, PartyKeys
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Envelope, Frame

RUN = bytes_of("run", 16)
NORTH, SOUTH, WEST, HUB = (identity(name) for name in ("north", "south", "west", "coordinator"))
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = "2026-06-01T00:00:00+00:00"
ORDER = 2**252 + 27742317777372353535851937790883648493  # of Ed25519's group


def _card(public: PublicIdentity) -> str:
    return public.canonical().hex()


def seals(book: Book) -> None:
    """Identities, signatures, messages to one site, channels and envelopes."""
    north = _card(NORTH.public)
    book.ok("fingerprint of a card", "fingerprint", card=north)
    book.no("crypto:name", "name with a space", "fingerprint", card=north + b" x".hex())
    _signatures(book, north)
    keys = {"recipient": SOUTH.to_private_bytes().hex(), "sender": north}
    with seeded("seal"):
        ephemeral = X25519PrivateKey.from_private_bytes(bytes_of("ephemeral"))
        blob = seal_to(NORTH, SOUTH.public, b"a kit", b"context", _ephemeral=ephemeral)
        channels = Channel(NORTH, SOUTH.public, b"secure-fl run " + RUN)
        message = channels.seal(b"two shares", b"step 1")
        channels.open(Channel(SOUTH, NORTH.public, b"secure-fl run " + RUN).seal(b"", b""), b"")
        later = channels.seal(b"more shares", b"step 1").hex()
    sealed = book.series("sealed", "crypto:", **keys, context=b"context".hex(), sealed=blob.hex())
    _opening(sealed, blob, sender=_card(WEST.public))
    other = WEST.to_private_bytes().hex()
    sealed.no("seal", "sealed for another site", recipient=other)
    honest = Identity.sign_document
    with patch.object(Identity, "sign_document", lambda _, digest: honest(WEST, digest)):
        forged = seal_to(NORTH, SOUTH.public, b"a kit", b"context").hex()
    sealed.no("signature", "sealed, signed by another site", sealed=forged)
    low = blob[:1] + bytes(32) + blob[33:]
    sealed.no("point", "sealed with a point of low order", sealed=low.hex())
    _channels(book, keys, message, later)
    _envelopes(book)


def _channels(book: Book, keys: Mapping[str, str], message: bytes, later: str) -> None:
    about = {"context": b"step 1".hex(), "channel": (b"secure-fl run " + RUN).hex()}
    channel = book.series("channel", "crypto:", **keys, **about, sealed=message.hex())
    _opening(channel, message, sender=_card(SOUTH.public))
    once = book.series("channel", "crypto:", **keys, **about, before=[message.hex()])
    once.ok("channel message without X", sealed=later)
    channel.no("seal", "channel message without any X before", sealed=later)
    second = f"{later[:2]}02{later[4:]}"
    once.no("seal", "channel message with another second byte", sealed=second)
    channel.no("seal", "channel of another run", channel=(b"secure-fl run " + bytes(16)).hex())


def _envelopes(book: Book) -> None:
    with seeded("envelope"):
        envelopes = Envelopes(PartyKeys(NORTH, {}, None, b"", bytes_of("channel key")), RUN)
        value = envelopes.seal(b"a value", b"share 0 north")
    case = {"channel_key": bytes_of("channel key").hex(), "run": RUN.hex()}
    about = {"context": b"share 0 north".hex(), "sealed": value.hex()}
    envelope = book.series("envelope", "tamper:", **case, **about)
    envelope.ok("envelope")
    old = b"share 1 north".hex()
    envelope.no("relayed-value", "envelope of an earlier value", context=old)
    envelope.no("relayed-value", "envelope of another run", run="00" * 16)
    envelope.no("relayed-value", "envelope cut short", sealed=value[:9].hex())


def _signatures(book: Book, card: str) -> None:
    digest = digest_of(b"secure-fl vouch", b"a statement")
    signature = NORTH.sign(digest)
    case = {"sender": card, "digest": digest.hex(), "signature": signature.hex()}
    signed = book.series("signature", "crypto:", **case)
    signed.ok("signature")
    other = digest_of(b"secure-fl card", b"a statement").hex()
    signed.no("signature", "signature under another label", digest=other)
    signed.no("signature", "signature of another site", sender=_card(WEST.public))
    high = int.from_bytes(signature[32:], "little") + ORDER
    loose = (signature[:32] + high.to_bytes(32, "little")).hex()
    signed.no("signature", "signature in another encoding", signature=loose)
    signed.no("signature", "signature of 63 bytes", signature=signature[:-1].hex())
    signed.no("digest", "signature of no digest", digest="00" * 31)
    both, others = NORTH.sign_document(digest), NORTH.sign_document(bytes.fromhex(other))
    document = book.series("document", "crypto:", **case)
    document.ok("document signature", signature=both.hex())
    for name, wrong in (
        ("document signed by Ed25519 alone", both[:64]),
        ("document signed by ML-DSA alone", others[:64] + both[64:]),
        ("document with ML-DSA of another digest", both[:64] + others[64:]),
    ):
        document.no("signature", name, signature=wrong.hex())


def _opening(message: Series, blob: bytes, **swapped: str) -> None:
    """Add a message, and the ways to change it that both kinds of seals refuse."""
    kind = message.kind
    message.ok(f"{kind} message")
    message.no("seal", f"{kind}, changed", sealed=flipped(blob).hex())
    message.no("seal", f"{kind}, other context", context="00")
    message.no("seal", f"{kind}, other sender", **swapped)
    message.no("length", f"{kind}, cut short", sealed=blob[:20].hex())
    message.no("version", f"{kind}, version 1", sealed=(b"\x01" + blob[1:]).hex())


def flipped(data: bytes, place: int = -1) -> bytes:
    """Flip the lowest bit of a byte."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


# --- frames ---------------------------------------------------------------------------------------


def framed(message: Any, bulk: bytes = b"", **changes: Any) -> Frame:
    """Sign a frame from north to the coordinator, or from the coordinator to north."""
    up = isinstance(message, frames.FROM_PARTY)
    ends = (NORTH, HUB) if up else (HUB, NORTH)
    names = ends[0].name, ends[1].name
    envelope = Envelope(RUN, 5, 1, *names, len(bulk), frames.digest(bulk), message)
    return frames.encode(structs.replace(envelope, **changes), bulk, ends[0].sign)


def _base64(frame: Frame) -> str:
    return b64encode(frame.to_bytes()).decode()


def examples() -> list[Any]:
    """Return one message of each kind."""
    d, s, n = bytes_of("digest"), bytes_of("signature", 64), ("north", "south")
    statement = messages.SurvivorStatement(RUN, 2, d, s)
    deals = {"south": messages.Deal(d, d, d)}
    offer = messages.Offer(d, {"south": bytes_of("sealed", 95)}, d, deals, statement)
    salts = (messages.Salt(d, ("south",)),)
    segments = (messages.Segment(d, 12, 2, n, salts, d), messages.Segment(d, 0, 2))
    lost = {"west": messages.Lost(d[:16], ({"north": d}, {}), {"north": d})}
    parties = messages.Audience.PARTIES
    return [
        messages.Ready((1, 2), offer, ((1, 3, n),)), messages.Declare(n, ("c",), (), (1, 2)),
        messages.SumInput(parties, segments, True, (1, 2), 3, s, d, {"south": d}),
        messages.UnmaskShares({"north": d[:17]}, {"west": d[:17]}, offer, 3), messages.Broadcast(),
        messages.Share(), messages.Agree(d, d), messages.Boundary(7), messages.Done(),
        messages.Failed("keys", "south"), messages.Confirm(s), messages.Handover(d, s),
        messages.Hello(d[:16]), messages.Gathered(RUN), messages.Complaint(d, 1),
        messages.Finding("south"), messages.Start(n), messages.Begin(0, n, {"south": offer}, ()),
        messages.Owners({"w": n}, {"w": ("west",)}, ("w",)),
        messages.Unmask(n, ("west",), statement, 3, d),
        messages.Total(n, n, (12, 300), {"south": offer}, True, lost, 3, (d, d)),
        messages.Relayed(n, (3, 200)), messages.Agreed({"north": d}), messages.Continue(n),
        messages.Stop("tamper", "south", (statement,)), messages.Confirmed({"north": s}),
        messages.HandedOver(n, {"north": s}), messages.Invite("[run]\n", ("west",)),
        messages.Gather({"north": d[:16]}),
        messages.Examine("south", d, d[:16], b"", "north", 3, {"south": d}, {"south": d}),
    ]  # fmt: skip


def wire(book: Book) -> None:
    """Frames alone, and frames at one end of a connection."""
    for message in examples():
        frame = framed(message, b"bulk")
        sender = NORTH if isinstance(message, frames.FROM_PARTY) else HUB
        book.ok(f"frame of {type(message).__name__}", "frame", sender=_card(sender.public),
                frame=_base64(frame))  # fmt: skip
    _bad_frames(book)
    _links(book)


def _bad_frames(book: Book) -> None:
    sender, good = _card(NORTH.public), framed(messages.Boundary(7), b"bulk")
    unsigned = good.head[:-64]
    whole = good.to_bytes()

    def no(code: str, name: str, data: bytes) -> None:
        book.no(code, name, "frame", sender=sender, frame=b64encode(data).decode())

    def resigned(name: str, change: Callable[[bytes], bytes]) -> None:
        """Sign another envelope, which is not of the closed table."""
        body = change(good.head[:-64])
        head = body + NORTH.sign(frames.digest(body))
        no("wire:message", name, Frame(head, good.bulk).to_bytes())

    no("wire:head", "truncated frame: head", whole[:40])
    no("wire:bulk", "truncated frame: bulk", whole[:-1])
    no("wire:bulk", "bytes after a bulk", whole + b"\0")
    no("wire:bulk", "changed bulk", whole[:-1] + b"!")
    no("wire:size", "head without a message", (64).to_bytes(4, "big") + bytes(64))
    no("wire:version", "wrong version", whole[:4] + b"\x01" + whole[5:])
    no("crypto:signature", "changed head", flipped(whole, 30))
    no("crypto:signature", "signature of another site",
       Frame(unsigned + SOUTH.sign(frames.digest(unsigned)), good.bulk).to_bytes())  # fmt: skip
    values = msgspec.msgpack.decode(unsigned[1:])
    _bad_messages(resigned, values)
    _other_forms(book, sender, msgspec.msgpack.encode(values[:7]), good.bulk)


def _other_forms(book: Book, sender: str, address: bytes, bulk: bytes) -> None:
    """Add frames in forms that writers do not use, and readers accept."""
    for name, message in (
        ("number in a longer form", b"\x92\x08\xcd\x00\x07"),
        ("array in a longer form", b"\xdc\x00\x02\x08\x07"),
        ("field with a default missing at the end", b"\x92\x0a\xa4keys"),
        ("map with a key twice", b"\x93\x04\x82\xa1n\xc4\x10" + bytes(16)
         + b"\xa1n\xc4\x10" + bytes(16) + b"\x80"),
    ):  # fmt: skip
        unsigned = b"\x02\x98" + address[1:] + message
        frame = Frame(unsigned + NORTH.sign(frames.digest(unsigned)), bulk)
        book.ok(name, "frame", sender=sender, frame=_base64(frame))


def _bad_messages(resigned: Callable[[str, Callable[[bytes], bytes]], None], values: Any) -> None:
    def put(place: int, value: Any) -> Callable[[bytes], bytes]:
        changed = [*values[:place], value, *values[place + 1 :]]
        return lambda body: body[:1] + msgspec.msgpack.encode(changed)

    resigned("message of an unknown kind", put(7, [99]))
    resigned("message with a field too many", put(7, [8, 7, 1]))
    resigned("message with a field missing", put(7, [8]))
    resigned("number that is text", put(7, [8, "7"]))
    resigned("number that is a fraction", put(7, [8, 7.5]))
    resigned("number below zero", put(7, [8, -1]))
    resigned("number beyond 2^31", put(7, [8, 2**31 + 1]))
    resigned("number that is true", put(7, [8, True]))
    resigned("code with a capital", put(7, [10, "Keys", ""]))
    resigned("signature of 63 bytes in a message", put(7, [11, bytes(63)]))
    resigned("run of 15 bytes", put(0, bytes(15)))
    resigned("empty sender", put(3, ""))
    resigned("name of 201 characters", put(3, "x" * 201))
    resigned("envelope as a map", lambda body: body[:1] + msgspec.msgpack.encode({"run": RUN}))
    resigned("bytes after the envelope", lambda body: body + b"\xc0")
    resigned("envelope cut short", lambda body: body[:-1])
    resigned("name that is not UTF-8", lambda body: body.replace(b"north", b"nort\xff"))


def _links(book: Book) -> None:
    ask, answer = framed(messages.Continue(("north",))), framed(messages.Boundary(1))
    party: dict[str, Any] = {"run": RUN.hex(), "me": "north", "sender": _card(HUB.public),
                             "asks": False, "exchange": 4, "round": 1}  # fmt: skip
    hub = {**party, "me": "coordinator", "sender": _card(NORTH.public), "asks": True, "exchange": 5}
    later = framed(messages.Continue(("north",)), exchange=9, round=2)
    book.ok("two frames for a party", "link", **party, frames=[_base64(ask), _base64(later)])
    book.ok("answer for the coordinator", "link", **hub, frames=[_base64(answer)])

    def no(code: str, name: str, end: Mapping[str, Any], *sent: Frame) -> None:
        book.no(f"wire:{code}", name, "link", **end, frames=[_base64(frame) for frame in sent])

    no("exchange", "replayed frame", party, ask, ask)
    no("exchange", "reordered frames", party, later, ask)
    no("round", "round that goes back", {**party, "round": 2}, ask)
    no("run", "frame of another run", {**party, "run": "00" * 16}, ask)
    no("receiver", "frame for another member", {**party, "me": "south"}, ask)
    no("sender", "frame that names another sender", party,
       framed(messages.Continue(("north",)), sender="hub"))  # fmt: skip
    echo = frames.encode(frames.peek(answer.head), b"", HUB.sign)
    no("sender", "a party's frame, signed by the coordinator", party, echo)
    turned = framed(messages.Boundary(1), sender="coordinator", receiver="north")
    turned = frames.encode(frames.peek(turned.head), b"", HUB.sign)
    no("kind", "answer in the wrong direction", party, turned)
    no("exchange", "answer to an earlier question", {**hub, "exchange": 6}, answer)
    no("round", "answer of another round", {**hub, "round": 2}, answer)


# --- cards and rosters ----------------------------------------------------------------------------


def rosters(book: Book) -> None:
    """Cards and rosters."""
    text = card_bytes(NORTH).decode()
    book.ok("card", "card", file=text)
    read = json.loads(text)

    def no(code: str, name: str, **changes: Any) -> None:
        book.no(f"keyring:{code}", name, "card", file=json.dumps({**read, **changes}))

    swapped = {**read["card"], "agreement": json.loads(card_bytes(WEST))["card"]["agreement"]}
    no("card", "card with another agreement key", card=swapped)
    no("card", "card with another name", card={**read["card"], "name": "south"})
    short = {**read["card"], "signing": b64encode(bytes(31)).decode()}
    no("card", "card with a short key", card=short)
    good = NORTH.public.agreement
    for what, agreement in {
        "of low order": bytes(32) + good[32:],
        "in a second encoding": good[:31] + bytes([good[31] | 0x80]) + good[32:],
        "of ML-KEM above the modulus": good[:32] + b"\xff\xff" + good[34:],
    }.items():
        public = replace(NORTH.public, agreement=agreement)
        signature = NORTH.sign_document(digest_of(b"secure-fl card", public.canonical()))
        changes = {"signature": b64encode(signature).decode(), "fingerprint": public.fingerprint()}
        key = b64encode(agreement).decode()
        no("card", f"card with a key {what}", card={**read["card"], "agreement": key}, **changes)
    no("changed", "card with another fingerprint", fingerprint="00000 " * 7 + "00000")
    no("other-format", "card of an earlier format", format=1)
    no("malformed", "card with a field too many", more=1)
    book.no("keyring:malformed", "card cut short", "card", file=text[:50])
    _rosters(book)


def _roster(**changes: Any) -> Roster:
    members = tuple(Member(one.name, "party", None, one.public) for one in (NORTH, SOUTH, WEST))
    until = BEGUN + timedelta(days=365)
    return replace(Roster(members, HUB.public, None, BEGUN, until), **changes)


def _signed(roster: Roster, *signers: Any) -> Roster:
    """Sign without the checks of `Roster.sign`."""
    signatures = tuple(
        (one.name, one.sign_document(roster.digest())) for one in signers or (NORTH,)
    )
    return replace(roster, signatures=signatures)


def signed_roster() -> Roster:
    """Return a roster that its dealer has signed."""
    return _signed(_roster())


def _rosters(book: Book) -> None:
    good, me = _roster(), _card(NORTH.public)

    def ok(name: str, roster: Roster, who: str = "") -> None:
        book.ok(name, "roster", file=roster_bytes(roster).decode(), now=NOW, me=who)

    def no(code: str, name: str, roster: Roster, who: str = "", now: str = NOW) -> None:
        file = roster_bytes(roster).decode()
        book.no(f"keyring:{code}", name, "roster", file=file, now=now, me=who)

    ok("roster signed by its dealer", _signed(good))
    ok("roster signed by a member", _signed(good, NORTH, SOUTH), me)
    host = Member("archive", "host", None, identity("archive").public)
    tiers = tuple(replace(m, tier="large") for m in good.members)
    ok("roster with a host, tiers and a threshold",
       _signed(_roster(members=(*tiers, host), threshold=2, version=4)), me)  # fmt: skip
    no("unsigned", "roster without signatures", good)
    no("unsigned", "roster that this member did not sign", _signed(good, SOUTH), me)
    no("other-keys", "roster with other keys of this member", _signed(good),
       _card(replace(NORTH.public, agreement=SOUTH.public.agreement)))  # fmt: skip
    no("not-listed", "roster without this member", _signed(good), _card(HUB.public))
    no("not-listed", "roster signed by a stranger", _signed(good, HUB))
    no("signature", "signature of another roster",
       replace(good, signatures=_signed(_roster(version=2)).signatures))  # fmt: skip
    no("expired", "expired roster", _signed(good), now="2027-01-01T00:00:00+00:00")
    _bad_members(no, good, host)
    _roster_files(book, json.loads(roster_bytes(_signed(good))))


def _bad_members(no: Callable[[str, str, Roster], None], good: Roster, host: Member) -> None:
    upper = Member("NORTH", "party", None, identity("NORTH").public)
    no("duplicate-names", "names that differ in case", _roster(members=(*good.members, upper)))
    hosts = (host, Member("second", "host", None, identity("second").public))
    no("several-hosts", "two hosts", _roster(members=(*good.members, *hosts)))
    no("no-party", "roster of a host alone", _roster(members=(host,)))
    same = Member("copy", "party", None, replace(NORTH.public, name="copy"))
    no("shared-key", "two cards with one key", _roster(members=(*good.members, same)))
    no("threshold", "threshold of a minority", _roster(threshold=1))
    no("threshold", "threshold above the members", _roster(threshold=4))
    no("dates", "roster that ends before it begins", _roster(expires=BEGUN))
    no("dates", "version 0", _roster(version=0))


def _roster_files(book: Book, read: dict[str, Any]) -> None:
    files = book.series("roster", "keyring:", file="", now=NOW, me="")

    def no(code: str, name: str, **changes: Any) -> None:
        files.no(code, name, file=json.dumps({**read, **changes}))

    first, *others = read["members"]
    no("malformed", "member with an unknown role", members=[{**first, "role": "admin"}, *others])
    no("malformed", "tier that cannot be printed", members=[{**first, "tier": "a\u202eb"}, *others])
    no("malformed", "moment without a zone", created="2026-01-01T00:00:00")
    no("malformed", "key that is not base64", signatures={"north": "%"})
    no("malformed", "roster with a field too many", more=1)
    no("other-format", "roster of an earlier format", format=1)
    no("changed", "roster with another threshold than its fingerprint", threshold=2)
    no("card", "member with a bad name",
       members=[{**first, "card": {**first["card"], "name": "a b"}}, *others])  # fmt: skip
    moved = {**read, "members": read["members"][::-1], "created": "2026-01-01T02:00:00+02:00"}
    files.ok("members in another order, and another zone", file=json.dumps(moved))


# --- the ledger -----------------------------------------------------------------------------------


def ledgers(book: Book) -> None:
    """Chains of rows."""
    case = _ledger()
    ledger = book.series("ledger", **case)
    ledger.ok("ledger with a step that was finished")
    ledger.ok("ledger with its head kept elsewhere", pinned=case["hashes"][1])
    no = book.series("ledger", "tamper:", **case).no
    rows, hashes, signatures = case["rows"], case["hashes"], case["signatures"]
    changed = [*rows[:1], [*rows[1][:7], 16.0, *rows[1][8:]], *rows[2:]]
    no("row-changed", "row with another budget", rows=changed)
    no("row-missing", "row deleted", rows=rows[:1] + rows[2:], hashes=hashes[:1] + hashes[2:],
       signatures=signatures[:1] + signatures[2:])  # fmt: skip
    no("row-missing", "rows exchanged", rows=[rows[0], rows[2], rows[1], rows[3]])
    no("truncated", "last row cut off", rows=rows[:-1], hashes=hashes[:-1],
       signatures=signatures[:-1])  # fmt: skip
    no("truncated", "no anchor", anchor=None)
    no("older-copy", "older copy", pinned="11" * 32)
    anchor = case["anchor"]
    no("signature", "anchor signed by another", anchor=[*anchor[:2], _anchor(WEST, *anchor[:2])])
    no("signature", "row signed by another", signatures=[*signatures[:-1], signatures[0]])
    old = rows[0][6].replace('"format": 2', '"format": 1')
    earlier = [[*rows[0][:6], old, *rows[0][7:]], *rows[1:]]
    ledger.no("budget:ledger-unusable", "ledger of an earlier format", rows=earlier)
    no("owner", "first row without an owner", rows=[[*rows[0][:6], "{}", *rows[0][7:]], *rows[1:]])


def _anchor(me: Any, sequence: int, head: str) -> str:
    return str(me.sign(head_digest(sequence, bytes.fromhex(head))).hex())


def _ledger() -> dict[str, Any]:
    public = NORTH.public
    own = bytes_of("ledger", 16).hex()
    owner = {"agreement": public.agreement.hex(), "format": 2, "ledger": own,
             "name": public.name, "signing": public.signing.hex()}  # fmt: skip
    time, run, text = "2026-01-01T00:00:00+00:00", "ward é", json.dumps(owner, sort_keys=True)
    event = '{"kind":"dp-sgd","noise_multiplier":1.1,"sample_rate":0.05,"steps":40}'
    account = "notes", "patient", "add-remove"
    rows = [
        LedgerRow(0, time, "opened", "", "", "", text, None, None, "", None, None),
        LedgerRow(1, time, "reserved", *account, event, 8.0, 1e-05, run, 1, None),
        LedgerRow(2, time, "committed", *account, event, None, None, run, 1, 1),
        LedgerRow(3, time, "approved", "", "", "", '{"who": "anna"}', None, None, run, None, None),
    ]
    hashes, head = [], NOTHING
    for row in rows:
        head = row.chained(head)
        hashes.append(head)
    return {
        "rows": [list(astuple(row)) for row in rows],
        "hashes": [one.hex() for one in hashes],
        "signatures": [NORTH.sign(one).hex() for one in hashes],
        "anchor": [3, head.hex(), _anchor(NORTH, 3, head.hex())],
        "pinned": "",
    }
