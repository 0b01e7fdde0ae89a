"""Vectors of whole runs: recordings, and recordings in which one frame was replaced."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from benchmarks.vectors.book import Book
from benchmarks.vectors.keys import HUB, flipped
from benchmarks.vectors.record import HOST, NAMES, Plan, record
from benchmarks.vectors.seeds import bytes_of, identity, seeded
from secure_fl.crypto.keys.identity import Channel, Identity, digest_of
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.packing import from_slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame, SurvivorLog
from secure_fl.protocol.messages import Lost, Offer, Salt

EAST, NORTH, SOUTH, WEST = NAMES[:4]
PLANS = {
    plan.name: plan
    for plan in (
        Plan("secagg of three", "secagg", 3),
        Plan("he+secagg of three", "he+secagg", 3),
        Plan("he+secagg of four, of which one drops out", "he+secagg", 4, values=9,
             lose={NORTH: 2}),
        Plan("secagg of four, partial, of which one drops out", "secagg", 4, "partial", sums=2,
             reader=NORTH, lose={SOUTH: 6}),
        Plan("secagg of two for a host", "secagg", 2, "host", values=9),
    )
}  # fmt: skip
WRONG = "tamper:wrong-sum"


def keys_of_all(cohort: bytes) -> dict[str, PartyKeys]:
    """Make the keys of all members; each has its own context of the cohort's key."""
    tag_key, channel_key = bytes_of("tag key"), bytes_of("channel key")
    keys = {}
    for name in (*NAMES, HOST):
        with seeded(f"seal {name}"):
            own = secret.SecretKey.from_bytes(cohort)
        keys[name] = PartyKeys(identity(name), {}, own, tag_key, channel_key)
    return keys


def recordings(book: Book, cohort: bytes) -> None:
    """Whole runs, with and without dropouts."""
    keys, cases = keys_of_all(cohort), {}
    for number, plan in enumerate(PLANS.values()):
        with seeded(plan.name):
            case = record(plan, keys, HUB, bytes_of(f"run {number}", 16))
        fields = {name: value for name, value in case.items() if name not in ("name", "result")}
        book.ok(plan.name, **fields)
        assert book.cases[-1]["result"] == case["result"]  # noqa: S101
        cases[plan.name] = Changed(book, case)
    plain, sealed, dropped, partial, hosted = cases.values()
    _offers(plain)
    _uploads(plain)
    _lists(plain)
    _shares(plain)
    _totals(plain, hosted)
    _dropouts(dropped)
    _partial(partial)
    _ciphertexts(sealed)


class At(NamedTuple):
    """A frame of a recording."""

    place: int
    message: Any
    bulk: bytes


class Changed:
    """A recording, and cases that replace one of its frames by another signed one."""

    def __init__(self, book: Book, case: Mapping[str, Any]) -> None:
        self.book, self.case = book, case
        self.run = bytes.fromhex(case["run"])
        self.keys = {
            name: Identity.from_private_bytes(bytes.fromhex(of))
            for name, of in case["identities"].items()
        }

    def find(self, kind: str, member: str, number: int = 0) -> At:
        """Return a frame from or to a member, by kind and place."""
        found = []
        for place, (name, _, data) in enumerate(self.case["frames"]):
            frame = Frame.from_bytes(b64decode(data))
            message = frames.peek(frame.head).message
            if name == member and type(message).__name__ == kind:
                found.append(At(place, message, frame.bulk))
        return found[number]

    def no(
        self, code: str, name: str, at: At, *, bulk: bytes | None = None, **changes: Any
    ) -> None:
        """Add a case with another bulk, or a changed message, in a frame."""
        member, direction, data = self.case["frames"][at.place]
        envelope = frames.peek(Frame.from_bytes(b64decode(data)).head)
        bulk = at.bulk if bulk is None else bulk
        message = structs.replace(at.message, **changes)
        about = {"size": len(bulk), "digest": frames.digest(bulk)}
        changed = structs.replace(envelope, message=message, **about)
        signer = HUB if direction == "in" else self.keys[member]
        frame = b64encode(frames.encode(changed, bulk, signer.sign).to_bytes()).decode()
        case = {"changes": self.case["name"], "replace": {str(at.place): frame}}
        whole = {**self.case, "frames": list(self.case["frames"])}
        whole["frames"][at.place] = [member, direction, frame]
        self.book.no(code, f"{self.case['name']}: {name}", "recording", whole=whole, **case)


