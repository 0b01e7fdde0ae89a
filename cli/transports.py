"""The interface of other ways to the coordinator, which optional features add to `join`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from secure_fl.features import load

if TYPE_CHECKING:
    from secure_fl.engines.responder import Responder
    from secure_fl.errors import SecureFLError
    from secure_fl.pilot.kits import Kit

Command = TypeVar("Command", bound=Callable[..., Any])
Refuse = Callable[["SecureFLError"], None]


class Transport(Protocol):
    """Another way of a hospital to its coordinator; an option of `join` chooses it."""

    parameter: str  # of `join`, with the place; None there: the network

    def option(self, command: Command) -> Command:
        """Add the option to `join`."""

    def connect(
        self, place: Path, kit: Kit, log: Logger, refuse: Refuse
    ) -> AbstractContextManager[Responder]:
        """Connect through a place."""

    def show(self, place: Path, kit: Path, *, as_json: bool) -> bool:
        """Print the state of a place; return false if it is none of this transport."""


def transports() -> list[Transport]:
    """Load the transports of all features."""
    return list(load("transport").values())


def transport_options(command: Command) -> Command:
    """Add the options of all transports to `join`."""
    for transport in transports():
        command = transport.option(command)
    return command
