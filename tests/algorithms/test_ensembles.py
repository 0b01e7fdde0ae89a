"""The mean of predictions: what it counts, who is in it, and what is left of it after dropouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from secure_fl.algorithms.ensembles import Ensemble, as_shares
from secure_fl.algorithms.public_coins import sampled
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, CryptoError, SettingsError
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol import messages
from secure_fl.protocol.frames import decode
from secure_fl.settings import NoiseSettings, Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from secure_fl.testing.hospitals import HOST
from tests.support.attacker import NAMES, Wiretap
from tests.support.hands import site_of
from tests.support.noised import account
from tests.support.private import notes

FIVE = (*NAMES, "zenith")
SIZES = {"east": 10, "north": 30, "south": 20, "west": 40, "zenith": 15}
ROWS, CLASSES = 6, 3
STEP = 1 / (2**15 - 1)  # of what is at most 1, in 16 bits


def site(name: str, size: int) -> Site:
    role: Any = "host" if name == HOST else "party"
    return site_of(Silo(name, notes(size, name), role=role), labels=("a", "b", "c"))


def said(name: str, seed: int = 0) -> Tensor:
    """What a party predicts."""
    generator = torch.Generator().manual_seed(FIVE.index(name) + 10 * seed)
    return torch.rand(ROWS, CLASSES, generator=generator).softmax(-1)


def predicting(
    sums: int = 1, names: Sequence[str] = NAMES, rounds: Sequence[int] = (1,), **options: Any
) -> dict[str, Program]:
    """Members that send and open so many ensembles in each of these rounds."""

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            here = site(name, SIZES.get(name, 5))
            ensemble = Ensemble(cohort, here, (ROWS, CLASSES), sums, len(rounds), **options)
            found: list[Any] = []
            for round in rounds:
                drawn = await ensemble.begin(round)
                for number in range(sums):
                    if name == HOST:
                        found.append(await ensemble.open())
                    else:
                        await ensemble.send(said(name, number))
                        found.append((drawn, ensemble.weight))
            return found

        return run

    return {name: program(name) for name in (*names, HOST)}


def run(programs: Mapping[str, Program], mode: Protection = "none", **options: Any) -> Federated:
    return federate(programs, host=HOST, mode=mode, **options)


def mean(weights: Mapping[str, float], seed: int = 0) -> Tensor:
    total = sum(weights.values())
    return torch.stack([w / total * said(n, seed) for n, w in weights.items()]).sum(0)


class Gone(LossyEngine):
    """Loses a party for good, in place of the first message of which `when` is true."""

    def __init__(self, sessions: Mapping[str, Session], when: Callable[[str, Any], bool]) -> None:
        super().__init__(sessions)
        self._when, self._gone = when, set[str]()

    def exchange(self, frames: Mapping[str, Any], deadline: float) -> Any:
        there = {party: frame for party, frame in frames.items() if party not in self._gone}
        for party, answer in super().exchange(there, deadline):
            if self._when(party, decode(answer, lambda *_: None).message):
                self._gone.add(party)
            else:
                yield party, answer


def losing(parties: Collection[str], kind: type, after: int = 0, audience: str = "host") -> Any:
    """For `engine`: these parties answer with so many sums, then not with this kind."""
    sent = Counter[str]()

    def when(party: str, message: Any) -> bool:
        if party in parties and isinstance(message, kind) and sent[party] >= after:
            return getattr(message, "audience", audience) == audience
        sent[party] += getattr(message, "audience", "") == audience
        return False

    return lambda sessions: Gone(sessions, when)


MODES: tuple[Protection, ...] = ("none", "secagg", "he+secagg")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counted", ["records", "parties"])
def test_the_host_opens_the_mean_that_counts_records_or_parties(
    counted: Any, mode: Protection
) -> None:
    """By records: 10, 30, 20 and 40 of 100. Each rounds its part to a step, at the worst by one."""
    out = run(predicting(counted=counted), mode)
    shares = {n: SIZES[n] / 100 if counted == "records" else 1 / 4 for n in NAMES}
    off = (out.results[HOST][0] - mean(shares)).abs().max()
    steps = STEP * (4 if counted == "records" else 4 / 4)  # what is opened is the sum, or 4 means
    assert off < (1e-6 if mode == "none" else steps * 1.01)
    for name, share in shares.items():
        assert out.results[name] == [(True, pytest.approx(share))]
    assert (mean(shares) - mean(dict.fromkeys(NAMES, 1.0))).abs().max() > 0.001 or (
        counted == "parties"
    )


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("counted", ["records", "parties"])
def test_after_a_dropout_the_mean_is_over_those_who_are_left(
    counted: Any, mode: Protection
) -> None:
    """West gives its first predictions and is gone before the second sum."""
    engine = losing({"west"}, messages.SumInput, after=1)
    out = run(predicting(2, counted=counted), mode, engine=engine, threshold=3)
    shares = {n: SIZES[n] if counted == "records" else 1.0 for n in NAMES}
    first, second = out.results[HOST]
    bound = 1e-6 if mode == "none" else 0.001
    assert (first - mean(shares)).abs().max() < bound
    left = {n: w for n, w in shares.items() if n != "west"}
    assert (second - mean(left, 1)).abs().max() < bound
    without = torch.stack([w / sum(shares.values()) * said(n, 1) for n, w in left.items()]).sum(0)
    assert (second - without).abs().max() > 0.05  # what it would be if weights stayed as they were


@pytest.mark.parametrize("counted", ["records", "parties"])
def test_who_is_gone_after_its_predictions_arrived_still_counts(counted: Any) -> None:
    """Lost before it can help to unmask: its predictions are in the sum all the same."""
    engine = losing({"west"}, messages.UnmaskShares, after=1)
    out = run(predicting(counted=counted), "he+secagg", engine=engine, threshold=3)
    assert "west" not in out.results  # it never finished
    shares = {n: SIZES[n] if counted == "records" else 1.0 for n in NAMES}
    assert (out.results[HOST][0] - mean(shares)).abs().max() < 0.001


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", ["records", "parties"])
def test_the_mean_is_over_the_drawn_ones_only_and_all_send_as_much(counted: Any) -> None:
    rounds = range(1, 9)
    tap = Wiretap()
    out = run(predicting(rounds=rounds, counted=counted, share=0.5), engine=tap, threshold=4)
    drawn_once = set()
    for at, round in enumerate(rounds):
        drawn = [name for name in NAMES if out.results[name][at][0]]
        assert set(drawn) == sampled(0, round, NAMES, 0.5, 2) and len(drawn) == 2
        drawn_once.add(tuple(drawn))
        shares = {n: SIZES[n] if counted == "records" else 1.0 for n in drawn}
        torch.testing.assert_close(out.results[HOST][at], mean(shares), atol=1e-6, rtol=0)
        weights = [out.results[n][at][1] for n in NAMES]
        assert sum(weights) == pytest.approx(1)
        assert all((w > 0) == (n in drawn) for n, w in zip(NAMES, weights, strict=True))
    assert len(drawn_once) > 2  # others in other rounds
    uploads = [h for h in tap.of(messages.SumInput) if h.direction == "out" and h.party != HOST]
    to_host = [h for h in uploads if h.message.audience == "host"]
    assert len({len(h.bulk) for h in to_host}) == 1  # in size, nobody stands out
    silent = sum(not np.frombuffer(h.bulk, "<f4").any() for h in to_host)
    assert silent == 2 * len(rounds)  # in the clear the zeros are seen


@pytest.mark.parametrize(
    ("share", "at_least", "count"),
    [(0.1, 3, 3), (0.5, 2, 2), (0.51, 2, 3), (1.0, 2, 4), (0.1, 9, 4)],
)
def test_never_fewer_are_drawn_than_may_form_a_sum(share: float, at_least: int, count: int) -> None:
    for round in range(20):
        assert len(sampled(0, round, NAMES, share, at_least)) == count
    often = [n for r in range(400) for n in sampled(0, r, NAMES, share, at_least)]
    for name in NAMES:  # everybody as often, within five standard deviations
        expected = 400 * count / 4
        assert abs(often.count(name) - expected) <= 5 * (expected * (1 - count / 4)) ** 0.5


def few(count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Draw so few of five, whoever may drop out."""

    def draw(*arguments: Any) -> frozenset[str]:
        return frozenset(FIVE[:count])

    monkeypatch.setattr("secure_fl.algorithms.ensembles.sampled", draw)
    return list(FIVE[:count])


