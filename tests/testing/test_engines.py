"""The check for engines passes those that carry, and says what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from secure_fl.party.session import LocalEngine, Session
from secure_fl.protocol.frames import Frame
from secure_fl.testing.harness import LossyEngine, require_carries


class Swapping(LocalEngine):
    """Says of every answer that it is another party's."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        names = sorted(frames)
        for party, answer in super().exchange(frames, deadline):
            yield names[names.index(party) - 1], answer


class Inventing(LocalEngine):
    """Yields an answer of somebody who was not asked."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        yield "west", Frame(b"")
        yield from super().exchange(frames, deadline)


class Doubling(LocalEngine):
    """Yields every answer twice, which an engine may do."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for answer in super().exchange(frames, deadline):
            yield from (answer, answer)


@pytest.mark.parametrize("engine", [LocalEngine, LossyEngine, Doubling])
def test_engines_that_carry_pass(engine: type[LocalEngine]) -> None:
    require_carries(engine)


def losing(sessions: Mapping[str, Session]) -> LossyEngine:
    return LossyEngine(sessions, lose={"east": 3})


def test_a_silent_party_is_named() -> None:
    with pytest.raises(AssertionError, match="did not yield east"):
        require_carries(losing)


def test_a_party_that_was_not_asked_is_named() -> None:
    with pytest.raises(AssertionError, match="yielded west"):
        require_carries(Inventing)


def test_answers_of_others_are_no_answers() -> None:
    with pytest.raises(Exception, match="signature"):
        require_carries(Swapping)
