"""P4: of the parties' predictions the host sees the sum, and the coordinator nothing at all.

Each test reads one party's predictions in a weaker setting first, and succeeds there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from secure_fl import ProtectionSettings
from secure_fl.algorithms.ensembles import Ensemble
from secure_fl.algorithms.fedid import FedID
from secure_fl.crypto.sealing.packing import SLOT_BYTES, to_slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import SecureFLError
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate
from secure_fl.testing.hospitals import HOST, hosted, members
from tests.support.attacker import Wiretap, looks_uniform
from tests.support.noised import account, forced

PARTIES = [f"hospital-{i}" for i in (1, 2, 3)]
D0, CLASSES = 160, 2
CENTRE = 1 / CLASSES
Said = dict[str, Tensor]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """What every party predicts first, as it leaves the party's model."""
    found: Said = {}
    honest = Ensemble.send

    async def listening(self: Ensemble, y: Tensor) -> None:
        found.setdefault(self._cohort.me, y.clone())
        await honest(self, y)

    monkeypatch.setattr(Ensemble, "send", listening)
    yield found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray[Any, Any]]]:
    """All numbers that the host ever opens or is told."""
    found: list[np.ndarray[Any, Any]] = []
    for door in ("sum", "broadcast"):
        honest = getattr(Cohort, door)

        async def listening(
            self: Cohort, *values: Any, honest: Any = honest, **options: Any
        ) -> Any:
            told = await honest(self, *values, **options)
            if self.is_host:
                found.extend(np.ravel(v) for v in told.values())
            return told

        monkeypatch.setattr(Cohort, door, listening)
    yield found


def overheard(mode: Protection, cfg: FedID | None = None) -> Wiretap:
    """A run of FedID over one exchange, with all its frames."""
    tap = Wiretap()
    cfg = cfg or FedID(rounds=1, counted="parties", public_batch=D0, batches_per_exchange=1)
    hosted(cfg, mode, silos=members(size=8, shared=D0)).run(tap)
    return tap


def upload(tap: Wiretap, party: str) -> bytes:
    """A party's first contribution to a sum for the host."""
    sums = tap.of(messages.SumInput, party)
    return next(h.bulk for h in sums if h.direction == "out" and h.message.audience == "host")


def needles(y: Tensor) -> list[bytes]:
    """Any eight numbers in a row of what a party predicts, as it is or less the centre."""
    rows = [y.numpy().ravel(), (y - CENTRE).numpy().ravel()]
    return [v[at : at + 8].astype("<f4").tobytes() for v in rows for at in range(0, v.size - 8, 8)]


def test_without_protection_one_partys_predictions_are_read_off_its_upload(said: Said) -> None:
    tap = overheard("none")
    for party in PARTIES:
        read = np.frombuffer(upload(tap, party), "<f4")[: D0 * CLASSES]
        np.testing.assert_array_equal(read, (said[party] - CENTRE).numpy().ravel())
        assert any(needle in upload(tap, party) for needle in needles(said[party]))
    assert not torch.equal(said[PARTIES[0]], said[PARTIES[1]])


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_with_masks_no_frame_holds_any_partys_predictions(mode: Protection, said: Said) -> None:
    tap = overheard(mode)
    told = [h.bulk for h in tap.heard if h.bulk]
    assert len(told) >= 3 + 1 + 1 + 3 and len(said) == len(PARTIES)
    for party in PARTIES:
        assert not any(needle in bulk for needle in needles(said[party]) for bulk in told)


