"""What one member can do to all others: with one message, at any time, and as often as it likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.crypto.blame.evidence import FalseShare, taken_by
from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.sealing import blind_sum, masking, packing, step_keys, transcript
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.packing import Layout
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.transcript import Scales
from secure_fl.errors import CryptoError, SecureFLError, TamperError
from secure_fl.federation.assembly import make_keys
from secure_fl.protocol.messages import Ready, SumId, SumInput, UnmaskShares
from secure_fl.protocol.ports import Group, Rule
from secure_fl.testing.harness import Federated, federate
from tests.support.attacker import NAMES, Wiretap, summing
from tests.support.raising import raises

LIAR = "west"
KEYS = make_keys("he+secagg", NAMES, None)
CARDS = {name: keys.identity.public for name, keys in KEYS.items()}
VALUES = {"x": np.linspace(-1, 1, 400, dtype=np.float32)}


LARGE = {"x": 300 * VALUES["x"]}


def with_a_negative_norm(
    monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any] = VALUES, **options: Any
) -> Federated:
    """A sum whose scale nobody knows; the norm that one of them gives cannot be one."""
    honest = Scales.unknown
    told: list[Scales] = []

    def unknown(scales: Scales, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        found = honest(scales, groups, rule)
        if scales not in told:
            told.append(scales)
        if found and told.index(scales) == NAMES.index(LIAR):  # parties come in this order
            wrong = {name: np.array([-1e9], np.float32) for name in found[0].vectors}
            return [Group(found[0].owners, wrong, found[0].readers)]
        return found

    monkeypatch.setattr(Scales, "unknown", unknown)
    programs = {name: summing(values, times=3, **options) for name in NAMES}
    return federate(programs, mode="he+secagg", catch=True, min_cohort=3)


def warned(out: Federated) -> list[Any]:
    """Who was told of impossible norms, once for each sum."""
    events = [event for event in out.events if event.get("code") == "impossible norms"]
    return sorted(event["party"] for event in events)


@pytest.mark.parametrize("carry", [True, False])
def test_a_negative_norm_before_there_is_a_grid_would_stop_all(
    monkeypatch: pytest.MonkeyPatch, carry: bool
) -> None:
    """Without another grid than that of the norms, there is none."""
    monkeypatch.setattr(Scales, "lied_about", lambda *_: False)
    out = with_a_negative_norm(monkeypatch, carry=carry)
    assert "math domain" in str(out.sessions["east"].error)


@pytest.mark.parametrize(("values", "atol"), [(VALUES, 0.2), (LARGE, 60)])
def test_who_sends_a_negative_norm_first_costs_nobody_the_run(
    monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any], atol: float
) -> None:
    """All seal by one wide grid, and take the next from what they opened."""
    out = with_a_negative_norm(monkeypatch, values, carry=True)
    first, *later = out.results["east"]
    np.testing.assert_allclose(first["x"], len(NAMES) * values["x"], atol=0.001)
    for found in later:
        np.testing.assert_allclose(found["x"], len(NAMES) * values["x"], atol=atol)
    assert warned(out) == sorted(NAMES)


def test_what_is_not_carried_travels_exactly_past_negative_norms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = with_a_negative_norm(monkeypatch)
    for found in out.results["east"]:
        np.testing.assert_allclose(found["x"], len(NAMES) * VALUES["x"], atol=1e-10)
    assert warned(out) == sorted(3 * NAMES)


def test_a_group_with_one_wrong_norm_keeps_the_grids_of_the_others() -> None:
    """A vector that has a scale, and one of which the norms are wrong, in one sum."""
    scales = Scales(8)
    scales.rms = {"known": 0.5}
    scales.learn({"|x": np.array([-1.0])})
    group = Group(NAMES, {"known": VALUES["x"], "x": VALUES["x"]}, ())
    layout = scales.layout(group, Rule(carry=True), len(NAMES))
    assert [field.clip for field in layout.packed] == [2.5, transcript.WIDE]
    total = {name: 4 * vector.astype(np.float64) for name, vector in group.vectors.items()}
    wrong = scales.opened(layout, total, {"known": 400.0}, len(NAMES), Rule(carry=True))
    assert wrong == ["x"]
    assert scales.rms["known"] == 0.5
    np.testing.assert_allclose(scales.rms["x"], 2 * np.sqrt(np.mean(VALUES["x"] ** 2)), rtol=1e-6)


def test_the_grid_that_a_total_gives_is_added_in_one_order() -> None:
    """Products of vectors differ in their last bits from processor to processor."""
    total, squares = np.random.default_rng(0).normal(size=20_000), 0.0
    for start in range(0, total.size, packing.BLOCK):
        block = 0.0
        for value in total[start : start + packing.BLOCK].tolist():
            block += value * value
        squares += block
    assert transcript._energy(total) == squares


def with_a_negative_norm_later(monkeypatch: pytest.MonkeyPatch) -> Federated:
    """Sums that carry their norms; in the second of three, the liar's is below nothing."""
    seal, encode = SecureSumInProgress._seal, Layout.encode
    speaking: list[tuple[str, int]] = []

    def sealing(sum: SecureSumInProgress, group: Group, at: SumId) -> object:
        speaking.append((sum._context.me, at[1]))
        return seal(sum, group, at)

    def encoding(layout: Layout, *what: Any) -> Any:
        slots, leftovers = encode(layout, *what)
        if speaking[-1] == (LIAR, 3):  # the first was of norms
            end = packing.WIDE_LIMBS * layout.scalars
            large, small = packing.decode_wide(slots[:end], 1)
            slots[:end] = packing.encode_wide(np.array([large - 1e6, small]))
        return slots, leftovers

    monkeypatch.setattr(SecureSumInProgress, "_seal", sealing)
    monkeypatch.setattr(Layout, "encode", encoding)
    programs = {name: summing(VALUES, times=3, carry=True) for name in NAMES}
    return federate(programs, mode="he+secagg", catch=True, min_cohort=3)


