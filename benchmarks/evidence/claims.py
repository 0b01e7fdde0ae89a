"""A paper's claims as data, and the rule that says whether our cells bear them out.

Scores are compared in pairs, seed by seed, and judged by their bounds (`bounds`). Where the whole
model is not shown to be above the small one, no claim is made about what lies between the two:
there is no head-room. Bytes hardly vary with the seed: their means are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal, TypeAlias

from benchmarks.evidence.bounds import LEVEL, Verdict, half_width, told
from benchmarks.evidence.summary import Row, three

Which: TypeAlias = Literal["last", "best"]
Figure: TypeAlias = Literal["score", "loss", "auroc", "average_precision"]

# Of several comparisons in one claim: one that fails refutes it, and all must hold.
WORST: tuple[Verdict, ...] = ("does not hold", "not run", "cannot be told", "level", "holds")


@dataclass(frozen=True, slots=True)
class Arm:
    """One of our rows; of the same group and data as the claim unless it says otherwise."""

    method: str
    model: str = ""  # as rows name it: "student"
    tier: str = ""  # the score of this tier's hospitals only
    group: str | None = None
    data: str | None = None

    @property
    def title(self) -> str:
        """The arm in a few words."""
        extra = [part for part in (self.model, self.tier, self.data, self.group) if part]
        return f"{self.method} ({', '.join(extra)})" if extra else self.method


@dataclass(frozen=True, slots=True)
class Better:
    """The arm's score is above that of each of the others by so many points (below, if < 0)."""

    what: str
    arm: Arm
    others: tuple[Arm, ...]
    by: float = 0.0
    reason: str = ""  # likely, of a failure; shown only then
    figure: Figure = "score"  # loss: lower is better, in hundredths of a nat
    screens: bool = False  # unless it holds, the claims about scores after it are not made
    groups: tuple[str, ...] = ()  # the mean over these, seed by seed; empty: the claim's own

    @property
    def level(self) -> float:
        """What is claimed to be above by nothing in particular may turn out level."""
        return LEVEL if self.by == 0 else 0.0


@dataclass(frozen=True, slots=True)
class Cheaper:
    """The arm takes at most an n-th of the other's bytes; of fp32 FedAvg's without another."""

    what: str
    arm: Arm
    other: Arm | None = None
    times: float = 1.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """Each of some figures that are read off the arm's runs, one for each seed, is above 0."""

    what: str
    arm: Arm
    read: Callable[[Row], Mapping[str, Sequence[float]]]
    reason: str = ""


