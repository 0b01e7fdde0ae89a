"""Self-test of the shipped noise: what an attacker learns about one party, and the claimed ε.

Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis: Tight Auditing of Differentially
Private Machine Learning. USENIX Security 2023, arXiv 2302.07956: many releases with and without a
worst-case client, one threshold fixed beforehand (half of what the client may move), exact limits
of both error rates, and from them lower bounds of μ and of ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.audit_statistics import epsilon_lower_bound, gdp_epsilon, mu_lower_bound
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.crypto.privacy.noise import SkellamNoise, Uniforms, calibrated_skellam

NAME = "mechanism self-test"
ABOUT = (
    "Draws the noise of the installed program many thousand times, with and without one hospital's "
    "data; success would mean that the noise hides less than the stated epsilon promises."
)
ROLE = "host"  # which opens noised sums
CLAIM, DELTA = 3.0, 1e-5
RELEASES, QUICK = 500_000, 300_000  # of each kind: one missing share of five needs 200,000
BATCH = 50_000  # releases at a time: they stay in the cache
MARGIN = 1e-6  # of the claim: a value equal to it is not above it
COUNT, LIMIT = 1 << 14, 6.0  # numbers drawn to detect repeated noise, and stds of surprise
GAUSSIAN = "The bound assumes Gaussian noise, which at this variance it nearly is."
NO_CLIP = "no clip"
OVERSIZED = 4.0  # the worst-case client's input, in units of the bound that clips it


Floats = NDArray[np.float64]
Release = Callable[[SkellamNoise, bool, int, Uniforms], Floats]
"""Makes so many sums in grid steps, with or without the client, for the attacker's decision."""
Share = Callable[[], NDArray[np.int64]]


def reference() -> SkellamNoise:
    """Make noise of five parties at this ε; rounding makes the client's value larger."""
    scale = 64.0
    template = SkellamNoise(1.0, scale, (64.5 + 1e-6) / scale, 1, 5, dropouts=0, colluders=0)
    return calibrated_skellam(template, CLAIM, DELTA)


def self_test(
    release: Release,
    noise: SkellamNoise,
    rng: np.random.Generator,
    target: str,
    *,
    releases: int = RELEASES,
    null: bool = False,
) -> AuditFinding:
    """Compare ε's lower bound for sums with and without the client with the claim of the noise.

    `null`: the client is in all sums.
    """
    uniforms, hits, alarms = seeded(rng), 0, 0
    middle = 0.0 if noise.adjacency == "replace-one" else np.rint(noise.scale * noise.clip) / 2
    for start in range(0, releases, BATCH):
        size = min(BATCH, releases - start)
        hits += int((release(noise, True, size, uniforms) > middle).sum())
        alarms += int((release(noise, null, size, uniforms) > middle).sum())
    value, details = lower_bounds((hits, releases, alarms, releases), DELTA)
    claim = noise.epsilon(DELTA)
    details |= {
        "claimed epsilon": round(claim, 6),
        "recognised with the client": hits,
        "alarms without it": alarms,
        "releases of each kind": releases,
        "shares in a sum": promised(noise),
    }
    return AuditFinding(
        NAME, ROLE, target, "epsilon, lower bound at 95 %", value, 0.0, claim * (1 + MARGIN),
        2 * releases, details=details, note=GAUSSIAN,
    )  # fmt: skip


def lower_bounds(
    counts: tuple[int, int, int, int], delta: float, confidence: float = 0.95
) -> tuple[float, dict[str, Any]]:
    """Bound ε from below by hits and alarms, and their numbers of trials, with further figures."""
    mu = mu_lower_bound(*counts, confidence)
    of_any = epsilon_lower_bound(*counts, delta, confidence)
    figures = {"mu, lower bound": mu, "epsilon, lower bound of any shape": of_any}
    return gdp_epsilon(mu, delta), {"delta": delta, **figures}


def planted_trial(
    planted: Mapping[str, Any], shipped: Any, test: Callable[..., AuditFinding]
) -> AuditTrial:
    """Test releases with defects, of which the first is the control, and the program's own."""
    found = {bug: test(release, bug) for bug, release in planted.items()}
    control = next(iter(found.values()))
    values = {bug: finding.value for bug, finding in found.items()}
    control = control.at(details={**control.details, "planted": values})
    return AuditTrial(control, test(shipped, "deployed"), test(shipped, "null", null=True))


