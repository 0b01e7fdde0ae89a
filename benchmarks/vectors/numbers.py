"""Vectors of encodings, masks, shares, tags and ciphertexts."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.vectors.book import Book
from benchmarks.vectors.seeds import bytes_of, seeded
from secure_fl.crypto.sealing import masking, secret, tags
from secure_fl.crypto.sealing.masking import PRIME, StreamId
from secure_fl.crypto.sealing.packing import encode_wide, from_slots
from secure_fl.crypto.sealing.public import SeededSum, Sum, context_bytes, from_parts, load
from secure_fl.crypto.sealing.scheme import COHORT

T = COHORT.modulus
AT: dict[str, Any] = {
    "run": bytes_of("run", 16).hex(),
    "segment": bytes_of("segment").hex(),
    "sum": 3,
}
KEY = bytes_of("tag key")


def encodings(book: Book) -> None:
    """Packing, exact numbers, layouts, slots on the wire, and digests of segments."""
    _packing(book)
    numbers = [0.0, 1.0, -1.0, 1234.5678, -(2.0**40), 2.0**40, 2.0**-40, -(2.0**-40), 1e-13]
    book.ok("exact numbers", "wide", values=numbers)
    limbs = encode_wide(np.array(numbers)).tolist()
    book.ok("exact numbers opened", "unwide", slots=limbs, contributors=1)
    book.ok("exact sum of three", "unwide", slots=[3 * limb for limb in limbs], contributors=3)
    book.no("crypto:wide", "number beyond 2^40", "wide", values=[2.0**40 + 1])
    book.no("crypto:slots", "four limbs", "unwide", slots=limbs[:4], contributors=1)
    book.no("crypto:slots", "nobody contributed", "unwide", slots=limbs, contributors=0)
    fields = [["n", 1, None, False], ["w", 4, 0.25, True]]
    layout = {"bits": 8, "parties": 3, "extra": 0, "scale": None, "fields": fields}
    exact = encode_wide(np.array([5.0, 0.0, 3.0])).tolist()
    packed = book.kinds["pack"]({**layout, "integers": [127, -127, 1, 0]})
    book.ok("count, norm and four values", "segment", layout=layout, contributors=1,
            slots=[*exact, *packed])  # fmt: skip
    noised = layout | {"scale": 64.0, "extra": 3, "fields": [["w", 2, 1.0, False]]}
    packed = book.kinds["pack"]({**noised, "integers": [500, -77]})
    book.ok("integers that carry noise", "segment", layout=noised, contributors=1, slots=packed)
    book.no("crypto:slots", "segment without its last slot", "segment", layout=noised,
            contributors=1, slots=packed[:-1])  # fmt: skip
    slots = np.array([0, 1, T - 1, 1 << 43], np.uint64)
    data = from_slots(slots).hex()
    book.ok("slots on the wire", "masked-slots", data=data, count=4)
    book.no("wire:size", "slot cut short", "masked-slots", data=data[:-2], count=4)
    book.no("wire:size", "slot too many", "masked-slots", data=data, count=3)
    over = from_slots(np.array([0, T], np.uint64)).hex()
    book.no("wire:slots", "slot that is not reduced", "masked-slots", data=over, count=2)
    _segment_keys(book)


def _packing(book: Book) -> None:
    for bits, parties, extra in ((4, 3, 0), (8, 4, 0), (12, 16, 0), (16, 5, 4), (24, 128, 0)):
        of = {"bits": bits, "parties": parties, "extra": extra}
        book.ok(f"codec of {bits} bits, {parties} parties, {extra} extra", "codec", **of)
        top = (1 << (bits + extra - 1)) - 1
        integers = [top, -top, 0, 1, -1, *range(-3, 4)]
        book.ok(f"{bits} bits packed", "pack", **of, integers=integers)
        packed = book.kinds["pack"]({**of, "integers": integers})
        slots = [parties * slot for slot in packed]
        book.ok(f"{bits} bits, a sum of {parties}", "unpack", **of, slots=slots,
                contributors=parties, values=len(integers))  # fmt: skip
    values = [0.0, 0.5, -0.5, 0.3, 2.0, -2.0, 1e-9]
    draws = [0, 65535, 32768, 1, 2, 3, 4]
    for bits in (4, 8, 16):
        book.ok(f"rounding to {bits} bits", "quantize", bits=bits, values=values, clip=1.0,
                draws=draws)  # fmt: skip
    book.ok("rounding with a clip of 0", "quantize", bits=8, values=values, clip=0.0, draws=draws)
    of = {"bits": 8, "parties": 4, "extra": 0}
    book.no("crypto:bits", "codec of 5 bits", "codec", bits=5, parties=4, extra=0)
    book.no("crypto:bits", "codec of nobody", "codec", bits=8, parties=0, extra=0)
    book.no("crypto:width", "codec without room", "codec", bits=24, parties=1 << 20, extra=8)
    book.no("crypto:integers", "integer beyond its field", "pack", **of, integers=[0, 128])
    book.no("crypto:slots", "more contributors than parties", "unpack", **of, slots=[0],
            contributors=5, values=1)  # fmt: skip
    book.no("crypto:slots", "slot missing", "unpack", **of, slots=[0], contributors=4, values=9)
    book.no("crypto:values", "value that is not a number", "quantize", bits=8, values=[0.1, None],
            clip=1.0, draws=[0, 0])  # fmt: skip
    book.no("crypto:clip", "negative clip", "quantize", bits=8, values=[0.1], clip=-1.0, draws=[0])


def _segment_keys(book: Book) -> None:
    note = ["\nall", [b"members".hex(), b"east\nnorth\nsouth".hex()]]
    more = ["\nparties", [b"east\nnorth\nsouth".hex(), bytes_of("slots").hex()]]
    tier = ["east\nnorth", [b"east\nnorth".hex(), bytes_of("tier").hex()]]
    case: dict[str, Any] = {
        "channel_key": bytes_of("channel key").hex(), "run": AT["run"], "notes": [note],
        "audience": "parties", "carry": False, "bound": 1.0, "noise": None, "at": [1, 2],
        "vectors": [["n", 1], ["w", 300]], "owners": ["east", "north", "south"], "readers": [],
    }  # fmt: skip
    ok, two = book.series("segment-key", **case).ok, ["east", "north"]
    ok("segment of a first sum")
    ok("segment after an opened sum", notes=[note, more])
    ok("segment of all, after a sum of a tier", notes=[note, tier])
    ok("segment of two, read by a third", owners=two, readers=["south"], notes=[note, tier])
    ok("segment of a tier, carried", owners=two, notes=[note, tier], carry=True, bound=None)
    ok("segment with noise", noise=[1024.5, 70000.0], bound=None)


def masks(book: Book) -> None:
    """Streams, mask keys, pair secrets, shares and commitments."""
    secret_, seed, other = bytes_of("secret"), bytes_of("seed", 16), bytes_of("other seed", 16)
    stream = book.series("stream", secret=secret_.hex(), **AT, purpose="pair", length=5)
    for purpose in ("pair", "self", "host", "pad", "tag", "tag members", "tag salt"):
        stream.ok(f"stream of purpose {purpose}", purpose=purpose)
    stream.ok("stream of a salted pair", secret=(secret_ + bytes_of("salt")).hex())
    for modulus in (3, 2**40 + 15, T, 2**62):
        of = {"key": secret_.hex(), "length": 9, "modulus": modulus}
        book.ok(f"integers below {modulus}", "uniform", **of)
    stream.no("crypto:sum", "number of a sum beyond 64 bits", sum=1 << 64, length=1)
    public = masking.public_key(other)
    book.ok("mask key of a seed", "mask-key", seed=seed.hex())
    book.ok("half for a peer", "half", seed=seed.hex(), peer=2)
    book.ok("secret of two mask keys", "pair-secret", seed=seed.hex(), peer=public.hex())
    book.no("crypto:seed", "seed of 15 bytes", "mask-key", seed=seed[1:].hex())
    book.no("crypto:point", "point of low order", "pair-secret", seed=seed.hex(), peer="00" * 32)
    one = (
        (325606250916557431795983626356110631294008115727848805560023387167927233504)
        .to_bytes(32, "little")
        .hex()
    )
    book.no("crypto:point", "another point of low order", "pair-secret", seed=seed.hex(), peer=one)
    book.no("crypto:point", "key of 31 bytes", "pair-secret", seed=seed.hex(), peer="09" * 31)
    _shares(book, seed)


def _shares(book: Book, seed: bytes) -> None:
    coefficients = [int.from_bytes(bytes_of(f"coefficient {i}", 17), "big") % PRIME for i in (1, 2)]
    holders = [1, 2, 3, 5, 8]
    case = {"secret": seed.hex(), "coefficients": coefficients, "holders": holders}
    book.ok("three of five", "share", **case)
    shares = book.kinds["share"](case)

    def some(*numbers: int) -> dict[str, str]:
        return {str(n): shares[str(n)] for n in numbers}

    recover = book.series("recover", "crypto:", shares=some(1, 3, 8), threshold=3)
    recover.ok("secret of three shares")
    recover.ok("secret of five shares", shares=some(*holders))
    three = {"secret": "00" * 16, "coefficients": coefficients, "holders": [1, 2, 3]}
    book.ok("three of three with a secret of zeros", "share", **three)
    recover.no("count", "two of three shares", shares=some(1, 3))
    recover.no("holders", "share of holder 0", shares={"0": shares["1"], **some(2, 3)})
    over = PRIME.to_bytes(17, "big").hex()
    recover.no("share", "share that is not reduced", shares={**some(1, 2), "3": over})
    short = shares["3"][2:]
    recover.no("share", "share of 16 bytes", shares={**some(1, 2), "3": short})
    wrong = f"{int(shares['3'], 16) ^ (1 << 128):034x}"
    recover.no("secret", "wrong share", shares={**some(1, 2), "3": wrong})
    swapped = {**some(1), "2": shares["3"], "3": shares["2"]}
    recover.no("secret", "exchanged shares", shares=swapped)
    book.no("crypto:holders", "holder 0 gets a share", "share", **{**case, "holders": [0, 1, 2]})
    about = [AT["run"], 3, "east", "north", "self"]
    book.ok("digest of a share", "commitment", secret=shares["2"], about=about)
    book.ok("digest of a seed", "commitment", secret=seed.hex(), about=about[:3])


def sums(book: Book) -> None:
    """Tags and totals."""
    rng = np.random.default_rng(1)
    inputs = {m: rng.integers(0, T, 40, dtype=np.uint64) for m in (1, 2, 4)}
    stream, at = StreamId(AT["run"], AT["segment"], AT["sum"]), {**AT, "key": KEY.hex()}
    for member, slots in inputs.items():
        book.ok(f"tag of member {member}", "tag", **at, slots=slots.tolist(), members=[member])
    salts = {"1": bytes_of("salt").hex(), "4": bytes_of("another salt").hex()}
    book.ok("tag with two salts", "tag", **at, slots=inputs[2].tolist(), members=[2], salts=salts)
    book.ok("tag of zeros", "tag", **at, slots=[0, 0], members=[7])
    total = sum(inputs.values(), np.zeros(40, np.uint64)) % np.uint64(T)
    members = [*inputs]
    tag = sum(tags.make(KEY, of, [m], T, stream) for m, of in inputs.items()) % T
    of: dict[str, Any] = {**at, "slots": total.tolist(), "members": members, "tag": tag}
    summed, wrong = book.series("total", **of), "tamper:wrong-sum"
    summed.ok("total of three")
    flipped = total.copy()
    flipped[7] ^= np.uint64(1)
    exchanged = [*total[1::-1].tolist(), *total[2:].tolist()]
    doubled = ((2 * total) % np.uint64(T)).tolist()
    for name, changes in {
        "wrong tag": {"tag": (tag + 1) % T},
        "flipped bit of a slot": {"slots": flipped.tolist()},
        "exchanged slots": {"slots": exchanged},
        "scaled total": {"slots": doubled, "tag": 2 * tag % T},
        "contributor missing in the list": {"members": [1, 2]},
        "another contributor in the list": {"members": [1, 2, 3]},
        "replayed total of an earlier sum": {"sum": 2},
        "swapped stream: total of another segment": {"segment": bytes_of("other").hex()},
        "total of another run": {"run": bytes_of("other run", 16).hex()},
        "total under another cohort's key": {"key": bytes_of("other key").hex()},
        "total without its last slot": {"slots": total[:-1].tolist()},
    }.items():
        summed.no(wrong, name, **changes)
    more = [*total[:-1].tolist(), int(total[-1]) + T]
    summed.no("crypto:slots", "slot beyond the modulus", slots=more)
    summed.no("crypto:contributors", "contributor named twice", members=[1, 1, 2])


def ciphertexts(book: Book, key: secret.SecretKey) -> None:
    """Uploads and totals under the cohort's key."""
    rng = np.random.default_rng(2)
    context = load(context_bytes(COHORT))
    inputs = [rng.integers(0, T, 6, dtype=np.uint64) for _ in range(2)]
    uploads = []
    for number, slots in enumerate(inputs):
        with seeded(f"upload {number}"):
            own = secret.SecretKey.from_bytes(key.to_bytes())
            uploads.append(secret.seal(own, slots))
    for number, upload in enumerate(uploads):
        book.ok(f"upload {number}", "ciphertexts", **_sealed(upload, 1))
    short, full = SeededSum(context, 6), Sum(context, 6)
    for upload in uploads:
        short.add(upload)
        full.add(upload)
    total = _sealed(short.result(), 2)
    book.ok("total of two, with seeds", "ciphertexts", **total)
    book.ok("total of two, in full", "ciphertexts", **_sealed(full.result(), 2))
    one, form = uploads[0][0], "crypto:form"

    def no(code: str, name: str, *parts: bytes) -> None:
        book.no(code, name, "ciphertexts", **_sealed(parts, 1))

    no(form, "ciphertext of another scheme", b"\x05" + one[1:])
    no(form, "ciphertext cut short", one[:-1])
    book.no(form, "seed missing in a total", "ciphertexts", **{**total, "contributors": 3})
    no(form, "coefficient beyond its modulus", one[: 1 + 6 * 6] + b"\xff" * 6 + one[1 + 7 * 6 :])
    clear = b"\x02" + bytes(7 * (6 + 4096))
    no(form, "full ciphertext whose second half is zero", clear)
    longer = {**total, "data": b64encode(b64decode(total["data"]) + b"\0").decode()}
    book.no("wire:parts", "bytes after the ciphertexts", "ciphertexts", **longer)
    no("wire:parts", "two ciphertexts for six integers", *uploads[0], *uploads[1])


def _sealed(parts: Sequence[bytes], contributors: int) -> dict[str, Any]:
    data = b64encode(from_parts(parts)).decode()
    return {"data": data, "count": 6, "contributors": contributors}
