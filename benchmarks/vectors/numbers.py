"""Vectors of encodings, masks, shares, tags and ciphertexts."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np

from benchmarks.vectors.book import Book
from benchmarks.vectors.seeds import bytes_of, identity, seeded
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
    book.ok("segment of a first sum", "segment-key", **case)
    book.ok("segment after an opened sum", "segment-key", **{**case, "notes": [note, more]})
    book.ok(
        "segment of all, after a sum of a tier", "segment-key", **{**case, "notes": [note, tier]}
    )
    some = {"owners": ["east", "north"], "readers": ["south"], "notes": [note, tier]}
    book.ok("segment of two, read by a third", "segment-key", **{**case, **some})
    some = {"owners": ["east", "north"], "notes": [note, tier], "carry": True, "bound": None}
    book.ok("segment of a tier, carried", "segment-key", **{**case, **some})
    noised = {"noise": [1024.5, 70000.0], "bound": None}
    book.ok("segment with noise", "segment-key", **{**case, **noised})


def masks(book: Book) -> None:
    """Streams, mask keys, pair secrets, shares and commitments."""
    secret_, seed, other = bytes_of("secret"), bytes_of("seed", 16), bytes_of("other seed", 16)
    for purpose in ("pair", "self", "host", "pad", "tag", "tag members", "tag salt"):
        book.ok(f"stream of purpose {purpose}", "stream", secret=secret_.hex(), **AT,
                purpose=purpose, length=5)  # fmt: skip
    salted = (secret_ + bytes_of("salt")).hex()
    book.ok("stream of a salted pair", "stream", secret=salted, **AT, purpose="pair", length=5)
    for modulus in (3, 2**40 + 15, T, 2**62):
        book.ok(
            f"integers below {modulus}", "uniform", key=secret_.hex(), length=9, modulus=modulus
        )
    far = {**AT, "sum": 1 << 64}
    book.no("crypto:sum", "number of a sum beyond 64 bits", "stream", secret=secret_.hex(), **far,
            purpose="pair", length=1)  # fmt: skip
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

    def some(*numbers: int, **others: str) -> dict[str, str]:
        return {**{str(n): shares[str(n)] for n in numbers}, **others}

    book.ok("secret of three shares", "recover", shares=some(1, 3, 8), threshold=3)
    book.ok("secret of five shares", "recover", shares=some(*holders), threshold=3)
    book.ok("three of three with a secret of zeros", "share", secret="00" * 16,
            coefficients=coefficients, holders=[1, 2, 3])  # fmt: skip
    book.no("crypto:count", "two of three shares", "recover", shares=some(1, 3), threshold=3)
    book.no("crypto:holders", "share of holder 0", "recover",
            shares={"0": shares["1"], **some(2, 3)}, threshold=3)  # fmt: skip
    over = PRIME.to_bytes(17, "big").hex()
    unreduced = {**some(1, 2), "3": over}
    book.no("crypto:share", "share that is not reduced", "recover", shares=unreduced, threshold=3)
    short = {**some(1, 2), "3": shares["3"][2:]}
    book.no("crypto:share", "share of 16 bytes", "recover", shares=short, threshold=3)
    wrong = f"{int(shares['3'], 16) ^ (1 << 128):034x}"
    book.no(
        "crypto:secret", "wrong share", "recover", shares={**some(1, 2), "3": wrong}, threshold=3
    )
    swapped = {**some(1), "2": shares["3"], "3": shares["2"]}
    book.no("crypto:secret", "exchanged shares", "recover", shares=swapped, threshold=3)
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
    book.ok("total of three", "total", **of)

    def wrong(name: str, **changes: Any) -> None:
        book.no("tamper:wrong-sum", name, "total", **{**of, **changes})

    flipped = total.copy()
    flipped[7] ^= np.uint64(1)
    wrong("wrong tag", tag=(tag + 1) % T)
    wrong("flipped bit of a slot", slots=flipped.tolist())
    wrong("exchanged slots", slots=[*total[1::-1].tolist(), *total[2:].tolist()])
    doubled = (2 * total) % np.uint64(T)
    wrong("scaled total", slots=doubled.tolist(), tag=2 * tag % T)
    wrong("contributor missing in the list", members=[1, 2])
    wrong("another contributor in the list", members=[1, 2, 3])
    wrong("replayed total of an earlier sum", sum=2)
    wrong("swapped stream: total of another segment", segment=bytes_of("other").hex())
    wrong("total of another run", run=bytes_of("other run", 16).hex())
    wrong("total under another cohort's key", key=bytes_of("other key").hex())
    wrong("total without its last slot", slots=total[:-1].tolist())
    more = [*total[:-1].tolist(), int(total[-1]) + T]
    book.no("crypto:slots", "slot beyond the modulus", "total", **{**of, "slots": more})
    book.no(
        "crypto:contributors", "contributor named twice", "total", **{**of, "members": [1, 1, 2]}
    )


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
    one = uploads[0][0]

    def changed(data: bytes, contributors: int = 1) -> dict[str, Any]:
        return _sealed([data], contributors)

    form = "crypto:form"
    book.no(form, "ciphertext of another scheme", "ciphertexts", **changed(b"\x05" + one[1:]))
    book.no(form, "ciphertext cut short", "ciphertexts", **changed(one[:-1]))
    book.no(form, "seed missing in a total", "ciphertexts", **{**total, "contributors": 3})
    high = one[: 1 + 6 * 6] + b"\xff" * 6 + one[1 + 7 * 6 :]
    book.no(form, "coefficient beyond its modulus", "ciphertexts", **changed(high))
    clear = b"\x02" + bytes(7 * (6 + 4096))
    book.no(form, "full ciphertext whose second half is zero", "ciphertexts", **_short(clear))
    book.no("wire:parts", "bytes after the ciphertexts", "ciphertexts",
            **{**total, "data": b64encode(b64decode(total["data"]) + b"\0").decode()})  # fmt: skip
    book.no("wire:parts", "two ciphertexts for six integers", "ciphertexts",
            **_sealed([*uploads[0], *uploads[1]], 1))  # fmt: skip


def _sealed(parts: list[bytes], contributors: int) -> dict[str, Any]:
    data = b64encode(from_parts(parts)).decode()
    return {"data": data, "count": 6, "contributors": contributors}


def _short(data: bytes) -> dict[str, Any]:
    return _sealed([data], 1)


__all__ = ["ciphertexts", "encodings", "identity", "masks", "sums"]