def mechanism_trials(
    noise: SkellamNoise | None, prior: Prior, quick: bool = False
) -> tuple[AuditTrial, ...]:
    """Test the shipped noise at ε = 3, and the run's own noise if it has any."""
    releases = QUICK if quick else RELEASES
    trials = [_sized("noise for epsilon 3", reference(), list(PLANTED), prior, releases)]
    if noise is not None:
        trials.append(_sized("the noise of this run", noise, [NO_CLIP], prior, releases))
    return (*trials, _fresh(prior))


def repeats(share: Share, variance: float, *, target: str = "noise of two sums") -> AuditFinding:
    """Test if two draws of pure noise are alike, or have another variance than promised."""
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
    """Test one size of noise."""

    def test(release: Release, name: str, *, null: bool = False) -> AuditFinding:
        rng = prior.rng(NAME, target, name)
        return self_test(release, noise, rng, target, releases=releases, null=null)

    return planted_trial({bug: PLANTED[bug] for bug in bugs}, shipped, test)


def _fresh(prior: Prior) -> AuditTrial:
    """Test the installed program's own source of noise, which no seed can repeat."""
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


# --- releases of noised sums: the program's, and ones with defects of other systems ---------------
#
# `SkellamNoise.share` takes one vector with independent coordinates. So a vector of n coordinates
# is n releases of one, if the bound of its norm grows by √n.


def shipped(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Sum the promised number of shares: all but those of dropouts and colluders."""
    return _summed(noise, present, releases, uniforms, promised(noise))


def share_missing(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Plant a defect: one party less adds noise than the sum was sized for."""
    return _summed(noise, present, releases, uniforms, max(1, promised(noise) - 1))


def noise_divided(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Plant a defect: each party divides the std of its share by their number once too often."""
    weak = replace(noise, mu=noise.mu / promised(noise) ** 2)
    return _summed(weak, present, releases, uniforms, promised(noise))


def not_clipped(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Plant a defect: the client sends more than the bound, and nothing clips it."""
    sent = OVERSIZED * noise.clip
    lax = replace(noise, clip=10 * sent)
    return _summed(lax, present, releases, uniforms, promised(noise), sent)


def noise_reused(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Plant a defect: a second sum, without the client, has the noise of the first."""
    drawn: list[Floats] = []

    def record(count: int) -> Floats:
        drawn.append(uniforms(count))
        return drawn[-1]

    first = shipped(noise, present, releases, record)
    again = iter(drawn)
    return first - shipped(noise, False, releases, lambda _count: next(again))


PLANTED: dict[str, Release] = {  # the smallest defect first: a test that finds it is sharp enough
    "one missing share": share_missing,
    "noise/N": noise_divided,
    "reused noise": noise_reused,
    NO_CLIP: not_clipped,
}


def promised(noise: SkellamNoise) -> int:
    """Count the shares that a sum is sure to have."""
    return noise.parties - noise.dropouts - noise.colluders


def seeded(rng: np.random.Generator) -> Uniforms:
    """Make uniforms in (0, 1) that can be repeated: for audits and tests only."""

    def draw(n: int) -> Floats:
        words = rng.integers(0, 1 << 53, n)
        uniform: Floats = (words.astype(np.float64) + 0.5) * 2.0**-53
        return uniform

    return draw


def _summed(
    noise: SkellamNoise,
    present: bool,
    releases: int,
    uniforms: Uniforms,
    shares: int,
    sent: float | None = None,
) -> Floats:
    batch = replace(noise, dimension=releases, clip=noise.clip * math.sqrt(releases))
    value = OVERSIZED * noise.clip if sent is None else sent
    absent = -value if noise.adjacency == "replace-one" else 0.0
    total = batch.share(np.full(releases, value if present else absent), uniforms)
    for _ in range(shares - 1):
        total = total + batch.share(np.zeros(releases), uniforms)
    return total.astype(np.float64)
