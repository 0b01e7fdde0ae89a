"""The noised sums of a run, which a party enters into its ledger before it computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from secure_fl.errors import BudgetError
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Noise, Rule


class NoiseAccount(Protocol):
    """The noise settings of a run, with a party's ledger (`privacy.noise_ledger`)."""

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]]:
        """Return the noise of each sum, equal at all members, with its figures for the log.

        Raises if the noise exceeds the signal, or if this party's budget cannot pay for the sums.
        """

    def enter(self, noise: Noise, releases: int, round: int) -> None:
        """Enter sums into the ledger, durably, or raise."""


class Reserved:
    """Counts of the sums that this party has entered and not yet sent, by their noise."""

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
                "this party has no ledger, so it may not send noised sums",
                fix="give the run a ledger and a budget",
                party=self._me,
                reason="no-ledger",
            )
        self._account.enter(noise, releases, round)
        self._left[noise] = self._left.get(noise, 0) + releases

    def spend(self, rule: Rule) -> None:
        """Use one reserved sum, or raise; a party with an account sends no sum without noise."""
        noise = rule.noise
        if noise is not None and noise.prepaid and rule.bound is not None and not rule.carry:
            return
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
                "this noised sum would send its scale without noise",
                fix="a noised sum is for the host, with a public bound and without carry",
                party=self._me,
                reason="unprotected",
            )
        if not self._left.get(noise):
            raise BudgetError(
                "this noised sum is not in the ledger",
                fix="call cohort.reserve(noise, releases) before the sums of a round",
                party=self._me,
                reason="not-reserved",
            )
        self._left[noise] -= 1