def test_a_norm_that_came_with_a_sum_ended_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: whatever norms came, the next scales were their roots."""
    honest = Scales.opened

    def opened(
        scales: Scales,
        layout: Layout,
        values: Mapping[str, Any],
        norms: Mapping[str, float],
        owners: int,
        rule: Rule,
    ) -> list[str]:
        _ = [sqrt(norm) for norm in norms.values()]
        return honest(scales, layout, values, norms, owners, rule)

    monkeypatch.setattr(Scales, "opened", opened)
    out = with_a_negative_norm_later(monkeypatch)
    assert out.results == {}
    assert "math domain" in str(out.sessions["east"].error)


def test_a_negative_norm_that_comes_with_a_sum_leaves_the_grid_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = with_a_negative_norm_later(monkeypatch)
    assert set(out.results) == set(NAMES)
    for sums in out.results.values():
        for found in sums:
            np.testing.assert_allclose(found["x"], len(NAMES) * VALUES["x"], atol=0.2)
    assert warned(out) == sorted(NAMES)


def with_false_shares(monkeypatch: pytest.MonkeyPatch) -> Federated:
    """East's share of north's seed makes that seed larger by one: it still has 128 bits."""
    honest = StepKeys.reveal

    def reveal(
        keys: StepKeys, signatures: Mapping[str, bytes], signers: Mapping[str, PublicIdentity]
    ) -> UnmaskShares:
        shares = honest(keys, signatures, signers)
        if keys.me != "east":
            return shares
        weight = masking._weights((1, 2, 3))[0]  # of east, where the first three are combined
        value = int.from_bytes(shares.seeds["north"], "big") + pow(weight, -1, masking.PRIME)
        false = (value % masking.PRIME).to_bytes(masking.SHARE_BYTES, "big")
        return structs.replace(shares, seeds={**shares.seeds, "north": false})

    monkeypatch.setattr(StepKeys, "reveal", reveal)
    programs = {name: summing(VALUES, times=2, bound=2.0) for name in NAMES}
    return federate(programs, mode="he+secagg", catch=True, min_cohort=3, keys=KEYS)


def test_a_false_share_would_spoil_the_sum_and_convict_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProtectedTotal, "check", lambda *_: None)
    monkeypatch.setattr(blind_sum, "commit", lambda _, *about: SEEDS[about[-1]])
    monkeypatch.setattr(step_keys, "commit", lambda _, *about: SEEDS[about[-1]])
    out = with_false_shares(monkeypatch)
    assert out.results == {} and isinstance(out.sessions["east"].error, TamperError)


SEEDS = {
    about: about.encode().ljust(32) for about in (*NAMES, "key", "self", "half")
}  # binding nobody


def test_who_reveals_a_false_share_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = with_false_shares(monkeypatch)
    assert out.error is None and set(out.results) == set(NAMES) - {"east"}
    for first, second in out.results.values():  # its input was in the first sum already
        np.testing.assert_allclose(first["x"], 4 * VALUES["x"], atol=1e-3)
        np.testing.assert_allclose(second["x"], 3 * VALUES["x"], atol=1e-3)
    (told,) = [event for event in out.events if event["event"] == "convicted"]
    assert told["parties"] == ["east"]
    found = FalseShare.read(told["evidence"])
    assert (found.accused, found.owner) == ("east", "north")
    found.check(CARDS)


def test_evidence_that_was_edited_convicts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = [e for e in with_false_shares(monkeypatch).events if e["event"] == "convicted"]
    found, other = FalseShare.read(told["evidence"]), Identity.generate("east").public
    for edited, cards in (
        (structs.replace(found, head=found.head[:-1] + bytes([found.head[-1] ^ 1])), CARDS),
        (structs.replace(found, upload=found.head), CARDS),
        (structs.replace(found, owner="south"), CARDS),
        (structs.replace(found, taken={**found.taken, found.owner: bytes(128)}), CARDS),
        (found, {**CARDS, "east": other}),
        (found, {"east": CARDS["east"]}),
    ):
        with pytest.raises(SecureFLError):
            edited.check(cards)
    for text in ("", "00", "no", told["evidence"][:-2]):
        with raises(CryptoError):
            FalseShare.read(text)


def test_an_honest_share_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    tap = Wiretap()
    programs = {name: summing(VALUES, bound=2.0) for name in NAMES}
    federate(programs, mode="he+secagg", min_cohort=3, keys=KEYS, engine=tap)
    offers = {name: tap.of(Ready, name)[0].message.offer for name in NAMES}
    (upload, *_), (revealed, *_) = tap.of(SumInput, "east"), tap.of(UnmaskShares, "east")
    found = FalseShare("north", taken_by("east", offers, None), upload.head, revealed.head)
    with raises(CryptoError, party="east"):
        found.check(CARDS)
