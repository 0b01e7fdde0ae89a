"""The party's half of a sum: exactness, error feedback over rounds, refusals, and erasure."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.packing import CLIP_IN_RMS, SLOT_BYTES, Codec
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.transcript import Scales, Transcript
from secure_fl.errors import BudgetError, CohortError, CryptoError, TamperError, TrainingError
from secure_fl.federation.assembly import make_keys, privacy_layer
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group, Rule, SumInProgress, SumLayer
from secure_fl.seeds import seed_for
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.harness import Federated, Program, federate

NAMES = ("a", "b", "c", "d")
PROTECTED: tuple[Protection, ...] = ("secagg", "he+secagg")


def inputs(name: str, size: int = 400) -> Any:
    return np.random.default_rng(ord(name)).normal(size=size).astype(np.float32)


def carrying(name: str, factors: Sequence[float]) -> Program:
    """Sum the same update, times a factor per round, with error feedback."""

    async def program(cohort: Cohort) -> Any:
        base = inputs(name)
        return [(await cohort.sum({"w": base * np.float32(f)}, carry=True))["w"] for f in factors]

    return program


def exact() -> Any:
    """The sum of all inputs."""
    return np.sum([inputs(n).astype(np.float64) for n in NAMES], axis=0)


def carried(out: Federated) -> Any:
    """The sum of all leftovers."""
    return np.sum([leftover(out, n).astype(np.float64) for n in NAMES], axis=0)


def leftover(out: Federated, name: str) -> Any:
    sums: Any = out.sessions[name]._sums
    return sums.context.transcript.scales.leftovers["w"]


@pytest.mark.parametrize("mode", PROTECTED)
@pytest.mark.parametrize("bits", packing.BITS)
def test_the_opened_sum_is_the_integer_sum_exactly(mode: Protection, bits: Any) -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"w": inputs(cohort.me)}, bound=8.0)

    out = federate(dict.fromkeys(NAMES, program), mode=mode, bits=bits)
    codec = Codec(bits, 4, COHORT.modulus)
    whole = np.zeros(400, np.int64)
    for name in NAMES:
        rng = np.random.Generator(np.random.PCG64(seed_for(0, "rounding", name)))
        whole += packing.quantize(codec, inputs(name), np.full(400, 8.0, np.float32), rng)[0]
    expected = packing.dequantize(codec, whole, np.full(400, 8.0, np.float32))
    for result in out.results.values():
        assert result["w"].tobytes() == expected.tobytes()
        # Stochastic rounding is off by less than one step per party.
        assert np.abs(result["w"] - exact()).max() < 4 * 8.0 / codec.levels


@pytest.mark.parametrize("bits", [4, 6, 8, 12])
def test_what_rounding_and_clipping_leave_over_is_added_exactly_once(bits: Any) -> None:
    """Over all rounds, opened sums and leftovers make up the inputs."""
    factors = (1, 1, 50, 0.01, 1)
    out = federate({n: carrying(n, factors) for n in NAMES}, mode="secagg", bits=bits)
    opened = np.sum(out.results["a"], axis=0)
    np.testing.assert_allclose(opened + carried(out), sum(factors) * exact(), atol=1e-3)
    assert np.abs(carried(out)).max() > 1e-3  # there was something to carry


def largest(error: Any) -> float:
    return float(np.abs(error).max())


# At 4 bits the same value beyond the clip in every round is made up for only slowly.
@pytest.mark.parametrize(("bits", "size"), [(4, np.linalg.norm), (8, largest)])
def test_the_mean_over_rounds_is_unbiased(bits: Any, size: Callable[[Any], float]) -> None:
    rounds = 40
    out = federate({n: carrying(n, [1.0] * rounds) for n in NAMES}, mode="secagg", bits=bits)
    last, mean = out.results["a"][-1], np.mean(out.results["a"], axis=0)
    # With feedback the error of the mean falls as 1/rounds.
    np.testing.assert_allclose(mean - exact(), -carried(out) / rounds, atol=1e-4)
    assert size(mean - exact()) < size(last - exact()) / 3


def test_the_scale_follows_updates_that_grow_and_shrink_a_hundredfold() -> None:
    factors = [1.0, 100.0] + [100.0] * 30 + [1.0] * 30
    out = federate({n: carrying(n, factors) for n in NAMES}, mode="secagg", bits=8)
    sums: Any = out.sessions["a"]._sums
    grown = np.mean(out.results["a"][16:32], axis=0)
    np.testing.assert_allclose(grown, 100 * exact(), atol=30)  # clipped at first, then caught up
    rms = float(np.sqrt(np.mean([np.square(inputs(n)) for n in NAMES])))
    assert sums.context.transcript.scales.rms["w"] < 5 * rms  # and small again
    back = np.mean(out.results["a"][-8:], axis=0)
    np.testing.assert_allclose(back, exact(), atol=5 * rms * CLIP_IN_RMS[8] / 127)


@pytest.mark.parametrize("options", [{}, {"carry": True}])
@pytest.mark.parametrize("own", [3e6, 2.0**19, 1.0])
def test_first_norms_beyond_the_exact_range_are_summed_again(
    own: float, options: dict[str, Any]
) -> None:
    """One hospital with many records, or all of them, or a norm that is only large in the sum."""

    async def program(cohort: Cohort) -> Any:
        factor = 3e6 if cohort.me == "a" else own
        return (await cohort.sum({"w": factor * inputs(cohort.me)}, **options))["w"]

    out = federate(dict.fromkeys(NAMES, program), mode="he+secagg", bits=24)
    true = np.sum([(3e6 if n == "a" else own) * inputs(n) for n in NAMES], axis=0)
    np.testing.assert_allclose(out.results["d"], true, atol=60)


@pytest.mark.parametrize("options", [{}, {"carry": True}, {"partial": True}])
@pytest.mark.parametrize("factor", [1e-7, 1e-9, 1e-15])
def test_a_first_sum_of_small_values_is_not_zero(factor: float, options: dict[str, Any]) -> None:
    async def program(cohort: Cohort) -> Any:
        return (await cohort.sum({"w": factor * inputs(cohort.me)}, **options))["w"]

    out = federate(dict.fromkeys(NAMES, program), mode="he+secagg", bits=24)
    found, true = out.results["d"], factor * exact()
    least = 2.0 ** (-20 if "partial" in options else -38)  # of one unit of the squared norm
    allowed = 16 * max(least, float(np.linalg.norm(true))) / 2**23
    assert np.any(found) and np.abs(found - true).max() < allowed


@pytest.mark.parametrize("value", [1e13, 3e6])
def test_numbers_beyond_the_exact_range_are_an_error_that_names_them(value: float) -> None:
    """Not all members see the norms of a partial sum, so none of them is summed again."""

    async def program(cohort: Cohort) -> Any:
        factor = 1 if cohort.me == "b" else value
        values = {"deep": factor * (np.ones(3) if value > 1e12 else inputs(cohort.me))}
        await cohort.sum(values, partial=value < 1e12)

    out = federate(dict.fromkeys(NAMES, program), mode="secagg", catch=True)
    error = out.sessions["a"].error
    assert isinstance(error, CryptoError) and "deep" in error.what and "weight" in error.fix


def test_updates_of_zero_and_what_follows_them() -> None:
    out = federate({n: carrying(n, (0, 0, 1, 1, 0, 0)) for n in NAMES}, mode="secagg", bits=8)
    results = out.results["a"]
    assert not np.any(results[0]) and not np.any(results[1])
    np.testing.assert_allclose(np.sum(results, axis=0) + carried(out), 2 * exact(), atol=1e-3)
    assert np.abs(carried(out)).max() < np.abs(exact()).max() / 2


def test_values_that_grow_beyond_their_scale_are_reported() -> None:
    out = federate({n: carrying(n, (1, 1, 100, 100)) for n in NAMES}, mode="secagg", bits=8)
    told = [event for event in out.events if event.get("code") == "clipped"]
    assert {event["party"] for event in told} == set(NAMES) and len(told) == len(NAMES)
    assert all("w" in event["text"] for event in told)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_leftover_that_is_taken_is_not_added_again(bits: Any) -> None:
    """Opened sums and what was taken make up the inputs, round by round."""

    async def program(cohort: Cohort) -> Any:
        base, rounds = inputs(cohort.me).reshape(20, 20), []
        for factor in (1, 50, 0.01):
            values = {"w": base * np.float32(factor), "count": np.float32(7)}
            opened = (await cohort.sum(values, carry=True))["w"]
            assert cohort.leftover("count") is None  # small vectors travel exactly
            rounds.append((factor, opened, cohort.leftover("w")))
            assert cohort.leftover("w") is None
        return rounds

    out = federate(dict.fromkeys(NAMES, program), mode="secagg", bits=bits)
    base = exact().reshape(20, 20)
    for rounds in zip(*out.results.values(), strict=True):
        factor, opened, _ = rounds[0]
        taken = np.sum([rest.astype(np.float64) for _, _, rest in rounds], axis=0)
        np.testing.assert_allclose(opened + taken, factor * base, atol=1e-5 * max(1, factor))
        assert np.abs(taken).max() > 0
        assert rounds[0][2].shape == (20, 20) and rounds[0][2].dtype == np.float32


@pytest.mark.parametrize("mode", ["none", "secagg"])
def test_only_what_this_round_carried_can_be_taken(mode: Protection) -> None:
    async def program(cohort: Cohort) -> Any:
        seen = [cohort.leftover("w")]
        await cohort.sum({"w": inputs(cohort.me)}, bound=8.0)
        seen.append(cohort.leftover("w"))
        async for _ in cohort.rounds(2):
            seen.append(cohort.leftover("w"))
            await cohort.sum({"w": inputs(cohort.me)}, carry=True)
        return seen

    out = federate(dict.fromkeys(NAMES, program), mode=mode, bits=8)
    assert out.results["a"] == [None] * 4
    assert mode == "none" or leftover(out, "a").size == 400  # still there for the next sum


@pytest.mark.parametrize(("mode", "last"), [("secagg", 5), ("none", 400)])
def test_no_leftover_after_a_value_of_another_size_or_in_the_clear(
    mode: Protection, last: int
) -> None:
    async def program(cohort: Cohort) -> Any:
        await cohort.sum({"w": inputs(cohort.me)}, carry=True)
        await cohort.sum({"w": np.ones(last)}, carry=True)
        return cohort.leftover("w")

    out = federate(dict.fromkeys(NAMES, program), mode=mode, bits=8)
    assert out.results == dict.fromkeys(NAMES)


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        *(([1.0, bad], {"carry": True}, TrainingError) for bad in (np.nan, np.inf, -np.inf)),
        ([2.5] * 20, {"bound": 2.0}, CryptoError),
        ([1.0] * 20, {"reveal": Audience.HOST}, CohortError),  # a host sum needs a bound
    ],
)
def test_values_that_cannot_be_summed_never_leave(
    value: list[float], options: dict[str, Any], error: type[Exception]
) -> None:
    async def program(cohort: Cohort) -> Any:
        await cohort.sum({"w": np.array(value)}, **options)

    host = "d" if "reveal" in options else None
    out = federate(dict.fromkeys(NAMES, program), host=host, mode="he+secagg", catch=True)
    assert isinstance(out.sessions["a"].error, error) and out.results == {}


class ThinNoise:
    """A noise share that is too small unless four parties add theirs."""

    scale = 1.0
    reach = 100.0
    prepaid = False

    def share(self, x: Any) -> Any:
        return np.rint(x).astype(np.int64) + 1

    def check_survivors(self, survivors: int) -> None:
        if survivors < 4:
            raise BudgetError("this sum lost too much of its noise", reason="too-many-dropouts")


def sums_of(name: str, mode: Protection = "secagg", host: str | None = None) -> SumLayer:
    settings = ProtectionSettings(mode=mode)
    rules, keys = CoordinatorRules(host, 2, 3), KEYS[mode][name]
    return privacy_layer(settings, keys, rules, run=bytes(16), seed=0).sums


KEYS = {mode: make_keys(mode, NAMES, None) for mode in ("none", "secagg")}


def begun(rule: Rule) -> SumInProgress:
    """One party's half of a sum whose input has been sent."""
    sums = {n: sums_of(n) for n in NAMES}
    offers = {n: half.next_keys(NAMES) for n, half in sums.items()}
    sums["a"].accept({n: o for n, o in offers.items() if o is not None}, NAMES)
    group = Group(NAMES, {"w": np.zeros(20, np.float32)})
    under_way = sums["a"].begin([group], rule, (1, 1))
    with pytest.raises(CohortError, match="no keys are left"):
        sums["a"].begin([group], rule, (1, 2))  # no key serves two sums
    return under_way