def bytes_look_uniform(data: bytes) -> bool:
    """Chi-square over the values of a byte; uniform ones fail once in a hundred million."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return bool(chisquare(counts).pvalue > 1e-8)


def slots(data: bytes) -> Any:
    """Masked integers below the modulus, behind their packing."""
    return to_slots(data, len(data) // SLOT_BYTES)


def test_what_a_party_sends_is_noise_to_the_coordinator() -> None:
    clear, masked = (overheard(mode) for mode in ("none", "he+secagg"))
    for party in PARTIES:
        assert not bytes_look_uniform(upload(clear, party))
        assert looks_uniform(slots(upload(masked, party)), COHORT.modulus)
    total = next(h.bulk for h in masked.of(messages.Total, HOST) if h.bulk)
    assert looks_uniform(slots(total), COHORT.modulus)  # the host's own mask is still on it


def test_what_the_host_tells_the_parties_is_sealed_on_its_way(said: Said) -> None:
    """The ensemble and the feedback, for the parties alone."""
    clear, sealed = (overheard(mode) for mode in ("none", "he+secagg"))
    for tap, readable in ((clear, True), (sealed, False)):
        told = [h.bulk for h in tap.of(messages.Broadcast, HOST) if h.direction == "out" and h.bulk]
        assert len(told) == 1 and (b'"y"' in told[0]) == readable
        assert bytes_look_uniform(told[0]) != readable
        relayed = [h for h in tap.of(messages.Relayed) if h.direction == "in" and h.bulk]
        assert {h.party for h in relayed} >= set(PARTIES)


@pytest.mark.parametrize("counted", ["records", "parties"])
def test_the_host_opens_the_sum_and_nothing_else_of_the_parties(
    counted: Any, said: Said, opened: list[np.ndarray[Any, Any]]
) -> None:
    cfg = FedID(rounds=1, epochs=1, counted=counted, public_batch=D0)
    hosted(cfg, "he+secagg", silos=members(size=(8, 12, 4), shared=D0)).run()
    shares = dict(zip(PARTIES, (8 / 24, 12 / 24, 4 / 24), strict=True))
    if counted == "parties":
        shares = dict.fromkeys(PARTIES, 1.0)
    total = torch.stack([w * (said[p] - CENTRE) for p, w in shares.items()]).sum(0)
    large = [v for v in opened if v.size >= D0 * CLASSES]
    assert len(large) == 2  # the sum, and its own broadcast of it
    np.testing.assert_allclose(large[0], total.numpy().ravel(), atol=2e-4)
    for party in PARTIES:
        for w in (1.0, shares[party]):
            mine = (w * (said[party] - CENTRE)).numpy().ravel()
            assert all(np.abs(v[: mine.size] - mine).max() > 1e-2 for v in large)


def test_changes_of_two_parties_that_cancel_change_nothing_that_the_host_sees() -> None:
    """What one party says is hidden by what another says: every split of a sum looks alike."""
    rows = np.random.default_rng(3).integers(0, 2, D0)
    move = torch.from_numpy(np.stack([rows, -rows], 1)).float()  # whole steps: nothing is rounded
    flat, zero = torch.full((D0, CLASSES), CENTRE), torch.zeros(D0, CLASSES)

    def open_at_host(moves: Mapping[str, Tensor], mode: Protection) -> tuple[Tensor, Wiretap]:
        def program(party: str) -> Program:
            async def run(cohort: Cohort) -> Any:
                site: Any = type("Anywhere", (), {"seed": 0, "records": 1.0})()
                shape = (D0, CLASSES)
                ensemble = Ensemble(cohort, site, shape, 1, 1, counted="parties")
                await ensemble.begin(1)
                return await (
                    ensemble.open() if cohort.is_host else ensemble.send(flat + moves[party])
                )

            return run

        tap = Wiretap()
        programs = {name: program(name) for name in (*PARTIES, HOST)}
        out = federate(programs, host=HOST, mode=mode, engine=tap)
        return out.results[HOST], tap

    first, second, third = PARTIES
    one = {first: move, second: zero, third: zero}
    other = {first: zero, second: move, third: zero}
    more = {first: move, second: move, third: zero}
    modes: tuple[Protection, ...] = ("none", "he+secagg")
    for mode in modes:
        found, tap = open_at_host(one, mode)
        again, tap_again = open_at_host(other, mode)
        assert torch.equal(found, again)
        assert not torch.equal(found, open_at_host(more, mode)[0])  # a change that does not cancel
        assert found.ne(CENTRE).any()
        same = upload(tap, third) == upload(tap_again, third)
        assert same == (mode == "none")  # fresh masks, whatever is under them
        if mode == "none":
            assert upload(tap, first) == upload(tap_again, second)


def test_differences_of_uploads_are_noise_too() -> None:
    """Masks of two uploads do not cancel: only all of them together, and the host's, do."""
    tap = overheard("he+secagg")
    uploads = [slots(upload(tap, party)) for party in PARTIES]
    modulus = np.uint64(COHORT.modulus)
    for one in uploads:
        for other in uploads:
            if one is not other:
                difference = (one + (modulus - other)) % modulus
                assert looks_uniform(difference, COHORT.modulus)
    totals = [h for party in PARTIES for h in tap.of(messages.Total, party)]
    assert len(totals) == 3 and not any(h.bulk for h in totals)  # nor does a party get the sum


def test_under_noise_the_host_cannot_even_read_the_sum(said: Said) -> None:
    """The same run with noise that covers one hospital: what is opened is far from the sum."""
    noise = forced(epsilon=4.0)
    accounts = {name: account(noise, name, 3) for name in (*PARTIES, HOST)}
    size, _ = accounts[HOST].size(D0, CLASSES, 1, 3)
    found = {}
    for std in (None, noise):
        cfg = FedID(rounds=1, counted="parties", public_batch=D0)
        protection = ProtectionSettings(mode="he+secagg", bits=16, noise=std)
        off: list[Tensor] = []
        honest = Ensemble.open

        async def listening(self: Ensemble, honest: Any = honest, off: Any = off) -> Tensor:
            y: Tensor = await honest(self)
            off.append(y)
            return y

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ensemble, "open", listening)
            said.clear()
            hosted(cfg, silos=members(size=8, shared=D0), protection=protection).run()
        mean = torch.stack([said[p] for p in PARTIES]).mean(0)
        found[std is None] = float((off[0] - mean).std())
    assert found[True] < 1e-4
    # Three shares, of which two would do: a colluder knows its own.
    expected = size.std / 3 * (3 / 2) ** 0.5  # type: ignore[attr-defined]
    assert found[False] == pytest.approx(expected, rel=0.2)


def test_a_member_that_is_no_host_cannot_ask_for_a_host_sum() -> None:
    """A party that runs the host's program gets nothing for it."""

    def program(party: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            site: Any = type("Anywhere", (), {"seed": 0, "records": 1.0})()
            ensemble = Ensemble(cohort, site, (D0, CLASSES), 1, 1, counted="parties")
            await ensemble.begin(1)
            if cohort.is_host or party == PARTIES[0]:
                return await ensemble.open()
            return await ensemble.send(torch.full((D0, CLASSES), 0.75))

        return run

    programs = {name: program(name) for name in (*PARTIES, HOST)}
    out = federate(programs, host=HOST, mode="he+secagg", catch=True)
    assert PARTIES[0] not in out.results
    assert isinstance(out.sessions[PARTIES[0]].error, SecureFLError)
