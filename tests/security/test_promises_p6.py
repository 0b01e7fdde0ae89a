"""P6: an aggregate that was changed, scaled, added to, counted twice or replayed is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from secure_fl.audits.selftest.malicious_federation import ChangedSum
from secure_fl.crypto.sealing import masking, public, tags
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.packing import from_slots, to_slots
from secure_fl.crypto.sealing.public import MemoryFile, from_parts, read_sum, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, TamperError, WireError
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.harness import Program, federate
from tests.support.attacker import NAMES, summing, tampering

M = np.uint64(COHORT.modulus)
Totals = dict[bytes, bytes]
SIZE = 50


def on_slots(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Change masked integers that are not encrypted."""

    def apply(data: bytes) -> bytes:
        return from_slots(change(to_slots(data, len(data) // 6)) % M)

    return apply


def slots_in(data: bytes) -> int:
    """How many integers a sum of one ciphertext, over all parties, holds."""
    return (len(data) - 5 - 64 * len(NAMES)) // 7


def on_ciphertexts(change: Callable[[ChangedSum], None]) -> Callable[[bytes], bytes]:
    """Change a sealed sum, by what anyone can do to it."""

    def apply(data: bytes) -> bytes:
        context, count = public.make_context(COHORT), slots_in(data)
        total = ChangedSum(context, count)
        with MemoryFile() as channel:
            (part,) = to_parts(data, count)
            sealed = read_sum(context, channel, part, count, len(NAMES))
            total.add([public.serialize(context, channel, sealed, count)])
        change(total)
        return from_parts(total.result())

    return apply


def on_seeds(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Change the seeds behind the first half of each ciphertext of a sum."""

    def apply(data: bytes) -> bytes:
        half = 1 + 7 * slots_in(data)
        (part,) = to_parts(data, slots_in(data))
        return from_parts([part[:half] + change(part[half:])])

    return apply


def plain(length: int) -> Any:
    slots = np.zeros(length, np.uint64)
    slots[0] = 1
    return slots


def again(total: ChangedSum) -> None:
    total.add(total.result())


def turned(total: ChangedSum) -> None:
    """Move every integer one place on: they are coefficients, and anyone may multiply by x."""
    for part in total._parts:
        total._evaluator.multiply_plain_inplace(part, sealapi.Plaintext("1x^1"))


CHANGES: dict[tuple[str, Protection], Callable[[bytes], bytes]] = {
    ("scaled", "secagg"): on_slots(lambda s: 3 * s),
    ("negated", "secagg"): on_slots(lambda s: M - s),
    ("one added to a slot", "secagg"): on_slots(lambda s: s + plain(s.size)),
    ("the tag alone", "secagg"): on_slots(lambda s: s + plain(s.size)[::-1]),
    ("all zero", "secagg"): on_slots(np.zeros_like),
    ("scaled", "he+secagg"): on_ciphertexts(lambda t: t.scale(3)),
    ("negated", "he+secagg"): on_ciphertexts(lambda t: t.scale(-1)),
    ("everybody twice", "he+secagg"): on_ciphertexts(again),
    ("a place on", "he+secagg"): on_ciphertexts(turned),
    ("one added to a slot", "he+secagg"): on_ciphertexts(lambda t: t.add_plain(plain(t.count))),
    ("a seed changed first", "he+secagg"): on_seeds(lambda s: bytes([s[0] ^ 1]) + s[1:]),
    ("a seed changed last", "he+secagg"): on_seeds(lambda s: s[:-1] + bytes([s[-1] ^ 1])),
    ("a seed for another", "he+secagg"): on_seeds(lambda s: s[:64] + s[:64] + s[128:]),
    ("a seed less", "he+secagg"): on_seeds(lambda s: s[64:]),
    ("a seed more", "he+secagg"): on_seeds(lambda s: s + bytes(64)),
    ("half a seed", "he+secagg"): on_seeds(lambda s: s[:32]),
    ("cut short", "he+secagg"): lambda data: data[:-1],
    ("one ciphertext twice", "he+secagg"): lambda data: data + data,
    ("bits flipped", "he+secagg"): lambda d: d[:47] + bytes([d[47] ^ 1]) + d[48:],
}


def honest(mode: Protection) -> Any:
    protection = ProtectionSettings(mode=mode, bits=16)
    return lambda run: blind_totals(protection, NAMES, host=None, threshold=3, run=run)


def run_with(
    mode: Protection, change: Callable[[Totals], Totals], programs: dict[str, Program]
) -> Any:
    """A run whose coordinator changes each total before it answers."""
    run = b"fixed for a test"
    return federate(
        programs, mode=mode, run=run, new_total=tampering(honest(mode)(run), change), catch=True
    )


def ones(times: int = 1) -> dict[str, Program]:
    return {n: summing({"x": np.ones(SIZE)}, times, bound=2.0) for n in NAMES}


def require_refused(out: Any) -> None:
    assert out.results == {} and out.error is not None
    kinds: set[type] = {TamperError, CryptoError, WireError}
    assert {type(s.error) for s in out.sessions.values()} & kinds
    # Who noticed is named, or whom the members convict: to everybody.
    assert out.error.where["party"] in (*NAMES, "coordinator")


def test_without_protection_a_changed_total_passes() -> None:
    def double(total: Totals) -> Totals:
        return {k: (2 * np.frombuffer(v, "<f4")).tobytes() for k, v in total.items()}

    out = run_with("none", double, ones())
    np.testing.assert_array_equal(out.results["east"][0]["x"], np.full(SIZE, 8.0))


@pytest.mark.parametrize(("what", "mode"), CHANGES)
def test_a_changed_aggregate_is_refused(what: str, mode: Protection) -> None:
    change = CHANGES[what, mode]
    require_refused(run_with(mode, lambda total: {k: change(v) for k, v in total.items()}, ones()))
    fine = run_with(mode, lambda total: total, ones())
    np.testing.assert_allclose(fine.results["east"][0]["x"], np.full(SIZE, 4.0), atol=1e-3)


@pytest.mark.parametrize(("what", "mode"), [w for w in CHANGES if w[0].startswith("a seed ")])
def test_wrong_seeds_fail_the_tag_and_a_wrong_number_is_malformed(
    what: str, mode: Protection
) -> None:
    change = CHANGES[what, mode]
    out = run_with(mode, lambda total: {k: change(v) for k, v in total.items()}, ones())
    expected = CryptoError if what in ("a seed less", "a seed more") else TamperError
    assert expected in {type(s.error) for s in out.sessions.values()}


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_an_old_aggregate_is_refused(mode: Protection) -> None:
    """Of the sum before, with the same names, shapes and inputs."""
    seen: list[Totals] = []

    def replay(total: Totals) -> Totals:
        seen.append(total)
        return dict(zip(total, seen[0].values(), strict=True))  # under the names of this sum

    require_refused(run_with(mode, replay, ones(times=2)))


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_an_aggregate_of_another_segment_is_refused(mode: Protection) -> None:
    """Two names with other owners but equal sizes, delivered crosswise."""

    def program(name: str) -> Program:
        async def run(cohort: Any) -> Any:
            values = {"a": np.ones(SIZE)}
            if name != "west":
                values["b"] = np.ones(SIZE)
            return await cohort.sum(values, partial=True, bound=2.0)

        return run

    def cross(total: Totals) -> Totals:
        first, second = sorted(total)
        return {first: total[second], second: total[first]}

    require_refused(run_with(mode, cross, {n: program(n) for n in NAMES}))


@pytest.mark.parametrize("mode", ["he+secagg", "secagg"])
def test_a_party_counted_twice_or_left_out_is_refused(mode: Protection) -> None:
    for times in (0, 2):
        run = b"fixed for a test"
        new_total = honest(mode)(run)

        def make(audience: Any, offered: Any, new: Any = new_total, often: int = times) -> Any:
            total = new(audience, offered)
            add = total.add

            class Counting:
                check, masked, result = total.check, total.masked, total.result
                lost, self_mask_seeds = total.lost, total.self_mask_seeds
                admit = total.admit

                def require_consistent(self, survivors: Any) -> None:
                    """It knows that this sum is wrong."""

                def add(self, sender: str, segments: Any, data: bytes) -> None:
                    for _ in range(often if sender == "north" else 1):
                        add(sender, segments, data)

            return Counting()

        require_refused(federate(ones(), mode=mode, run=run, new_total=make, catch=True))


def test_a_tag_without_constants_would_let_scaling_pass() -> None:
    key, stream = bytes(32), StreamId("run", "segment", 1)
    rng = np.random.default_rng(1)
    slots = rng.integers(0, COHORT.modulus, (3, SIZE), dtype=np.uint64)
    weights = masking.uniform(masking.stream_key(key, stream, "tag"), SIZE, COHORT.modulus)
    linear = [tags.dot(x, weights, COHORT.modulus) for x in slots]
    affine = [tags.make(key, x, [i], COHORT.modulus, stream) for i, x in enumerate(slots, 1)]
    total = slots.sum(axis=0) % M
    scaled = total * np.uint64(7) % M
    # The linear tag of the sum, scaled alike, is the right one for the scaled sum.
    assert tags.dot(scaled, weights, COHORT.modulus) == 7 * sum(linear) % COHORT.modulus
    tags.check(key, total, sum(affine) % COHORT.modulus, (1, 2, 3), COHORT.modulus, stream)
    with pytest.raises(TamperError):
        tags.check(key, scaled, 7 * sum(affine) % COHORT.modulus, (1, 2, 3), COHORT.modulus, stream)