def test_noise_that_fits_takes_no_more_bits() -> None:
    group = Group(NAMES, {"w": np.zeros(20, np.float32)})
    scales = Scales(8)
    plain = scales.layout(group, Rule(bound=1.0), 4).codec
    assert scales.layout(group, Rule(bound=1.0, noise=ThinNoise()), 4).codec.extra == plain.extra


def test_a_sum_that_lost_too_much_noise_is_not_unmasked() -> None:
    rule = Rule(bound=1.0, noise=ThinNoise())
    assert begun(rule).settle(messages.Unmask(NAMES, (), sum=1)) is None
    with pytest.raises(BudgetError):
        begun(rule).settle(messages.Unmask(NAMES[:3], NAMES[3:], sum=1))


def test_each_step_of_a_sum_is_taken_once_and_in_order() -> None:
    everybody, total = messages.Unmask(NAMES, (), sum=1), [b""]
    under_way = begun(Rule(bound=1.0))
    for early in (lambda: under_way.shares(None), lambda: under_way.open(total, NAMES)):
        with pytest.raises(CohortError):
            early()
    assert under_way.settle(everybody) is None
    for wrong in (lambda: under_way.settle(everybody), lambda: under_way.open(total, NAMES)):
        with pytest.raises(CohortError):
            wrong()
    assert set(under_way.shares(None).seeds) == set(NAMES)
    for again in (lambda: under_way.settle(everybody), lambda: under_way.shares(None)):
        with pytest.raises(CohortError):
            again()
    slots = b"".join(bytes([6]) * SLOT_BYTES for _ in range(under_way.upload.segments[0].slots))
    with pytest.raises(TamperError):
        under_way.open([slots], NAMES)
    with pytest.raises(CohortError, match="or twice"):
        under_way.open([slots], NAMES)