def _offers(of: Changed) -> None:
    at = of.find("Begin", EAST)
    offers = at.message.offers
    fields = structs.asdict(offers[NORTH])

    def no(code: str, name: str, **changes: Any) -> None:
        offer = Offer(**{**fields, **changes})
        of.no(code, name, at, offers={**offers, NORTH: offer})

    missing = {name: offer for name, offer in offers.items() if name != SOUTH}
    of.no("cohort:offers", "keys of a member are missing", at, offers=missing)
    blob, deal = fields["shares"][EAST], fields["deals"][EAST]
    no("crypto:sender", "no shares for this member", shares={})
    no("keys:seal", "swapped mask key", public=offers[SOUTH].public)
    no("keys:seal", "swapped shares", shares=offers[SOUTH].shares)
    no("keys:seal", "other digest of a share", deals={EAST: structs.replace(deal, key=deal.own)})
    no("keys:length", "shares cut short", shares={EAST: blob[:20]})
    no("keys:version", "shares of another version", shares={EAST: b"\x01" + blob[1:]})
    _dealt(of, fields, no)


def _dealt(of: Changed, fields: Mapping[str, Any], no: Callable[..., None]) -> None:
    """Add offers whose sender sealed something else than it announces."""
    blob = fields["shares"][EAST]
    north = Channel(of.keys[NORTH], of.keys[EAST].public, b"secure-fl run " + of.run)
    east = Channel(of.keys[EAST], of.keys[NORTH].public, b"secure-fl run " + of.run)

    def about(**changes: Any) -> bytes:
        now = {**fields, **changes}
        clear = now["public"], now["seed"], now["deals"].get(EAST), now["statement"]
        label = f"step keys {of.run.hex()} 1 {NORTH} {EAST}".encode()
        return digest_of(label, msgspec.msgpack.encode(clear))

    plain = east.open(blob, about())

    def dealt(code: str, name: str, data: bytes, **changes: Any) -> None:
        nonce = bytes_of(name, 12)
        no(code, name, shares={EAST: north.seal(data, about(**changes), _nonce=nonce)}, **changes)

    other = bytes_of("x")
    dealt("keys:key", "dealer announces another key than it sealed", plain, public=other)
    dealt("keys:key", "dealer seals one share only", plain[:-17])
    dealt("keys:share", "dealer seals a share that does not fit its digest", flipped(plain))


def _uploads(of: Changed) -> None:
    at = of.find("SumInput", NORTH)
    segment = at.message.segments[0]

    def no(code: str, name: str, bulk: bytes | None = None, **changes: Any) -> None:
        of.no(code, f"upload {name}", at, bulk=bulk, **changes)

    def one(**changes: Any) -> tuple[Any, ...]:
        return (structs.replace(segment, **changes),)

    no("wire:sum", "of another sum", sum=2)
    no("wire:keys", "under other keys", bound=bytes(64))
    no("wire:keys", "with other shares taken", taken=bytes(32))
    no("wire:links", "without a link", links={SOUTH: at.message.links[SOUTH]})
    no("wire:segments", "with a segment twice", 2 * at.bulk, segments=(segment, segment))
    no("wire:size", "longer than its segments", at.bulk + b"\0")
    no("wire:size", "with a slot cut short", at.bulk[:-1], segments=one(size=segment.size - 1))
    no("wire:slots", "with a slot that is not reduced", b"\xff" * 6 + at.bulk[6:])
    own, east = Salt(bytes(32), (NORTH,)), Salt(bytes(32), (EAST,))
    no("wire:salts", "that salts its mask with itself", segments=one(salts=(own,)))
    no("wire:salts", "that salts a mask twice", segments=one(salts=(east, east)))
    no("disagreement:layout", "with a slot more than others", at.bulk + bytes(6),
       segments=one(size=segment.size + 6, slots=segment.slots + 1))  # fmt: skip
    no("disagreement:owners", "without the values of an owner", b"", segments=one(size=0))


