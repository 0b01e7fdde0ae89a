"""What the FedKD paper prints and claims: Tables 2 and 3, Figures 2 and 3 (curves only)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.evidence.claims import Arm, Better, Cheaper, Claim
from benchmarks.evidence.published import Beside, Paper, Section
from benchmarks.evidence.tables.fedkd import MAIN
from benchmarks.evidence.tables.fedkd_curves import CURVES

ROWS = (
    "Local",
    "Centralized",
    "FedAvg",
    "FedAvg, first 4 layers",
    "FedAvg, first 2 layers",
    "FetchSGD",
    "FedDropout",
    "FedKD 4",
    "FedKD 2",
)


def column(head: str, *figures: str) -> Beside:
    """A column of the paper, in the order of `ROWS`."""
    return Beside(head, dict(zip(ROWS, figures, strict=True)))


AUC = column(
    "paper: MIND, AUC",
    *("68.8 ± 0.5", "71.0 ± 0.1", "70.9 ± 0.3", "69.6 ± 0.1", "68.9 ± 0.2", "70.5 ± 0.4"),
    *("70.5 ± 0.2", "71.0 ± 0.1", "70.5 ± 0.1"),
)
AUC_COST = column(
    "paper: GB a client",
    *("-", "-", "2.05", "0.69", "0.35", "0.51", "1.23", "0.19", "0.11"),
)
ADR = column(
    "paper: SMM4H, F1",
    *("53.9 ± 1.1", "60.8 ± 0.4", "60.6 ± 0.4", "58.2 ± 0.5", "56.3 ± 0.6", "59.0 ± 0.8"),
    *("59.4 ± 0.6", "60.7 ± 0.5", "59.8 ± 0.6"),
)
ADR_COST = column(
    "paper: GB a client",
    *("-", "-", "1.37", "0.46", "0.24", "0.34", "0.82", "0.12", "0.07"),
)

FEW = (
    "a few hundred records and three rounds: the teachers, by which the paper infers, learn from "
    "the 80 to 150 records of one hospital"
)
OWN = "the teachers, by which the paper infers, learn from the records of one hospital each"
WIDE = "our checkpoint has 6 layers where the paper's has 12: the cut in depth saves half as much"
RANKS = "on these updates, of few records and steps, the energy threshold keeps wider factors"
FOUR, TWO, WHOLE = Arm("FedKD 4"), Arm("FedKD 2"), Arm("FedAvg")
FRUGAL = (Arm("FetchSGD"), Arm("FedDropout"))


def main(reason: str) -> tuple[Claim, ...]:
    """What Tables 2 and 3 are there to show."""
    return (
        Better("FedAvg is better than local training.", WHOLE, (Arm("Local"),), reason=reason),
        Better("FedKD is better than local training.", FOUR, (Arm("Local"),), reason=reason),
        Better(
            "FedKD of 4 layers is comparable to FedAvg and to centralized training of the whole "
            "model (we say: not more than a point behind).",
            FOUR,
            (WHOLE, Arm("Centralized")),
            by=-1.0,
            reason=reason,
        ),
        taught(FOUR, Arm("FedAvg, first 4 layers"), reason),
        Better(
            "Not the paper's: the student, which it does not infer by, is comparable to FedAvg of "
            "the whole model (at most two points behind).",
            replace(FOUR, model="student"),
            (WHOLE,),
            by=-2.0,
            reason=reason,
        ),
    )


def taught(arm: Arm, shallow: Arm, reason: str) -> Claim:
    """Distillation pays."""
    what = f"{arm.method} is better than FedAvg of a model as shallow as its student."
    return Better(what, arm, (shallow,), reason=reason)


SCORES: tuple[Claim, ...] = (
    *main(FEW),
    taught(TWO, Arm("FedAvg, first 2 layers"), FEW),
    Better("FedKD is better than FetchSGD and FedDropout.", FOUR, FRUGAL, reason=FEW),
    *(
        Cheaper(
            f"FedKD takes less communication than {other.method} (ours at 4 bits, the other at 8).",
            FOUR,
            other,
            reason=RANKS,
        )
        for other in FRUGAL
    ),
)


def costs(four: float, two: float, scaled: tuple[float, float]) -> Iterator[Claim]:
    """The saving over the whole model: as printed, and for a model half as deep."""
    for arm, printed, own in ((FOUR, four, scaled[0]), (TWO, two, scaled[1])):
        yield Cheaper(
            f"{arm.method} takes at most 1/{printed} of the bytes of FedAvg (ours at 4 bits).",
            arm,
            times=printed,
            reason=WIDE,
        )
        yield Cheaper(
            f"The same for our depth: at most 1/{own} (at 4 bits), the paper's saving beyond its "
            "cut in depth, times our cut.",
            arm,
            times=own,
            reason=RANKS,
        )
    yield Cheaper(
        f"Factors alone, in the clear: at most 1/{scaled[0] / 1.5:.1f} of the whole matrices, the "
        "paper's saving beyond its cut in depth.",
        Arm("FedKD 4, unprotected"),
        Arm("FedKD 4, no factors, unprotected"),
        times=round(scaled[0] / 1.5, 1),
        reason=RANKS,
    )


BOTH = (FOUR, Arm("FedKD 4", model="student"))
ABLATIONS: tuple[Claim, ...] = (
    *(
        Better(
            f"Mutual distillation makes the {name} better (Figure 2).",
            arm,
            (Arm("teachers learn from labels only", model=arm.model),),
            reason="the student is not yet good enough, in so few rounds, to teach its teachers",
        )
        for arm, name in zip(BOTH, ("teacher", "student"), strict=True)
    ),
    Better(
        "The local teachers are slightly better than the student.", FOUR, (BOTH[1],), reason=FEW
    ),
    *(
        Better(f"{what} helps the teacher (Figure 3).", FOUR, (Arm(without),), reason=FEW)
        for what, without in (
            ("The adaptive mutual distillation loss", "without mutual distillation loss"),
            ("The adaptive hidden loss", "without hidden loss"),
            ("Adaptive weighting", "without adaptive weights"),
        )
    ),
)

PAPER = Paper(
    "fedkd",
    "FedKD (Wu et al., arXiv 2108.13323)",
    (
        Section(
            "Tables 2 and 3",
            'Table 3, "Performance of different methods on SMM4H." ade_cls stands in for it: '
            "adverse drug reactions in sentences of case reports, not in tweets.",
            ("ade_cls",),
            (ADR, ADR_COST),
            (*SCORES, *costs(11.4, 19.6, (5.7, 9.8))),
        ),
        Section(
            "Tables 2 and 3",
            'Table 2, "Performance of different methods on MIND." News ranking, for which these '
            "sets are no like; what can be compared is who is above whom, and the cost.",
            ("sst2", "rte"),
            (AUC, AUC_COST),
            (*SCORES, *costs(10.8, 18.6, (5.4, 9.3))),
        ),
        Section(
            "Tables 2 and 3, 2400 records",
            "Table 2 again, its main rows, with four times the records.",
            beside=(AUC.among(MAIN), AUC_COST.among(MAIN)),
            claims=main(OWN),
            sheet="Tables 2 and 3",
            column="sst2, 2400 records",
        ),
        Section(
            "Figures 2 and 3",
            'Figure 2, "Influence of mutual distillation on the student and teacher models", and '
            'Figure 3, "Effect of adaptive mutual distillation." The paper prints curves only.',
            claims=ABLATIONS,
        ),
        *CURVES,
    ),
)
