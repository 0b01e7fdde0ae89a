"""What a one-run audit disproves of a trade-off curve: more than of (ε, δ), by the same guesses.

Mahloujifar, Melis, Chaudhuri: Auditing f-Differential Privacy in One Run. ICML 2025, arXiv
2410.22235, the recursion of its audit for two choices a coin and a fixed number of guesses. The
hypothesis is the whole curve of μ-Gaussian DP, and not one point of it, so fewer guesses suffice.
DP-SGD's own curve comes close to a Gaussian one over many steps (Dong, Roth, Su, arXiv 1905.02383,
§ 5); for few steps at a small sample rate it does not, and then this bound is no proof.
"""

from __future__ import annotations

from scipy.special import ndtr, ndtri

from secure_fl.audits.audit_statistics import gdp_epsilon

MOST = 64.0  # μ beyond which nothing is looked for
STEPS = 40  # of the search: to 1e-10


def one_run_mu(canaries: int, guesses: int, right: int, confidence: float = 0.95) -> float:
    """The largest μ of Gaussian DP that so many right guesses of coins reject; 0: none."""
    if not 0 <= right <= guesses <= canaries or not guesses:
        raise ValueError("there are as many guesses as canaries at most, and no more right ones")
    level = 1 - confidence
    if not rejects(canaries, guesses, right, 0.0, level):
        return 0.0
    low, high = 0.0, MOST
    for _ in range(STEPS):
        middle = (low + high) / 2
        rejected = rejects(canaries, guesses, right, middle, level)
        low, high = (middle, high) if rejected else (low, middle)
    return low


def one_run_gaussian_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """The ε at δ of the largest μ that is rejected."""
    return gdp_epsilon(one_run_mu(canaries, guesses, right, confidence), delta)


def rejects(canaries: int, guesses: int, right: int, mu: float, level: float) -> bool:
    """Whether `right` or more of the guesses have a chance below `level` under μ-Gaussian DP.

    With the chances that a given canary is guessed rightly, and wrongly, while at least i are right
    in all, r and h: h never lies below what μ makes of r, and how they grow as i falls is a
    matter of counting. Down at i = 0 they cannot exceed the share of canaries that are guessed.
    """
    r = level * right / canaries
    h = level * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        wrong = max(h, float(ndtr(ndtri(min(r, 1.0)) - mu)))
        r, h = r + i / (guesses - i) * (wrong - h), wrong
        if r + h > guesses / canaries:
            return True
    return r + h > guesses / canaries
