"""One bit of any frame of a real run is flipped: the run stops, or it ends with the right sums.

Where three of four are enough, it costs one party; where all four are needed, the run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import SecureFLError
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate
from tests.support.attacker import NAMES, summing


@dataclass
class Flipping:
    """Flips one bit of one frame; a party that refuses a frame does not answer."""

    sessions: Mapping[str, Session]
    target: tuple[int, str, str]
    rng: random.Random
    exchanges: int = 0
    flipped: bool = False

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        self.exchanges += 1
        for party, frame in frames.items():
            try:
                answer = self.sessions[party].step(self._touch(party, "in", frame))
            except SecureFLError:
                continue
            yield party, self._touch(party, "out", answer)

    def _touch(self, party: str, direction: str, frame: Frame) -> Frame:
        if (self.exchanges, party, direction) != self.target:
            return frame
        self.flipped = True
        parts = [bytearray(frame.head), bytearray(frame.bulk)]
        part = self.rng.choice([p for p in parts if p])
        bit = self.rng.randrange(8 * len(part))
        part[bit // 8] ^= 1 << bit % 8
        return Frame(*map(bytes, parts))


@pytest.mark.parametrize("mode", ["none", "secagg", "he+secagg"])
def test_no_flipped_bit_leads_to_a_wrong_sum(mode: Protection) -> None:
    rng = random.Random(f"flips {mode}")
    programs = {
        name: summing({"who": 16.0 ** (k - 5), "x": np.full(20, k)}, 2, bound=8.0)
        for k, name in enumerate(NAMES)
    }
    outcomes = {"stopped": 0, "finished": 0}
    last = 8 if mode in ("secagg", "he+secagg") else 6
    for exchange in range(1, last):
        for direction in ("in", "out"):
            for party in rng.sample(NAMES, 2):
                target = (exchange, party, direction)
                flips: list[Flipping] = []

                def engine(
                    sessions: Mapping[str, Session],
                    target: tuple[int, str, str] = target,
                    flips: list[Flipping] = flips,
                ) -> Any:
                    flips.append(Flipping(sessions, target, rng))
                    return flips[0]

                needed = 3 + exchange % 2
                out = federate(programs, mode=mode, engine=engine, threshold=needed, catch=True)
                outcomes["stopped" if out.error else "finished"] += flips[0].flipped
                _right_or_none(out.results)
    assert outcomes["stopped"] > 4 and outcomes["finished"] > 4


def _right_or_none(results: Mapping[str, Any]) -> None:
    for sums in results.values():
        for opened in sums:
            over = [k for k in range(4) if int(opened["who"] * 16**5) >> 4 * k & 15]
            assert opened["who"] == sum(16.0 ** (k - 5) for k in over) and len(over) >= 3
            np.testing.assert_allclose(opened["x"], np.full(20, sum(over)), atol=2e-3)
