"""One message to the coordinator, and its answer: all that a party program ever waits for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from secure_fl.errors import CohortError
from secure_fl.protocol.messages import FromCoordinator, FromParty, Message

M = TypeVar("M", bound=Message)


class Exchange:
    """An awaitable that gives the session a message and comes back with the answer."""

    __slots__ = ("bulk", "message")

    def __init__(self, message: FromParty, bulk: bytes = b"") -> None:
        self.message, self.bulk = message, bulk

    def __await__(self) -> Generator[Exchange, tuple[FromCoordinator, bytes], tuple[Any, bytes]]:
        return (yield self)


async def ask(message: FromParty, expect: type[M], bulk: bytes = b"") -> tuple[M, bytes]:
    """Send a message; return its answer, which must be of this kind, and the answer's bulk."""
    answer, data = await Exchange(message, bulk)
    return expected(answer, expect), data


def expected(answer: object, expect: type[M]) -> M:
    """The answer, if it is of this kind."""
    if not isinstance(answer, expect):
        raise CohortError(
            f"the coordinator answered {type(answer).__name__} where {expect.__name__} belongs",
            fix="install equal versions everywhere; a coordinator that does this cannot be trusted",
        )
    return answer
