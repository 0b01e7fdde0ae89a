"""InclusiveFL's mixing: by hand, against a server that sees everything, and against an attacker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.algorithms.inclusivefl.mixing import SealedMixing, TierSums
from secure_fl.algorithms.server_optimizers import ServerAdam, ServerSGD
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from tests.support.toy_tiers import Reference, names_of, play

DEPTHS = {"weak": 1, "medium": 2, "strong": 3}
TIERS = {"a1": "weak", "a2": "weak", "b1": "medium", "b2": "medium"} | {
    f"c{i}": "strong" for i in range(1, 5)
}


def adam() -> ServerAdam:
    return ServerAdam(η=0.1, β1=0.5, β2=0.75, τ=0.5)


def plain() -> ServerSGD:
    return ServerSGD(1.0)


def full(depth: int, **values: float) -> dict[str, float]:
    """An update that is zero but where said; `_` stands for "."."""
    return dict.fromkeys(names_of(depth), 0.0) | {k.replace("_", "."): v for k, v in values.items()}


def by_hand(way: Any, server: Any, reading: str = "unmixed") -> Any:
    """Three rounds. Means of a tier are over users whose updates differ."""
    rounds = {
        "a1": [full(1, emb_w=1, enc_0_w=2, head_w=1), full(1, enc_0_w=10), full(1)],
        "a2": [full(1, emb_w=3, enc_0_w=4, head_w=1), full(1, enc_0_w=10), full(1)],
        "b1": [full(2, emb_w=4, enc_0_w=1, enc_1_w=6), full(2, enc_1_w=7), full(2)],
        "b2": [full(2, emb_w=4, enc_0_w=3, enc_1_w=6), full(2, enc_1_w=9), full(2)],
        "c1": [full(3, emb_w=0, enc_0_w=5, enc_1_w=1, enc_2_w=3), full(3), full(3)],
        "c2": [full(3, emb_w=0, enc_0_w=5, enc_1_w=1, enc_2_w=3), full(3), full(3)],
        "c3": [full(3, emb_w=4, enc_0_w=5, enc_1_w=0, enc_2_w=3), full(3), full(3)],
        "c4": [full(3, emb_w=4, enc_0_w=5, enc_1_w=2, enc_2_w=3), full(3), full(3)],
    }
    out = play(way, TIERS, DEPTHS, rounds, server=server, reading=reading)
    return {p: [{n: float(w) for n, w in m.items()} for m in out.results[p]] for p in TIERS}


@pytest.mark.parametrize("way", [TierSums, SealedMixing])
def test_three_rounds_by_hand_with_a_server_that_adds(way: Any) -> None:
    models = by_hand(way, plain)
    a, b, c = models["a1"], models["b1"], models["c1"]
    # Round 1. Line 14: means over the users of a tier.
    #   weak: emb 2, layer 1 3;  medium: emb 4, layers 2, 6;  strong: emb 2, layers 5, 1, 3
    # Lines 15-18: no momentum has been seen. Line 19 adds. Lines 26-29, n = 2, 2, 4:
    assert a[0]["emb.w"] == b[0]["emb.w"] == c[0]["emb.w"] == (2 * 2 + 2 * 4 + 4 * 2) / 8
    assert a[0]["enc.0.w"] == 3 and a[0]["head.w"] == 1  # isolated in the weak model
    shared = (2 * 2 + 4 * 5) / 6  # layer 1 is below the last of medium and strong
    assert b[0]["enc.0.w"] == pytest.approx(shared) and c[0]["enc.0.w"] == b[0]["enc.0.w"]
    assert b[0]["enc.1.w"] == 6  # isolated in the medium model,
    assert c[0]["enc.1.w"] == 1 and c[0]["enc.2.w"] == 3  # so strong has layer 2 to itself
    # Lines 20-23: m^medium over layers [1 : 2] = (2 + 6)/2 = 4, m^strong over [2 : 3] = (1 + 3)/2
    # Round 2, line 17: weak ½·4 + ½·10 = 7; medium ½·2 + ½·8 = 5; strong has nobody above it.
    assert a[1]["enc.0.w"] == 3 + 7 and b[1]["enc.1.w"] == 6 + 5 and c[1]["enc.2.w"] == 3
    # Round 3: m^medium = (0 + 8)/2 = 4 of the *unmixed* 8 (the mixed 5 would give 2½); m^strong = 0
    assert a[2]["enc.0.w"] == 10 + 0.5 * 4 and b[2]["enc.1.w"] == 11 + 0.5 * 0
    mixed = by_hand(way, plain, "mixed")
    assert mixed["a1"][1]["enc.0.w"] == 10 and mixed["a1"][2]["enc.0.w"] == 10 + 0.5 * (0 + 5) / 2
    without = by_hand(way, plain, "off")
    assert without["a1"][2]["enc.0.w"] == 3 + 10 and without["b1"][2]["enc.1.w"] == 6 + 8


def moves(*means: float) -> float:
    """FedAdam by hand from these means: without bias correction, from m = 0 and v = τ²."""
    m, v, total = 0.0, 0.5**2, 0.0
    for δ in means:
        m, v = 0.5 * m + 0.5 * δ, 0.75 * v + 0.25 * δ * δ
        total += 0.1 * m / (sqrt(v) + 0.5)
    return total


def test_fedadam_steps_each_sub_model_before_shared_layers_are_averaged() -> None:
    models = by_hand(TierSums, adam)
    a, b, c = models["a2"], models["b2"], models["c4"]
    emb = (2 * moves(2) + 2 * moves(4) + 4 * moves(2)) / 8
    assert a[0]["emb.w"] == pytest.approx(emb, rel=1e-5)
    assert emb != pytest.approx(moves((2 * 2 + 2 * 4 + 4 * 2) / 8), rel=1e-2)  # it matters
    assert b[0]["enc.0.w"] == pytest.approx((2 * moves(2) + 4 * moves(5)) / 6, rel=1e-5)
    assert a[1]["enc.0.w"] == pytest.approx(moves(3, 7), rel=1e-5)  # its state lives on
    assert b[1]["enc.1.w"] == pytest.approx(moves(6, 5), rel=1e-5)
    assert c[1]["emb.w"] == a[1]["emb.w"] == b[1]["emb.w"]  # bit for bit, at parties of all tiers
    assert c[2]["enc.2.w"] == pytest.approx(moves(3, 0, 0), rel=1e-5)


def random_updates(
    tiers: dict[str, str], depths: dict[str, int], rounds: int, size: int, seed: int = 0
) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {
        party: [
            {name: rng.normal(size=size) for name in names_of(depths[tier])} for _ in range(rounds)
        ]
        for party, tier in tiers.items()
    }


def close(out: Any, expected: Any, tiers: dict[str, str], atol: float) -> None:
    for party, tier in tiers.items():
        for found, models in zip(out.results[party], expected, strict=True):
            for name, weight in found.items():
                np.testing.assert_allclose(
                    weight, models[tier][name], atol=atol, err_msg=f"{party} {name}"
                )


FOUR = {"tiny": 1, "weak": 3, "medium": 4, "strong": 6}  # any number of tiers, any depths
SPREAD = {f"{tier[0]}{i}": tier for tier in FOUR for i in range(2)} | {"s9": "strong"}


@pytest.mark.parametrize(
    ("way", "reading", "mode"),
    [
        (TierSums, "unmixed", "none"),
        (TierSums, "mixed", "he+secagg"),
        (TierSums, "off", "none"),
        (SealedMixing, "unmixed", "he+secagg"),
        (SealedMixing, "mixed", "none"),
        (SealedMixing, "off", "he+secagg"),
    ],
)
def test_both_servers_equal_one_that_sees_everything(
    way: Any, reading: Any, mode: Protection
) -> None:
    server: Any = adam if way is TierSums else plain
    parties, depths = (SPREAD, FOUR) if mode == "none" else (TIERS, DEPTHS)
    updates = random_updates(parties, depths, 4, 20)
    out = play(
        way,
        parties,
        depths,
        updates,
        server=server,
        beta=0.3,
        reading=reading,
        size=20,
        mode=mode,
        bits=24,
    )
    expected = Reference(parties, depths, server, 0.3, reading).run(updates)
    close(out, expected, parties, 1e-5 if mode == "none" else 1e-3)


def test_means_by_records() -> None:
    counts = {party: float(k) for k, party in enumerate(TIERS, 3)}
    updates = random_updates(TIERS, DEPTHS, 3, 4)
    out = play(TierSums, TIERS, DEPTHS, updates, server=adam, size=4, weights=counts)
    expected = Reference(TIERS, DEPTHS, adam, 0.5, "unmixed", counts).run(updates)
    close(out, expected, TIERS, 1e-5)
    by_users = Reference(TIERS, DEPTHS, adam, 0.5, "unmixed").run(updates)
    assert not torch.allclose(by_users[-1]["strong"]["emb.w"], expected[-1]["strong"]["emb.w"])


ABSENT = {"weak": (0, 1, 1, 0), "medium": (1, 0, 1, 1), "strong": (1, 1, 0, 1)}


@pytest.mark.parametrize("mode", ["none", "secagg"])  # the sums' own tests have every mode
@pytest.mark.parametrize("gone", list(ABSENT))
def test_absent_tiers_are_skipped_and_never_divide_by_nothing(gone: str, mode: Protection) -> None:
    """A tier that nobody was drawn from: it takes the others' shared layers, and keeps its own."""
    updates: Any = random_updates(TIERS, DEPTHS, 4, 12)
    for party, tier in TIERS.items():
        if tier == gone:
            here = ABSENT[tier]
            updates[party] = [g if here[t] else None for t, g in enumerate(updates[party])]
    out = play(
        TierSums, TIERS, DEPTHS, updates, server=adam, size=12, mode=mode, bits=24, min_cohort=2
    )
    expected = Reference(TIERS, DEPTHS, adam, 0.5, "unmixed").run(updates)
    close(out, expected, TIERS, 1e-3)