def _lists(of: Changed) -> None:
    at = of.find("Unmask", EAST)

    def no(code: str, name: str, survivors: tuple[str, ...], *dropped: str, **changes: Any) -> None:
        lists = structs.replace(at.message, survivors=survivors, dropped=dropped)
        signed = structs.asdict(SurvivorLog(of.run).sign(HUB, lists))
        of.no(code, name, at, **{**signed, **changes})

    everybody = (EAST, NORTH, SOUTH)
    no("cohort:lists", "survivors miss a member", (EAST, NORTH))
    no("cohort:lists", "member survives and drops out", everybody, SOUTH)
    no("cohort:lists", "survivor named twice", (*everybody, NORTH))
    no("cohort:lists", "stranger survives", (*everybody, "stranger"))
    no("cohort:gone", "this member drops out", (NORTH, SOUTH), EAST)
    no("cohort:threshold", "fewer survivors than the threshold", (EAST, NORTH), SOUTH)
    no("cohort:sum", "unmasking of another sum", everybody, sum=2)
    no("cohort:statement", "lists without a statement", everybody, statement=None)
    statement = SurvivorLog(of.run).sign(HUB, at.message).statement
    assert statement is not None  # noqa: S101
    other = structs.replace(statement, number=2)
    no("cohort:statement", "statement of another number", everybody, statement=other)
    other = structs.replace(statement, digest=bytes(32))
    no("cohort:statement", "statement of other lists", everybody, statement=other)
    other = structs.replace(statement, signature=of.keys[NORTH].sign(bytes(32)))
    no("crypto:signature", "statement signed by a member", everybody, statement=other)


def _shares(of: Changed) -> None:
    at = of.find("UnmaskShares", NORTH)
    seeds = at.message.seeds

    wrong = {**seeds, SOUTH: flipped(seeds[SOUTH])}
    of.no("misconduct:share", "wrong share", at, seeds=wrong)
    exchanged = {**seeds, SOUTH: seeds[EAST], EAST: seeds[SOUTH]}
    of.no("misconduct:share", "exchanged shares", at, seeds=exchanged)
    of.no("wire:shares", "both shares of a member", at, keys={SOUTH: seeds[SOUTH]})
    two = {name: seeds[name] for name in (EAST, NORTH)}
    of.no("wire:shares", "share of a survivor missing", at, seeds=two)
    of.no("wire:shares", "shares of another sum", at, sum=2)


def _plus_one(data: bytes, place: int) -> bytes:
    """Add 1 to a slot on the wire, below the modulus."""
    at = 6 * place
    slot = (int.from_bytes(data[at : at + 6], "little") + 1) % COHORT.modulus
    return data[:at] + slot.to_bytes(6, "little") + data[at + 6 :]


def _totals(of: Changed, hosted: Changed) -> None:
    at = of.find("Total", EAST)
    last = len(at.bulk) // 6 - 1
    of.no(WRONG, "changed total", at, bulk=_plus_one(at.bulk, 3))
    of.no(WRONG, "wrong tag of a total", at, bulk=_plus_one(at.bulk, last))
    of.no(WRONG, "own upload as the total", at, bulk=of.find("SumInput", EAST).bulk)
    slots = np.frombuffer(
        b"".join(at.bulk[i : i + 6] + b"\0\0" for i in range(0, len(at.bulk), 6)), "<u8"
    )
    doubled = from_slots(slots * np.uint64(2) % np.uint64(COHORT.modulus))
    of.no(WRONG, "scaled total", at, bulk=doubled)
    high = (int(slots[-1]) + COHORT.modulus).to_bytes(6, "little")
    of.no("wire:slots", "tag that is not reduced", at, bulk=at.bulk[:-6] + high)
    of.no("cohort:sizes", "total longer than its parts", at, bulk=at.bulk + b"\0")
    cut, size = at.bulk[:-6], len(at.bulk) - 6
    of.no("wire:size", "total without its tag", at, bulk=cut, sizes=(size,))
    of.no("cohort:lost", "seed of a survivor", at, lost={SOUTH: Lost(bytes(16), ({},))})
    at = hosted.find("Total", HOST)
    hosted.no(WRONG, "changed total", at, bulk=_plus_one(at.bulk, 0))


