"""Tags: exact arithmetic, and every way a coordinator may change a sum is caught."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing import tags
from secure_fl.crypto.sealing.masking import StreamId, stream_key, uniform
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, TamperError
from tests.support.raising import raises

T = COHORT.modulus
PRIME42 = 4398046486529  # another prime, of 42 bits
KEY = bytes(range(32))
STREAM = StreamId("run", "segment", 5)
MEMBERS = [1, 2, 4]


def slots_of_all(length=300):
    rng = np.random.default_rng(0)
    return {member: rng.integers(0, T, length, dtype=np.uint64) for member in MEMBERS}


def total(*parts):
    return sum(parts, np.zeros_like(parts[0])) % np.uint64(T)


def make(slots, member, stream=STREAM):
    return tags.make(KEY, slots, [member], T, stream)


def check(slots, tag, contributors=MEMBERS, stream=STREAM):
    tags.check(KEY, slots, tag % T, contributors, T, stream)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 200),
    seed=st.integers(0, 2**32),
    modulus=st.sampled_from([T, PRIME42, 1 << 44, 3]),
)
def test_the_dot_product_is_exact(length, seed, modulus):
    rng = np.random.default_rng(seed)
    x, r = rng.integers(0, modulus, (2, length), dtype=np.uint64)
    x[0] = r[0] = modulus - 1
    expected = sum(int(a) * int(b) for a, b in zip(x, r, strict=True)) % modulus
    assert tags.dot(x, r, modulus) == expected


def test_the_dot_product_does_not_overflow_over_many_blocks():
    x = np.full(3 * tags.BLOCK + 5, (1 << 44) - 1, np.uint64)
    assert tags.dot(x, x, T) == x.size * ((1 << 44) - 1) ** 2 % T


def test_known_answer():
    x = slots_of_all()[2]
    r = uniform(stream_key(KEY, STREAM, "tag"), x.size, T)
    constant = int(uniform(stream_key(KEY, STREAM, "tag members"), 3, T)[2])
    expected = sum(int(a) * int(b) for a, b in zip(r, x, strict=True)) + constant
    assert make(x, 2) == expected % T


def test_an_honest_sum_passes():
    x = slots_of_all()
    check(total(*x.values()), sum(make(x[m], m) for m in MEMBERS))
    check(total(x[1], x[4]), make(x[1], 1) + make(x[4], 4), [4, 1])


def honest():
    x = slots_of_all()
    return x, {m: make(x[m], m) for m in MEMBERS}


def test_a_scaled_sum_is_caught():
    x, tag = honest()
    for factor in (2, 3, T - 1, pow(3, -1, T)):
        scaled = [int(slot) * factor % T for slot in total(*x.values())]
        with raises(TamperError, sum=5):
            check(np.array(scaled, np.uint64), sum(tag.values()) * factor)
    with pytest.raises(TamperError):
        check(np.zeros(300, np.uint64), 0)


def test_without_the_constants_a_scaled_sum_would_pass():
    """Why tags are affine: the linear part alone is blind to scaling and to double counting."""
    x, _ = honest()
    r = uniform(stream_key(KEY, STREAM, "tag"), 300, T)
    opened = total(*x.values())
    linear = sum(tags.dot(x[m], r, T) for m in MEMBERS)
    doubled = total(opened, opened)
    assert tags.dot(opened, r, T) == linear % T
    assert tags.dot(doubled, r, T) == 2 * linear % T  # accepted, though every party counts twice


def test_an_injected_or_changed_slot_is_caught():
    x, tag = honest()
    opened = total(*x.values())
    for place in (0, 299):
        for difference in (1, T - 1, 1 << 33):
            changed = opened.copy()
            changed[place] = (int(changed[place]) + difference) % T
            with pytest.raises(TamperError):
                check(changed, sum(tag.values()))
    with pytest.raises(TamperError):
        check(opened[::-1].copy(), sum(tag.values()))
    with pytest.raises(TamperError):
        check(opened, sum(tag.values()) + 1)


def test_one_party_counted_twice_is_caught():
    x, tag = honest()
    with pytest.raises(TamperError):
        check(total(*x.values(), x[1]), sum(tag.values()) + tag[1])
    # the number of contributors alone would not show this: 1 twice, 2 not at all
    with pytest.raises(TamperError):
        check(total(x[1], x[1], x[4]), 2 * tag[1] + tag[4])


def test_a_missing_or_foreign_contributor_is_caught():
    x, tag = honest()
    with pytest.raises(TamperError):
        check(total(x[1], x[2]), tag[1] + tag[2])
    with pytest.raises(TamperError):
        check(total(*x.values()), sum(tag.values()), [1, 2, 3])


def test_a_replay_is_caught_and_named():
    x, tag = honest()
    opened = total(*x.values())
    for stream in (
        StreamId("run", "segment", 6),
        StreamId("run", "other", 5),
        StreamId("nur", "segment", 5),
    ):
        with raises(TamperError, reason="wrong-sum", sum=stream.sum):
            check(opened, sum(tag.values()), stream=stream)


def test_bad_input_is_refused():
    x = slots_of_all()[1]
    for refused in (
        lambda: make(x, -1),
        lambda: make(x, 1 << 20),
        lambda: check(x, 0, [1, 1]),
        lambda: make(x[:0], 1),
        lambda: make(np.array([T], np.uint64), 1),
        lambda: make(x.astype(np.int64), 1),
        lambda: tags.dot(x, x[1:], T),
        lambda: tags.dot(x, x, 1 << 45),
        lambda: tags.make(bytes(8), x, [1], T, STREAM),
    ):
        with pytest.raises(CryptoError):
            refused()