def test_the_linear_server_takes_momentum_from_who_trained_in_the_last_round() -> None:
    updates: Any = random_updates(TIERS, DEPTHS, 3, 3)
    for party in ("c1", "c2"):
        updates[party][1] = None  # still there in round 2: they teach by their update of round 1
    out = play(SealedMixing, TIERS, DEPTHS, updates, server=plain, size=3)
    expected = Reference(TIERS, DEPTHS, plain, 0.5, "unmixed").run(updates)
    close(out, expected, TIERS, 1e-5)


@pytest.mark.parametrize("way", [TierSums, SealedMixing])
def test_a_tier_below_min_cohort_sits_out_when_few_of_it_are_drawn(way: Any) -> None:
    updates: Any = random_updates(TIERS, DEPTHS, 2, 3)
    updates["a1"][0] = None  # one of two is left
    out = play(way, TIERS, DEPTHS, updates, server=plain, size=3)
    updates["a2"][0] = None
    expected = Reference(TIERS, DEPTHS, plain, 0.5, "unmixed").run(updates)
    close(out, expected, TIERS, 1e-5)


# --- small tiers: nobody's values can be singled out ----------------------------------------------

THREE = {"weak": 2, "medium": 3, "strong": 4}


def crowd(counts: Sequence[int]) -> dict[str, str]:
    return {f"{t[0]}{i}": t for t, n in zip(THREE, counts, strict=True) for i in range(n)}


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """All that any party opens."""
    found: list[Any] = []
    honest = Cohort.sum

    async def listening(self: Cohort, *values: Any, **options: Any) -> Any:
        opened = await honest(self, *values, **options)
        found.extend(np.ravel(v) for v in opened.values() if np.size(v) > 1)
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(Cohort, "sum", listening)
        yield found


