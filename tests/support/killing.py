"""Runs that end at a moment, as a signal would end them: without any clean-up of ours."""

from __future__ import annotations

from collections.abc import Callable

from secure_fl.events import Event, RoundStarted, Scored

Moment = Callable[[Event], bool]


class Killed(BaseException):
    """Ends a run wherever it is raised."""


def kill_when(moment: Moment) -> Callable[[Event], None]:
    """A listener that ends the run at this moment."""

    def listener(event: Event) -> None:
        if moment(event):
            raise Killed

    return listener


def at_event(number: int) -> Moment:
    """At the n-th event of the run, whatever it is."""
    seen = 0

    def moment(event: Event) -> bool:
        nonlocal seen
        seen += 1
        return seen == number

    return moment


def after(round: int) -> Moment:
    """When everybody has finished a round, and nothing of the next one was sent."""
    return lambda event: isinstance(event, RoundStarted) and event.round == round + 1


def within(round: int, party: str | None = None) -> Moment:
    """When a party (or this one) has opened a round's sums, and has not saved the round."""
    return lambda event: (
        isinstance(event, Scored)
        and not event.pooled
        and event.round == round
        and party in (None, event.party)
    )
