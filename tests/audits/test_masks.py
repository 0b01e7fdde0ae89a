"""Weak, bare and reused masks are found; the shipped ones are none of these."""

from __future__ import annotations

from secrets import token_bytes
from typing import Any

import numpy as np
import pytest

from secure_fl.audits.findings import Verdict
from secure_fl.audits.selftest import masks as trials
from secure_fl.audits.selftest.masks import (
    Effort,
    guess_seed,
    numpy_stream,
    repetition,
    reuse,
    self_stream,
    uniform_inputs,
    uniformity,
)
from secure_fl.crypto.sealing import masking, packing
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import Codec, to_slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.protocol import messages
from secure_fl.testing.harness import federate
from tests.support.attacker import NAMES, Wiretap, summing
from tests.support.readings import seeded

M = COHORT.modulus


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def uniform(size: int, seed: int) -> Slots:
    return rng(seed).integers(0, M, size, dtype=np.uint64)


def update(seed: int) -> Slots:
    values = rng(seed).normal(0, 0.01, 6000).astype(np.float32)
    codec = Codec(16, 4, M)
    return packing.pack(codec, packing.quantize(codec, values, 0.1, rng(seed))[0])


def test_a_seed_of_twelve_bits_is_found_and_one_of_128_is_not() -> None:
    mask = numpy_stream(2741)
    assert guess_seed(mask, lambda seed: numpy_stream(seed), 12) == 2741
    assert guess_seed(mask, lambda seed: numpy_stream(seed), 11) is None
    # The attack fits the shipped stream too.
    assert guess_seed(self_stream(77), lambda seed: self_stream(seed), 7) == 77
    shipped = self_stream(token_bytes(masking.SEED_BYTES))
    assert guess_seed(shipped, lambda seed: self_stream(seed), 10) is None


def test_streams_of_few_seeds_repeat() -> None:
    """Of n = 2^9 streams of 12 bits, n²/2^13 = 32 pairs are equal: none with chance e^-32."""
    draws = rng()
    assert repetition(lambda: numpy_stream(int(draws.integers(1 << 12))), 1 << 9)
    assert not repetition(lambda: self_stream(token_bytes(masking.SEED_BYTES)), 1 << 9)


def test_uniform_slots_pass_as_often_as_they_should() -> None:
    finding = [uniformity(uniform(1300, seed)) for seed in range(300)]
    assert sum(p < 0.05 for p in finding) <= 28  # P < 0.002 at 15 expected
    assert abs(float(np.mean(finding)) - 0.5) < 0.1
    few = [uniformity(uniform(90, seed)) for seed in range(300)]  # fewer bins
    assert sum(p < 0.05 for p in few) <= 28


def test_slots_without_masks_are_told_from_masked_ones() -> None:
    clear = update(0)
    assert uniformity(clear) < 1e-12
    assert uniform_inputs([clear, update(1)]).succeeded
    assert not uniform_inputs([uniform(3000, 1), uniform(3000, 2)]).succeeded


def test_too_few_slots_are_not_judged() -> None:
    finding = uniform_inputs([uniform(20, 1)])
    assert finding.value is None and finding.note
    assert np.isnan(uniformity(uniform(20, 1)))
    assert reuse([uniform(3000, 1)]).value is None  # nothing to compare it with


@pytest.mark.parametrize("sign", [1, -1])
def test_a_mask_that_is_used_twice_is_found(sign: int) -> None:
    """With the opposite sign too, as two parties use what they share."""
    mask = uniform(3000, 9)
    again = mask if sign == 1 else (np.uint64(M) - mask) % np.uint64(M)
    first, second = (update(1) + mask) % np.uint64(M), (update(2) + again) % np.uint64(M)
    other = (update(3) + uniform(3000, 10)) % np.uint64(M)
    assert not uniform_inputs([first, second, other]).succeeded  # each for itself looks well
    assert reuse([first, other, second]).succeeded
    assert not reuse([first, other]).succeeded
    short = reuse([first, second[:2000]])
    assert short.succeeded and short.details["unlike uniform"] == 1


def recorded(values: Any) -> dict[str, list[Slots]]:
    tap = Wiretap()
    federate({n: summing(values, 3, bound=0.1) for n in NAMES}, mode="secagg", engine=tap)
    finding: dict[str, list[Slots]] = {name: [] for name in NAMES}
    for name in NAMES:
        for heard in tap.of(messages.SumInput, name):
            finding[name].append(to_slots(heard.bulk, len(heard.bulk) // 6))
    return finding


def test_what_parties_send_is_uniform_and_shares_no_mask() -> None:
    finding = recorded({"x": rng().normal(0, 0.01, 6000)})
    for name in NAMES:
        assert len(finding[name]) == 3 and finding[name][0].size > 1300
        assert not uniform_inputs(finding[name]).succeeded
        assert not reuse(finding[name]).succeeded


def test_a_program_that_forgets_to_count_its_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the program: seeds and streams of the first sum serve all of them."""

    def info(self: StreamId, purpose: Any) -> bytes:
        return real(StreamId(self.run, self.segment, 0), purpose)

    begin = StepKeys.__init__

    def same_seeds(self: StepKeys, *given: Any) -> None:
        begin(self, *given)
        self._mask_seed = self._self_seed = self.me.encode().ljust(16)
        self._mask_key = masking.mask_key(self._mask_seed)

    real, clear = StreamId.info, [update(k) for k in range(2)]
    monkeypatch.setattr(StepKeys, "__init__", same_seeds)
    sent = trials.shipped_inputs(clear)
    assert not reuse(sent).succeeded  # the number alone keeps the streams apart
    monkeypatch.setattr(StreamId, "info", info)
    sent = trials.shipped_inputs(clear)
    assert not uniform_inputs(sent).succeeded
    assert reuse(sent).succeeded


def test_the_trials_hold_and_recorded_inputs_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "QUICK", Effort(10, 10, 8))
    mask = uniform(3000, 4)
    twice = [(update(k) + mask) % np.uint64(M) for k in range(2)]
    finding = trials.mask_trials(seeded(5), quick=True, recorded={"east": twice})
    assert [t.verdict for t in finding[:4]] == [Verdict.HOLDS] * 4
    bare, reused = finding[4:]
    assert bare.verdict is Verdict.HOLDS and reused.verdict is Verdict.LEAKS
    assert reused.deployed is not None and reused.deployed.target == "east"
    again = trials.mask_trials(seeded(5), quick=True, recorded={"east": twice})
    assert finding == again  # although masks are drawn afresh
    few = trials.mask_trials(seeded(5), quick=True, recorded={"east": [uniform(30, 1)] * 2})
    assert [t.verdict for t in few[4:]] == [Verdict.UNTESTED] * 2
    assert all(t.reason for t in few[4:])