def test_a_party_refuses_totals_of_a_host_sum() -> None:
    sums = {name: sums_of(name, host="d") for name in NAMES}
    offers = {n: offer for n, half in sums.items() if (offer := half.next_keys(NAMES)) is not None}
    sums["a"].accept(offers, NAMES)
    group = Group(NAMES[:3], {"w": np.ones(20, np.float32)})
    under_way = sums["a"].begin([group], Rule(Audience.HOST, bound=1.0), (1, 1))
    under_way.settle(messages.Unmask(NAMES, (), sum=1))
    under_way.shares(None)
    with pytest.raises(TamperError) as caught:
        under_way.open([under_way.upload.data], NAMES)
    assert caught.value.reason == "wrong-sum"
    assert "segment" not in caught.value.where  # their number is wrong, not one of them
    assert under_way.open([], NAMES) == {}  # as an honest coordinator answers


def test_a_sum_without_masks_has_nothing_to_settle_and_opens_once() -> None:
    sums = sums_of("a", "none")
    assert sums.next_keys(NAMES) is None
    under_way = sums.begin([Group(("a",), {"k": np.ones(3, np.float32)})], Rule(), (1, 1))
    for masked in (
        lambda: under_way.settle(messages.Unmask(NAMES, (), sum=1)),
        lambda: under_way.shares(None),
    ):
        with pytest.raises(CohortError):
            masked()
    assert under_way.open([under_way.upload.data], ("a",))["k"].tolist() == [1, 1, 1]
    with pytest.raises(CohortError):
        under_way.open([under_way.upload.data], ("a",))