def _dropouts(of: Changed) -> None:
    at = of.find("Confirmed", EAST)
    signatures = at.message.signatures
    two = {name: signatures[name] for name in (EAST, SOUTH)}
    of.no("cohort:confirmations", "two signatures of three", at, signatures=two)
    other = {**signatures, SOUTH: of.keys[SOUTH].sign(bytes(32))}
    of.no("keys:signature", "survivor signed other lists", at, signatures=other)
    at = of.find("SumInput", SOUTH)
    links = {**at.message.links, NORTH: bytes(32)}
    name = "upload with another link with the dropped party"
    of.no("keys-refused:keys", name, at, links=links)
    at = of.find("UnmaskShares", SOUTH)
    both = {**at.message.seeds, NORTH: at.message.keys[NORTH]}
    of.no("wire:shares", "both shares of a dropped party", at, seeds=both)
    at = of.find("Total", EAST)
    lost = at.message.lost[NORTH]

    def no(code: str, name: str, **changes: Any) -> None:
        of.no(code, name, at, lost={NORTH: structs.replace(lost, **changes)})

    of.no("cohort:lost", "seed of the dropped party missing", at, lost={})
    no("cohort:lost", "links of the dropped party missing", links={})
    no(WRONG, "other link of the dropped party", links={**lost.links, SOUTH: bytes(32)})
    no("cohort:lost", "other seed of the dropped party", seed=bytes(16))


def _partial(of: Changed) -> None:
    first, second = of.find("Total", NORTH, 0), of.find("Total", NORTH, 1)
    half = first.message.sizes[0]
    exchanged = first.bulk[half:] + first.bulk[:half]
    of.no(WRONG, "swapped stream: totals of two segments", first, bulk=exchanged)
    of.no(WRONG, "replayed total of the sum before", second, bulk=first.bulk)
    salts = second.message.lost[SOUTH].salts
    place = next(place for place, of_part in enumerate(salts) if of_part)
    bare = tuple({} if at == place else one for at, one in enumerate(salts))
    lost = {SOUTH: structs.replace(second.message.lost[SOUTH], salts=bare)}
    of.no(WRONG, "missing salt of a dropped party's mask", second, lost=lost)
    at = of.find("SumInput", NORTH)
    first_part, second_part = at.message.segments
    segments = (structs.replace(first_part, digest=second_part.digest), second_part)
    of.no("wire:digest", "upload with another digest of a part", at, segments=segments)


def _ciphertexts(of: Changed) -> None:
    at = of.find("Total", EAST)
    of.no(WRONG, "flipped bit of a coefficient", at, bulk=flipped(at.bulk, 7))
    of.no(WRONG, "flipped bit of a seed", at, bulk=flipped(at.bulk, -3))
    short = (len(at.bulk) - 68).to_bytes(4, "big") + at.bulk[4:-64]
    sizes = (len(at.bulk) - 64,)
    of.no("crypto:form", "total without a contributor's seed", at, bulk=short, sizes=sizes)
    at = of.find("SumInput", NORTH)
    full = at.bulk[:4] + b"\x02" + at.bulk[5:]
    of.no("wire:form", "upload of another kind of ciphertext", at, bulk=full)
    long = (len(at.bulk) - 3).to_bytes(4, "big") + at.bulk[4:]
    of.no("wire:parts", "upload with a wrong length of a ciphertext", at, bulk=long)