Claim: TypeAlias = Better | Cheaper | Shown


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a claim, and the figures it rests on."""

    claim: Claim
    verdict: Verdict
    figures: tuple[str, ...]
    halves: tuple[float, ...] = ()  # half-widths of the differences of scores, in points


@dataclass(frozen=True, slots=True)
class Bench:
    """Where claims are judged: all rows of a table, and the section that makes the claims."""

    rows: Sequence[Row]
    group: str
    data: str
    which: Which = "last"

    def judge(self, claim: Claim) -> Judgement:
        """Apply the rule."""
        halves: list[float] = []
        if isinstance(claim, Better):
            found = list(self._better(claim, halves))
        elif isinstance(claim, Shown):
            found = list(self._shown(claim))
        else:
            found = [self._cheaper(claim)]
        verdict = min((verdict for verdict, _ in found), key=WORST.index)
        figures = tuple(dict.fromkeys(figure for _, figure in found))
        return Judgement(claim, verdict, figures, tuple(halves))

    def judge_all(self, claims: Sequence[Claim]) -> Iterator[Judgement]:
        """Judge a section's claims: those about scores where its control left room for them."""
        room = True
        for claim in claims:
            judged = self.judge(claim)
            about_scores = isinstance(claim, Better) and claim.figure == "score"
            if about_scores and not room:
                judged = Judgement(claim, "no head-room", judged.figures)
            if isinstance(claim, Better) and claim.screens:
                room = judged.verdict == "holds"
            yield judged

    def find(self, arm: Arm) -> Row | None:
        """The row of an arm, if it has been run."""
        group = self.group if arm.group is None else arm.group
        wanted = (group, arm.data or self.data, arm.method, arm.model)
        for row in self.rows:
            if (row["group"], row["data"], row["method"], row["model"]) == wanted:
                return row
        return None

    def _better(self, claim: Better, halves: list[float]) -> Iterator[tuple[Verdict, str]]:
        for other in claim.others:
            parts = [self._differences(claim, other, group) for group in claim.groups or ("",)]
            if unknown := next((part for part in parts if isinstance(part, str)), ""):
                yield "not run", unknown
                continue
            known = [part for part in parts if not isinstance(part, str)]
            seeds = [seed for seed in known[0] if all(seed in part for part in known)]
            paired = [fmean(part[seed] for part in known) for seed in seeds]
            verdict, bounds = told(paired, claim.by, claim.level)
            if claim.figure != "score":
                title = _of(claim.figure, claim.arm.title, other.title)
                yield verdict, f"{title}, x 100: {bounds}"
                continue
            if len(paired) > 1:
                halves.append(half_width(stdev(paired), len(paired)))
            yield verdict, f"{claim.arm.title} - {other.title}: {bounds}"

    def _differences(self, claim: Better, other: Arm, group: str) -> dict[int, float] | str:
        """By how much the arm is better, seed by seed; or why that is not known."""
        one, two = (
            arm if arm.group or not group else replace(arm, group=group)
            for arm in (claim.arm, other)
        )
        row, against = self.find(one), self.find(two)
        if row is None or against is None:
            return _absent(one if row is None else two)
        if claim.figure != "score":
            return gained(row, against, claim.figure)
        parties = self._common(row, one, against, two)
        if not parties and (one.tier or two.tier):
            return f"{one.title} and {two.title} share no such hospital"
        ours, theirs = (scores(r, self.which, parties) for r in (row, against))
        return {seed: 100 * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}

    def _shown(self, claim: Shown) -> Iterator[tuple[Verdict, str]]:
        row = self.find(claim.arm)
        figures = {} if row is None else claim.read(row)
        if not figures:
            yield "not run", _absent(claim.arm)
        for title, values in figures.items():
            verdict, bounds = told(values, 0.0)
            yield verdict, f"{title}: {bounds}"

    def _common(self, row: Row, arm: Arm, against: Row, other: Arm) -> set[str]:
        """The parties on whose records both are measured, in the tiers that are asked for."""
        measured = set(row[self.which]["party"]) & set(against[self.which]["party"])
        return measured & self._tier(row, arm.tier) & self._tier(against, other.tier)

    def _tier(self, row: Row, tier: str) -> set[str]:
        """Its parties of a tier; where all models have one size, those of the group's others."""
        if not tier:
            return set(row["parties"])
        alike = [r for r in self.rows if r["group"] == row["group"] and r["data"] == row["data"]]
        for like in [row] if any(row["parties"].values()) else alike:
            if tier in like["parties"].values():
                return {party for party, own in like["parties"].items() if own == tier}
        return set()

    def _cheaper(self, claim: Cheaper) -> tuple[Verdict, str]:
        row = self.find(claim.arm)
        if row is None:
            return "not run", _absent(claim.arm)
        if claim.other is None:
            title, times = "FedAvg of the whole model in fp32", row["bytes"].get("times_less")
            if times is None:
                return "not run", "the size of the whole model is not known"
        elif (other := self.find(claim.other)) is None:
            return "not run", _absent(claim.other)
        else:
            title = claim.other.title
            times = other["bytes"]["both"] / max(row["bytes"]["both"], 1)
        verdict: Verdict = "holds" if times >= claim.times else "does not hold"
        return verdict, f"{claim.arm.title} takes {part_of(times)} {title}"


def scores(row: Row, which: Which, parties: set[str]) -> dict[int, float]:
    """The test score of each seed: the mean over these parties; over all if none is measured."""
    found = [row[which]["party"].get(party) for party in sorted(parties)]
    each = [party["values"] for party in found if party is not None]
    if not each:
        whole: Mapping[str, Any] | None = row[which]["test"]
        if whole is None:
            return {}
        each = [whole["values"]]
    return {seed: fmean(values) for seed, *values in zip(row["seeds"], *each, strict=True)}


def gained(row: Row, against: Row, figure: Figure) -> dict[int, float]:
    """By how much the last round's figure on test records is better, for each seed of both."""
    one, two = (
        dict(zip(r["seeds"], r[figure], strict=True)) if r[figure] else {} for r in (row, against)
    )
    sign = -100 if figure == "loss" else 100
    return {seed: sign * (one[seed] - two[seed]) for seed in one if seed in two}


def _of(figure: Figure, one: str, other: str) -> str:
    if figure == "loss":
        return f"loss of {other} - {one}"
    return f"{'AUROC' if figure == 'auroc' else 'average precision'} of {one} - {other}"


def part_of(times: float) -> str:
    """So many times less, or more, in words."""
    return f"1/{three(times)} of" if times >= 1 else f"{three(1 / times)} times as much as"


def _absent(arm: Arm) -> str:
    return f"{arm.title}: no finished cell"