@pytest.mark.parametrize("counted", ["records", "parties"])
def test_dropouts_never_leave_one_of_the_drawn_ones_alone_in_a_sum(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five parties go on as three: if three were drawn and two are lost, the third is read."""
    programs = predicting(names=FIVE, share=0.2, counted=counted)
    options: dict[str, Any] = {"min_cohort": 3, "threshold": 3}
    with monkeypatch.context() as patch:
        east, *others = few(3, patch)
        out = run(programs, "secagg", engine=losing(others, messages.SumInput), **options)
        assert (out.results[HOST][0] - said(east)).abs().max() < 0.001  # the attack
    out = run(programs, "secagg", **options)
    drawn = {name for name in FIVE if out.results[name][0][0]}
    assert len(drawn) >= 3 + 2
    for lost in combinations(sorted(drawn), 2):
        out = run(programs, "secagg", engine=losing(lost, messages.SumInput), **options)
        shares = {n: SIZES[n] if counted == "records" else 1.0 for n in drawn - set(lost)}
        assert len(shares) >= 3
        assert (out.results[HOST][0] - mean(shares)).abs().max() < 0.001


@pytest.mark.parametrize("counted", ["records", "parties"])
@pytest.mark.parametrize("audience", ["parties", "host"])
def test_if_nobody_that_was_drawn_is_left_the_round_ends(
    counted: Any, audience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are drawn, and both are lost: before they are weighed, or before they send."""
    lost = few(2, monkeypatch)
    programs = predicting(names=FIVE, counted=counted)
    engine = losing(lost, messages.SumInput, audience=audience)
    out = run(programs, threshold=3, engine=engine, catch=True)
    if (counted, audience) == ("parties", "parties"):
        assert out.error is None  # nothing is weighed there
        return
    assert out.error is not None and HOST not in out.results
    errors = [s.error for n, s in out.sessions.items() if s.error and not s.stopped]
    assert errors and all(isinstance(error, CohortError) for error in errors)
    assert all(error.fix for error in errors)


# --- bounds and noise -----------------------------------------------------------------------------


def test_noise_needs_probabilities_in_which_all_count_alike() -> None:
    settings = NoiseSettings(epsilon=8.0, force=True)
    accounts = {name: account(settings, name) for name in (*NAMES, HOST)}
    for options in ({"counted": "records"}, {"counted": "parties", "bound": 21.0}):
        out = run(predicting(**options), "secagg", catch=True, ledgers=accounts.__getitem__)
        error = out.sessions["east"].error
        assert isinstance(error, SettingsError) and error.where["field"] == "algorithm.counted"
        assert "SumInput" not in [e.get("kind") for e in out.events]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_under_noise_the_mean_is_still_over_the_drawn_ones(share: float) -> None:
    """Votes with little noise: what is opened is near to their mean, and the noise is entered."""
    settings = NoiseSettings(epsilon=1e6, std=0.05, scale=256.0, force=True)
    accounts = {name: account(settings, name, 3 + (share < 1)) for name in (*NAMES, HOST)}
    programs = predicting(2, counted="parties", share=share, rounds=(1, 2))
    out = run(programs, "he+secagg", threshold=3 + (share < 1), ledgers=accounts.__getitem__)
    drawn = {n: 1.0 for n in NAMES if out.results[n][0][0]}
    assert len(drawn) == 4 * share
    for seed in (0, 1):
        off = out.results[HOST][seed] - mean(drawn, seed)
        # Four shares, where without the colluder's and a dropout's two or three guarantee it.
        std = 0.05 * (4 / (2 + (share < 1))) ** 0.5 / len(drawn)
        assert 0.4 * std < off.std() < 2 * std and off.abs().max() < 5 * std
    assert {accounts[name].statement()["releases"] for name in NAMES} == {4}
    assert accounts[HOST].statement()["releases"] == 0


def test_values_beyond_the_bound_are_refused_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.algorithms.test_ensembles.said", lambda *_: torch.full((6, 3), 1.5))
    out = run(predicting(counted="parties"), catch=True)
    assert isinstance(out.sessions["east"].error, CryptoError)
    assert run(predicting(counted="parties", bound=2.0)).results[HOST][0].eq(1.5).all()


def test_the_nearest_thing_to_probabilities() -> None:
    y = torch.tensor([[0.5, 0.5], [1.2, -0.2], [-0.1, -0.3], [0.2, 0.6], [0.0, 0.0]])
    expected = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    torch.testing.assert_close(as_shares(y), expected)
