"""Mode secagg hides sums from the coordinator: each is under a pad, and no pad serves two sums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.sealing.packing import Codec, to_slots, unpack
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.party.session import Session
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Frame
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.attacker import NAMES, looks_uniform, summing
from tests.support.faults import CoordinatorKilled
from tests.support.storm_checks import done
from tests.support.storms import storm

SIZE = 6000


def values(name: str) -> Any:
    return np.random.default_rng(ord(name[0])).normal(size=SIZE).astype(np.float32)


def attack(total: bytes, parties: tuple[str, ...]) -> float:
    """Decode a total by its public layout, and correlate it with the true sum."""
    codec = Codec(16, len(NAMES), COHORT.modulus)
    slots = to_slots(total, codec.slots(SIZE) + 1)[:-1]
    read = unpack(codec, slots, len(parties), SIZE)
    return float(np.corrcoef(read, np.sum([values(name) for name in parties], axis=0))[0, 1])


@pytest.mark.parametrize("lose", [{}, {"west": 2}], ids=["all", "a dropout"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_coordinator_reads_the_sum_only_without_the_pad(
    monkeypatch: pytest.MonkeyPatch, padded: bool, lose: dict[str, int]
) -> None:
    totals: list[tuple[messages.Total, bytes]] = []

    def tap(party: str, direction: str, frame: Frame) -> Frame:
        message = frames.peek(frame.head).message
        if isinstance(message, messages.Total):
            totals.append((message, frame.bulk))
        return frame

    def engine(sessions: Mapping[str, Session]) -> LossyEngine:
        return LossyEngine(sessions, lose=lose, tap=tap)

    if not padded:
        monkeypatch.setattr(SecureSumInProgress, "_pad", lambda self, stream: None)
    programs = {name: summing({"x": values(name)}, bound=8.0) for name in NAMES}
    out = federate(programs, mode="secagg", engine=engine)
    message, data = totals[0]
    parties = message.survivors
    assert parties == tuple(name for name in NAMES if name not in lose)
    true = np.sum([values(name) for name in parties], axis=0)
    np.testing.assert_allclose(out.results["east"][0]["x"], true, atol=1e-2)
    found, chance = attack(data, parties), 1 / np.sqrt(SIZE)
    assert abs(found) < 5 * chance if padded else found > 0.9999
    assert looks_uniform(to_slots(data, len(data) // 6)[:-1], COHORT.modulus) == padded


def test_no_pad_serves_two_sums_though_rounds_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is repeated after a crash, with the same cohort's keys, inputs and history."""
    sealed: list[tuple[str, int, bytes]] = []  # party, number of the sum, pad
    keys = set[bytes]()
    begin = SecureSumInProgress.__init__

    def noted(self: SecureSumInProgress, context: Any, *given: Any) -> None:
        begin(self, context, *given)
        keys.add(context.keys.pad_key)
        for segment in self._sent:
            pad = self._pad(segment.stream)
            assert pad is not None
            sealed.append((context.me, segment.stream.sum, pad))

    monkeypatch.setattr(SecureSumInProgress, "__init__", noted)
    kill = [("Total", "hospital-1", "coordinator killed")]
    town = storm(tmp_path, "fedavg", 0, mode="secagg", most=0, plot=kill)
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    town.lead(patience=0).run()
    assert done(town) == "1234" and len(keys) == 1
    assert len({(party, number) for party, number, _ in sealed}) < len(sealed)  # it was repeated
    assert len({(party, pad) for party, _, pad in sealed}) == len(sealed)
    assert len({pad for *_, pad in sealed}) < len(sealed) / 2  # parties of a sum add the same
