"""Noised sums are entered into the ledger before they are computed, and spent one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from secure_fl.errors import BudgetError
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Noise, Rule


class NoiseAccount(Protocol):
    """What a run's settings say about noise, and a party's ledger (`privacy.noise_ledger`)."""

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]]:
        """The noise of each of so many sums, equal at all members, and what it comes to.

        Refuses what drowns the signal, or does not fit into this party's budget.
        """

    def enter(self, noise: Noise, releases: int, round: int) -> None:
        """Enter sums into the ledger, durably, or refuse."""


class Reserved:
    """How many sums under which noise this party has entered, and not yet sent."""

    def __init__(self, me: str, account: NoiseAccount | None) -> None:
        self._me, self._account = me, account
        self._left: dict[Noise, int] = {}

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]] | None:
        """See `Cohort.prediction_noise`."""
        if self._account is None:
            return None
        return self._account.size(examples, classes, releases, parties)

    def reserve(self, noise: Noise, releases: int, round: int) -> None:
        """See `Cohort.reserve`."""
        if self._account is None:
            raise BudgetError(
                "this party has no ledger, so it may not release anything under noise",
                fix="give the run a ledger and a budget",
                party=self._me,
                reason="no-ledger",
            )
        self._account.enter(noise, releases, round)
        self._left[noise] = self._left.get(noise, 0) + releases

    def spend(self, rule: Rule) -> None:
        """Take one sum from what was reserved, or refuse; under an account every sum is noised."""
        noise = rule.noise
        if noise is None:
            if self._account is None:
                return
            raise BudgetError(
                "a sum without noise, in a run that protects hospitals by noise",
                fix="pass noise=cohort.prediction_noise(...), or remove protection.noise",
                party=self._me,
                reason="unprotected",
            )
        if rule.audience != Audience.HOST or rule.bound is None or rule.carry:
            raise BudgetError(
                "a noised sum whose scale would leave without noise",
                fix="noised sums are for the host, with a public bound, and carry nothing",
                party=self._me,
                reason="unprotected",
            )
        if not self._left.get(noise):
            raise BudgetError(
                "a noised sum was to be sent that is not in the ledger",
                fix="call cohort.reserve(noise, releases) before the sums of a round",
                party=self._me,
                reason="not-reserved",
            )
        self._left[noise] -= 1