def unknowns(tiers: Mapping[str, str], rounds: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Updates in which every number of every party is a direction of its own."""
    columns = {p: [] for p in tiers}  # type: dict[str, list[int]]
    places = [
        (party, number, name)
        for party, tier in tiers.items()
        for number in range(rounds)
        for name in names_of(THREE[tier])
    ]
    updates: dict[str, Any] = {p: [{} for _ in range(rounds)] for p in tiers}
    for at, (party, number, name) in enumerate(places):
        updates[party][number][name] = np.eye(len(places), dtype=np.float32)[at]
        columns[party].append(at)
    return updates, columns


def exposed(rows: Any, columns: Mapping[str, Sequence[int]], below: int) -> set[frozenset[str]]:
    """Groups of fewer than `below` parties of whose values alone something follows.

    Everything opened is a row of coefficients. Something about a group alone follows exactly if
    rows can be combined so that everybody else's columns vanish and its own do not.
    """
    rank = np.linalg.matrix_rank(rows)
    every = range(rows.shape[1])
    found = set()
    for size in range(1, below):
        for group in combinations(columns, size):
            own = {c for party in group for c in columns[party]}
            rest = rows[:, [c for c in every if c not in own]]
            if np.linalg.matrix_rank(rest) < rank:
                found.add(frozenset(group))
    return found


def knowing(
    party: str, rows: Any, columns: Mapping[str, Sequence[int]]
) -> tuple[Any, dict[str, Sequence[int]]]:
    """The same without what this party brought."""
    own = set(columns[party])
    kept = [c for c in range(rows.shape[1]) if c not in own]
    place = {c: at for at, c in enumerate(kept)}
    others = {p: found for p, found in columns.items() if p != party}
    return rows[:, kept], {p: [place[c] for c in found] for p, found in others.items()}


def opened(way: Any, counts: Sequence[int], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    tiers = crowd(counts)
    updates, columns = unknowns(tiers, 2)
    size = sum(len(c) for c in columns.values())
    with overheard(monkeypatch) as rows:
        given: dict[str, Any] = {"server": plain, "size": size, "min_cohort": 3} | options
        play(way, tiers, THREE, updates, **given)
    return np.unique(np.array(rows, np.float64).round(5), axis=0), columns


@pytest.mark.parametrize("way", [TierSums, SealedMixing])
def test_nothing_follows_about_fewer_than_min_cohort_parties(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = opened(way, (3, 3, 3), monkeypatch)
    assert exposed(rows, columns, below=3) == set()
    for curious in columns:
        assert exposed(*knowing(curious, rows, columns), below=2) == set()


SMALL = [(2, 1, 1), (3, 1, 3), (1, 3, 3), (3, 3, 1), (1, 1, 4)]


@pytest.mark.parametrize("counts", SMALL, ids=str)
def test_nothing_follows_about_fewer_where_small_tiers_keep_their_layers(
    counts: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = opened(SealedMixing, counts, monkeypatch)
    assert exposed(rows, columns, below=3) == set()
    for curious in columns:
        assert exposed(*knowing(curious, rows, columns), below=2) == set()


def test_layers_with_enough_owners_are_summed_over_all_of_them_and_no_others() -> None:
    """Two weak hospitals, one medium and one strong: only the first layer has three owners."""
    tiers = crowd((2, 1, 1))
    updates: Any = random_updates(tiers, THREE, 3, 4)
    out = play(SealedMixing, tiers, THREE, updates, server=plain, size=4, min_cohort=3)
    for round in range(3):
        shared = {name: sum(updates[p][round][name] for p in tiers) / 4 for name in FIRST}
        for party in tiers:
            before = out.results[party][round - 1] if round else {}
            for name, weight in out.results[party][round].items():
                move = weight - before.get(name, 0)
                expected = shared.get(name, np.zeros(4))
                np.testing.assert_allclose(move, expected, atol=1e-5, err_msg=name)


FIRST = ("emb.w", "enc.0.w", "enc.0.b.weight")


def test_a_tier_with_enough_members_mixes_as_printed_beside_a_small_one() -> None:
    """Three weak, three medium and one strong hospital: medium's teacher is too small to teach."""
    tiers = crowd((3, 3, 1))
    updates = random_updates(tiers, THREE, 3, 4)
    out = play(SealedMixing, tiers, THREE, updates, server=plain, size=4, min_cohort=3)
    expected = Reference(tiers, THREE, plain, 0.5, "unmixed").run(updates)
    for party in ("w0", "m0"):
        tier = tiers[party]
        for found, models in zip(out.results[party], expected, strict=True):
            for name in set(found) - ({"enc.2.w", "enc.2.b.weight"} if tier == "medium" else set()):
                np.testing.assert_allclose(found[name], models[tier][name], atol=1e-5)
    last = [sum(updates[f"m{i}"][r]["enc.2.w"] for i in range(3)) / 3 for r in range(3)]
    np.testing.assert_allclose(out.results["m0"][2]["enc.2.w"], sum(last), atol=1e-5)


def test_a_draw_with_too_few_owners_moves_nothing_that_they_share() -> None:
    tiers = crowd((2, 1, 1))
    updates: Any = random_updates(tiers, THREE, 2, 3)
    updates["w0"][0] = updates["m0"][0] = None  # two of the first layer's four owners are left
    out = play(SealedMixing, tiers, THREE, updates, server=plain, size=3, min_cohort=3)
    for party in tiers:
        assert all(not weight.any() for weight in out.results[party][0].values())
        assert out.results[party][1]["enc.0.w"].any()


def test_mixing_a_small_tier_with_its_teachers_would_not_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why small tiers sit out although the mixed sum is over four: the teachers know their part."""
    rows, columns = opened(SealedMixing, (1, 3, 3), monkeypatch, min_cohort=1)
    assert frozenset({"w0"}) in exposed(rows, columns, below=2)