def test_keys_of_a_step_are_gone_when_it_is_over() -> None:
    def kept(me: str) -> list[int]:
        gc.collect()
        found = [o for o in gc.get_objects() if type(o) is StepKeys]
        return sorted(keys.index for keys in found if keys.me == me)

    async def program(cohort: Cohort) -> Any:
        seen = []
        for _ in range(3):
            await cohort.sum({"w": np.ones(20)}, bound=1.0)
            seen.append(kept(cohort.me))
        return seen

    names = ("gone-1", "gone-2", "gone-3")
    gc.freeze()  # what is older holds none of them, and takes long to look through
    try:
        out = federate(dict.fromkeys(names, program), mode="secagg")
    finally:
        gc.unfreeze()
    for name in names:
        assert out.results[name] == [[2], [3], [4]]  # those of the next sum, and no others


def test_checkpoints_hold_no_keys() -> None:
    out = federate({n: carrying(n, (1,)) for n in NAMES}, mode="he+secagg")
    sums: Any = out.sessions["a"]._sums
    assert set(sums.context.transcript.state()) == {"scales", "seen", "rng"}


def test_a_transcript_continues_from_its_state() -> None:
    """A resumed party has the same scales, leftovers, history and rounding as one that ran on."""
    out = federate({n: carrying(n, (1, 2)) for n in NAMES}, mode="secagg")
    sums: Any = out.sessions["a"]._sums
    transcript: Transcript = sums.context.transcript
    transcript.turn()
    again = Transcript(8, np.random.default_rng(0))
    again.restore(transcript.state())
    for mine, theirs in ((transcript.scales.rms, again.scales.rms),
                         (transcript.scales.grid, again.scales.grid)):  # fmt: skip
        assert mine == theirs and set(mine) == {"w"}
    assert np.array_equal(leftover(out, "a"), again.scales.leftovers["w"])
    assert transcript.seen.state() == again.seen.state() != {}
    assert transcript.rng.integers(2**62) == again.rng.integers(2**62)


@pytest.mark.parametrize("host", [None, "d"])
def test_after_sums_over_all_parties_newcomers_can_still_join(host: str | None) -> None:
    async def program(cohort: Cohort) -> Any:
        await cohort.sum({} if cohort.is_host else {"w": inputs("a")}, carry=True)

    out = federate(dict.fromkeys(NAMES, program), host=host, mode="secagg", catch=True)
    sums: Any = out.sessions["a"]._sums
    transcript: Transcript = sums.context.transcript
    transcript.turn()
    assert out.error is None and transcript.seen.common() != {}


def test_a_program_that_sums_in_another_way_gets_nothing() -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"w": np.ones(20)}, bound=2.0 if cohort.me == "d" else 1.0)

    out = federate(dict.fromkeys(NAMES, program), mode="secagg", catch=True)
    assert isinstance(out.error, CohortError) and out.results == {}
