"""Claims about differences between methods, and the rule that judges them.

The same seed gives both methods the same records, so scores are compared seed by seed. Of n seeds
the mean difference d with standard deviation s has the one-sided 95 % bounds d ± t·s/√n, t the
95 % quantile of Student's distribution with n - 1 degrees of freedom. "Better by more than m" holds
if the lower bound is above m, and fails if the upper bound is below m. A claim with m = 0 that does
neither is "level" if both bounds are within LEVEL points of zero (two one-sided tests of
equivalence). Otherwise it is undecided, as with one seed. Bytes hardly vary with the seed: their
means are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from benchmarks.evidence.rows import Row, three

Verdict: TypeAlias = Literal["holds", "level", "fails", "undecided", "not run", ""]
Figure: TypeAlias = Literal["score", "loss", "auroc", "average_precision", "bytes"]

CONFIDENCE = 0.95
LEVEL = 2.0  # points, or hundredths of another figure
WORST: tuple[Verdict, ...] = ("fails", "not run", "undecided", "level", "holds", "")


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the rows that a claim compares."""

    method: str
    model: str = ""  # as rows name it: "student"
    tier: str = ""  # the score of this tier's hospitals only

    @property
    def title(self) -> str:
        """The arm in a few words."""
        extra = ", ".join(part for part in (self.model, self.tier) if part)
        return f"{self.method} ({extra})" if extra else self.method


PLAIN_FEDAVG = Arm("FedAvg of the whole model in fp32")  # of bytes; computed, not a row


@dataclass(frozen=True, slots=True)
class Claim:
    """A method is better than each of the others by more than some points, or a times cheaper."""

    text: str
    group: str
    ours: Arm
    others: tuple[Arm, ...]
    data: tuple[str, ...] = ()  # judged on each of these; empty: on all of the group
    more_than: float | None = 0.0  # of bytes: at most 1/more_than; None: measured, nothing claimed
    figure: Figure = "score"  # of a loss, lower is better; all but bytes x 100
    mean_over: tuple[str, ...] = ()  # groups whose mean is judged, seed by seed
    reason: str = ""  # likely reason, printed if the claim fails


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a claim on one data set, with a figure for each of the other methods."""

    claim: Claim
    data: str
    verdict: Verdict
    figures: tuple[str, ...]
    widths: tuple[float, ...]  # half of each confidence interval of a score

    @property
    def counted(self) -> bool:
        """True if the claim was judged."""
        return self.verdict not in ("", "not run")


def judge(rows: Sequence[Row], claim: Claim) -> list[Judgement]:
    """Judge a claim on each of its data sets."""
    sets = claim.data or tuple(dict.fromkeys(r.data for r in rows if r.group == claim.group))
    compare = _cheaper if claim.figure == "bytes" else _better
    listed = []
    for data in sets:
        compared = [compare(rows, claim, data, other) for other in claim.others]
        verdict = min((verdict for verdict, _, _ in compared), key=WORST.index)
        named = zip(claim.others, compared, strict=True)
        figures = tuple(f"{other.title}: {text}" for other, (_, text, _) in named)
        widths = tuple(w for _, _, w in compared if w is not None and claim.figure == "score")
        listed.append(Judgement(claim, data, verdict, figures, widths))
    return listed


def bounds(
    differences: Sequence[float], more_than: float | None
) -> tuple[Verdict, str, float | None]:
    """Judge the differences of all seeds; return the verdict, a text and half of the interval."""
    mean = fmean(differences)
    if len(differences) == 1:
        return "" if more_than is None else "undecided", f"{mean:+.1f} (one seed)", None
    half = half_width(stdev(differences), len(differences))
    text = f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f}; {len(differences)} seeds)"
    verdict: Verdict = "undecided"
    if more_than is None:
        verdict = ""
    elif mean - half > more_than:
        verdict = "holds"
    elif mean + half < more_than:
        verdict = "fails"
    elif more_than == 0 and abs(mean) + half < LEVEL:
        verdict = "level"
    return verdict, text, half


def half_width(sd: float, seeds: int) -> float:
    """Compute the distance of the bounds from the mean of this many differences."""
    from scipy.stats import t

    return float(t.ppf(CONFIDENCE, seeds - 1)) * sd / float(seeds**0.5)


def tier_parties(rows: Sequence[Row], row: Row, tier: str) -> set[str]:
    """Return a tier's parties; where all models have one size, those of the group's other rows."""
    alike = [r for r in rows if (r.group, r.data) == (row.group, row.data)]
    for like in [row] if any(row.first["parties"].values()) else alike:
        if found := like.parties(tier):
            return found
    return set()


def _better(
    rows: Sequence[Row], claim: Claim, data: str, other: Arm
) -> tuple[Verdict, str, float | None]:
    groups = claim.mean_over or (claim.group,)
    parts = [_differences(rows, claim, group, data, other) for group in groups]
    seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
    if not seeds:
        return "not run", "not run", None
    return bounds([fmean(part[seed] for part in parts) for seed in seeds], claim.more_than)


def _differences(
    rows: Sequence[Row], claim: Claim, group: str, data: str, other: Arm
) -> dict[int, float]:
    """Compute by how much our arm is better, seed by seed; nothing if a row is missing."""
    row, against = (_find(rows, group, data, arm) for arm in (claim.ours, other))
    if row is None or against is None:
        return {}
    if claim.figure != "score":
        one, two = (r.values(figure=claim.figure) for r in (row, against))
        sign = -100 if claim.figure == "loss" else 100
        return {seed: sign * (one[seed] - two[seed]) for seed in one if seed in two}
    common = row.tested() & against.tested()
    for arm, arm_row in ((claim.ours, row), (other, against)):
        common &= tier_parties(rows, arm_row, arm.tier) if arm.tier else arm_row.parties()
    if not common and (claim.ours.tier or other.tier):
        return {}
    one, two = (r.values(parties=common) for r in (row, against))
    return {seed: 100 * (one[seed] - two[seed]) for seed in one if seed in two}


def _cheaper(
    rows: Sequence[Row], claim: Claim, data: str, other: Arm
) -> tuple[Verdict, str, float | None]:
    row, against = (_find(rows, claim.group, data, arm) for arm in (claim.ours, other))
    times = row.times_less if row and other == PLAIN_FEDAVG else None
    if row and against:
        times = against.bytes / row.bytes
    if times is None:
        return "not run", "not run", None
    verdict: Verdict = "holds" if times >= (claim.more_than or 0) else "fails"
    text = f"1/{three(times)} of" if times >= 1 else f"{three(1 / times)} times"
    return verdict if claim.more_than else "", f"{text} the bytes", None


def _find(rows: Sequence[Row], group: str, data: str, arm: Arm) -> Row | None:
    place = (group, data, arm.method, arm.model)
    return next((r for r in rows if (r.group, r.data, r.method, r.model) == place), None)
