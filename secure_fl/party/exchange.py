"""The program's end of an exchange: it hands the session a message and awaits the answer."""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine
from typing import Any, TypeAlias, TypeVar

from secure_fl.errors import CohortError
from secure_fl.protocol.messages import FromCoordinator, FromParty, Message

Sending: TypeAlias = tuple[FromParty, bytes]  # a message with its bulk, as a program yields it
M = TypeVar("M", bound=Message)


@coroutine
def exchange(
    message: FromParty, bulk: bytes = b""
) -> Generator[Sending, tuple[FromCoordinator, bytes], tuple[Any, bytes]]:
    """Give the session a message; return the coordinator's answer and its bulk."""
    return (yield message, bulk)


async def ask(message: FromParty, expect: type[M], bulk: bytes = b"") -> tuple[M, bytes]:
    """Send a message; return its answer, which must be of this kind, and the answer's bulk."""
    answer, data = await exchange(message, bulk)
    if not isinstance(answer, expect):
        raise unexpected(answer, expect)
    return answer, data


def unexpected(answer: object, expect: type[Message]) -> CohortError:
    """Make the error for an answer of the wrong kind."""
    return CohortError(
        f"the coordinator answered {type(answer).__name__} where {expect.__name__} belongs",
        fix="install equal versions at all sites; if they are equal, do not trust the coordinator",
    )
