"""Self-test of the shipped noise: what an attacker learns of one party, against the claimed ε.

Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis: Tight Auditing of Differentially
Private Machine Learning. USENIX Security 2023, arXiv 2302.07956: many releases with and without a
worst-case client, one threshold that is fixed beforehand (half of what the client may move), exact
limits of both error rates, and from them lower bounds of μ and of ε.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.audit_statistics import epsilon_lower_bound, gdp_epsilon, mu_lower_bound
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.selftest.planted_noise import (
    NO_CLIP,
    PLANTED,
    Release,
    promised,
    seeded,
    shipped,
)
from secure_fl.crypto.privacy.noise import SkellamNoise, calibrated_skellam

NAME = "mechanism self-test"
ABOUT = (
    "Draws the noise of the installed program many thousand times, with and without one hospital's "
    "data under it; success would mean that it hides less than the stated epsilon promises."
)
ROLE = "host"  # the one who opens noised sums
CLAIM, DELTA = 3.0, 1e-5
RELEASES, QUICK = 500_000, 300_000  # of each kind: one missing share of five needs 200,000
BATCH = 50_000  # releases at a time: they stay in the cache
MARGIN = 1e-6  # of the claim: what only equals it is not above it
COUNT, LIMIT = 1 << 14, 6.0  # numbers drawn to see whether noise repeats, and stds of surprise
GAUSSIAN = "The bound takes the noise for Gaussian, which at this variance it nearly is."

Share = Callable[[], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What releases show of a mechanism: bounds at 95 %, and the counts behind them."""

    epsilon: float  # if the trade-off is a Gaussian's
    epsilon_of_any: float  # whatever its shape
    mu: float
    hits: int
    alarms: int
    releases: int


def reference(claim: float = CLAIM, delta: float = DELTA) -> SkellamNoise:
    """Noise of five parties at this ε; the client's value is one that rounding makes larger."""
    scale = 64.0
    template = SkellamNoise(1.0, scale, (64.5 + 1e-6) / scale, 1, 5, dropouts=0, colluders=0)
    return calibrated_skellam(template, claim, delta)


def measure(
    release: Release,
    noise: SkellamNoise,
    rng: np.random.Generator,
    *,
    releases: int = RELEASES,
    delta: float = DELTA,
    null: bool = False,
) -> Shown:
    """Tell sums with the client from those without it; `null`: it is in both."""
    uniforms, hits, alarms = seeded(rng), 0, 0
    middle = 0.0 if noise.adjacency == "replace-one" else np.rint(noise.scale * noise.clip) / 2
    for start in range(0, releases, BATCH):
        size = min(BATCH, releases - start)
        hits += int((release(noise, True, size, uniforms) > middle).sum())
        alarms += int((release(noise, null, size, uniforms) > middle).sum())
    counts = hits, releases, alarms, releases
    mu = mu_lower_bound(*counts)
    of_any = epsilon_lower_bound(*counts, delta)
    return Shown(gdp_epsilon(mu, delta), of_any, mu, hits, alarms, releases)


def self_test(
    release: Release,
    noise: SkellamNoise,
    rng: np.random.Generator,
    *,
    target: str,
    releases: int = RELEASES,
    delta: float = DELTA,
    null: bool = False,
) -> AuditFinding:
    """Compare what a mechanism shows with what its noise claims for one release."""
    claim = noise.epsilon(delta)
    found = measure(release, noise, rng, releases=releases, delta=delta, null=null)
    details = {
        "claimed epsilon": round(claim, 6),
        "delta": delta,
        "mu, lower bound": found.mu,
        "epsilon, lower bound of any shape": found.epsilon_of_any,
        "recognised with the client": found.hits,
        "alarms without it": found.alarms,
        "releases of each kind": releases,
        "shares in a sum": promised(noise),
    }
    measured, threshold = "epsilon, lower bound at 95 %", claim * (1 + MARGIN)
    return AuditFinding(
        NAME, ROLE, target, measured, found.epsilon, 0.0, threshold, 2 * releases,
        details=details, note=GAUSSIAN,
    )  # fmt: skip


def mechanism_trials(
    noise: SkellamNoise | None, prior: Prior, quick: bool = False
) -> tuple[AuditTrial, ...]:
    """Test the shipped noise at ε = 3, and as this run has sized it (None: it has none)."""
    releases = QUICK if quick else RELEASES
    trials = [_sized("noise for epsilon 3", reference(), list(PLANTED), prior, releases)]
    if noise is not None:
        trials.append(_sized("the noise of this run", noise, [NO_CLIP], prior, releases))
    return (*trials, _fresh(prior))


def repeats(share: Share, variance: float, *, target: str = "noise of two sums") -> AuditFinding:
    """Whether two draws of a share of pure noise are alike, or not of the variance promised."""
    one, two = (share().astype(np.float64) for _ in range(2))
    count = len(one)
    alike = float((one * two).mean()) / variance * count**0.5
    spread = max(abs(float((x**2).mean()) / variance - 1) * (count / 2) ** 0.5 for x in (one, two))
    defect = max(abs(alike), spread) > LIMIT
    measured = "repeats, or has another variance than promised"
    details = {"limit in standard deviations": LIMIT}
    return AuditFinding(
        NAME + ": fresh noise", ROLE, target, measured, float(defect), 0.0, 1.0, 2 * count,
        details=details,
    )  # fmt: skip


def _sized(
    target: str, noise: SkellamNoise, bugs: Sequence[str], prior: Prior, releases: int
) -> AuditTrial:
    """The first of the bugs is the control; how the others do is said beside it."""

    def test(release: Release, name: str, *, null: bool = False) -> AuditFinding:
        rng = prior.rng(NAME, target, name)
        return self_test(release, noise, rng, target=target, releases=releases, null=null)

    found = {bug: test(PLANTED[bug], bug) for bug in bugs}
    control = found[bugs[0]]
    values = {bug: finding.value for bug, finding in found.items()}
    control = control.at(details={**control.details, "planted": values})
    return AuditTrial(control, test(shipped, "deployed"), test(shipped, "null", null=True))


def _fresh(prior: Prior) -> AuditTrial:
    """The installed program's own source of noise, which no seed can repeat."""
    noise = SkellamNoise(10_000.0, 64.0, 1.0, COUNT, 5, dropouts=0, colluders=0)
    zeros, variance = np.zeros(COUNT), noise.mu / noise.parties

    def same() -> NDArray[np.int64]:
        return noise.share(zeros, seeded(prior.rng(NAME, "one seed")))

    differing = seeded(prior.rng(NAME, "two draws"))
    return AuditTrial(
        repeats(same, variance),
        repeats(lambda: noise.share(zeros), variance),
        repeats(lambda: noise.share(zeros, differing), variance),
    )
