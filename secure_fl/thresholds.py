"""Thresholds: the parties that a sum needs, and the bound on colluding parties."""

from __future__ import annotations

from dataclasses import dataclass

from secure_fl.errors import KeyringError, SettingsError

MOST_MASKED = 128  # parties of a protected sum; ciphertexts of more would not add up exactly


def default_threshold(n: int) -> int:
    """Return the survivors that a sum over n parties needs: floor(2n/3)+1, at most n."""
    return min(n, 2 * n // 3 + 1)


def quorum(parties: int, threshold: int) -> int:
    """Return how many parties must hold a round before newcomers get it.

    It is the threshold, or all but one, and never one alone: no party could check its state.
    """
    return min(threshold, max(2, parties - 1))


def require_maskable(parties: int) -> None:
    """Refuse a protected federation with too many parties for masks and shares among all."""
    if parties > MOST_MASKED:
        raise SettingsError(
            f"a protected sum has at most {MOST_MASKED} parties, not {parties}",
            fix=f"run several federations of at most {MOST_MASKED} parties each, or set "
            'protection.mode = "none" knowingly: the coordinator can then read every update',
            field="protection.mode",
        )


@dataclass(frozen=True, slots=True)
class CollusionBound:
    """The number of n parties that may collude with the coordinator and learn only a sum."""

    n: int
    t: int
    honest: int  # the coordinator follows the protocol: c <= min(t-1, n-2)
    lying: int  # it also lies about dropouts: c < 2t-n, and c <= n-2; -1: not even alone

    def sentence(self) -> str:
        """Format the bound as a sentence, which is printed with every run."""
        if self.n < 3:
            hospitals = "1 hospital" if self.n == 1 else f"{self.n} hospitals"
            return (
                f"{hospitals}: the sum itself reveals each one's contribution; nothing can hide it."
            )
        if self.lying < 0:
            return (
                f"{self.t} of {self.n} hospitals suffice to open a sum: a coordinator that lies "
                "about dropouts can unmask everybody alone. Raise the threshold."
            )
        lies = (
            ", whether or not the coordinator lies about dropouts."
            if self.lying == self.honest
            else f". If the coordinator lies about dropouts, this is true for up to {self.lying}."
        )
        return (
            f"{self.t} of {self.n} hospitals are needed to open a sum. Even if the coordinator and "
            f"{self.honest} of the {self.n} hospitals collude, they learn only the sum of the "
            f"other hospitals' updates{lies}"
        )


def collusion_bound(n: int, t: int) -> CollusionBound:
    """Compute the bound (promise P3): c <= min(t-1, n-2), and c < 2t-n if the coordinator lies."""
    if not 1 <= t <= n:
        what, fix = f"a threshold of {t} does not fit {n} parties", f"choose 1 to {n}"
        raise KeyringError(what, fix=fix, reason="threshold")
    honest = min(t - 1, n - 2)
    return CollusionBound(n, t, honest, max(-1, min(2 * t - n, honest + 1) - 1))
