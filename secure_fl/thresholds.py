"""How many parties a sum needs, and how many may collude without learning more than they should."""

from __future__ import annotations

from dataclasses import dataclass

from secure_fl.errors import KeyringError, SettingsError

MOST_MASKED = 128  # parties of a protected sum; ciphertexts of more would not add up exactly


def default_threshold(n: int) -> int:
    """Survivors that a sum over n parties needs: floor(2n/3)+1, at most n."""
    return min(n, 2 * n // 3 + 1)


def quorum(parties: int, threshold: int) -> int:
    """How many must hold a round before others are given it: the threshold, or all but one.

    Never one alone: nobody could tell whether it hands over what it should.
    """
    return min(threshold, max(2, parties - 1))


def require_maskable(parties: int) -> None:
    """Refuse a protected federation of more parties than mask with, and share among, all others."""
    if parties > MOST_MASKED:
        raise SettingsError(
            f"a protected sum has at most {MOST_MASKED} parties, not {parties}",
            fix=f"run several federations of at most {MOST_MASKED} parties each, or set "
            'protection.mode = "none" knowingly: the coordinator can then read every update',
            field="protection.mode",
        )


@dataclass(frozen=True, slots=True)
class CollusionBound:
    """How many of n parties may join the coordinator and learn no more than the others' sum."""

    n: int
    t: int
    honest: int  # the coordinator follows the protocol: c <= min(t-1, n-2)
    lying: int  # it also lies about dropouts: c < 2t-n, and c <= n-2; -1: not even alone

    def sentence(self) -> str:
        """Say it in words; printed with every run."""
        if self.n < 3:
            return (
                f"{self.n} part{'y' if self.n == 1 else 'ies'}: the sum itself shows each what the "
                "other contributed; nothing can hide that."
            )
        if self.lying < 0:
            return (
                f"{self.t} of {self.n} parties suffice to open a sum: a coordinator that lies "
                "about dropouts can unmask everybody alone. Raise the threshold."
            )
        return (
            f"{self.t} of {self.n} parties are needed to open a sum. The coordinator and up to "
            f"{self.honest} of the {self.n} parties together learn only the sum of the others if "
            f"the coordinator follows the protocol, and up to {self.lying} if it lies about who "
            "dropped out."
        )


def collusion_bound(n: int, t: int) -> CollusionBound:
    """P3 of the design: c <= min(t-1, n-2), and c < 2t-n when the coordinator lies as well."""
    if not 1 <= t <= n:
        raise KeyringError(
            f"a threshold of {t} does not fit {n} parties", fix=f"take 1 to {n}", reason="threshold"
        )
    honest = min(t - 1, n - 2)
    return CollusionBound(n, t, honest, max(-1, min(2 * t - n, honest + 1) - 1))
