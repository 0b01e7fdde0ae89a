"""What the FedKD paper prints and claims: Tables 2 and 3, and Figures 2, 6 and 7 (curves only)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.evidence.claims import Arm, Better, Cheaper, Claim, Shown
from benchmarks.evidence.published import Beside, Paper, Section
from benchmarks.evidence.summary import Row

CUTS = {  # the paper's row -> ours with the same cut
    "Local": "Local",
    "FedAvg": "FedAvg",
    "FedAvg, first 4 layers": "FedAvg, first 2 layers",
    "FedAvg, first 2 layers": "FedAvg, first layer",
    "FetchSGD": "FetchSGD, 4 bits",
    "FedKD 4": "FedKD 2",
    "FedKD 2": "FedKD 1",
}


def column(head: str, *figures: str) -> Beside:
    """A column of the paper, in the order of `CUTS`."""
    return Beside(head, dict(zip(CUTS.values(), figures, strict=True)))


AUC = column(
    "paper: MIND, AUC",
    *("68.8 ± 0.5", "70.9 ± 0.3", "69.6 ± 0.1", "68.9 ± 0.2", "70.5 ± 0.4"),
    *("71.0 ± 0.1", "70.5 ± 0.1"),
)
AUC_COST = column("paper: GB a client", "-", "2.05", "0.69", "0.35", "0.51", "0.19", "0.11")
ADR = column(
    "paper: SMM4H, F1",
    *("53.9 ± 1.1", "60.6 ± 0.4", "58.2 ± 0.5", "56.3 ± 0.6", "59.0 ± 0.8"),
    *("60.7 ± 0.5", "59.8 ± 0.6"),
)
ADR_COST = column("paper: GB a client", "-", "1.37", "0.46", "0.24", "0.34", "0.12", "0.07")

LOCAL_TEACHER = (
    "a teacher learns from one hospital's records only, and what it knows beyond the student, "
    "which learns from all, is little"
)
TEACHER, WHOLE, LOCAL = Arm("FedKD 2"), Arm("FedAvg"), Arm("Local")
STUDENT, SHALLOW = replace(TEACHER, model="student"), Arm("FedAvg, first 2 layers")
ALONE = Arm("FedKD 2, labels only")
SCORES: tuple[Claim, ...] = (  # judged on whole sets (`whole_claims`)
    Better(
        "There is head-room: FedAvg of the whole model is above its first two layers.",
        WHOLE,
        (SHALLOW,),
        screens=True,
    ),
    Better(
        "FedKD's teachers, by which the paper infers, are better than local training.",
        TEACHER,
        (LOCAL,),
        reason=LOCAL_TEACHER,
    ),
    Better(
        "FedKD's teachers are comparable to FedAvg of the whole model (we say: at most one point "
        "behind).",
        TEACHER,
        (WHOLE,),
        by=-1.0,
        reason=LOCAL_TEACHER,
    ),
    Better(
        "FedKD's student is better than FedAvg of a model as shallow.",
        STUDENT,
        (SHALLOW,),
        reason=LOCAL_TEACHER,
    ),
)
TAUGHT = Better(
    "Mutual distillation lowers the teachers' loss on test records (Figure 2).",
    TEACHER,
    (ALONE,),
    figure="loss",
)


def costs(four: float, two: float) -> Iterator[Claim]:
    """The saving over the whole model, as printed of the same cut."""
    for arm, printed in ((TEACHER, four), (Arm("FedKD 1"), two)):
        yield Cheaper(
            f"{arm.method} takes at most 1/{printed} of the bytes of FedAvg (ours at 4 bits).",
            arm,
            times=printed,
        )


FRUGAL = Cheaper(
    "FedKD takes less communication than FetchSGD at as many bits.",
    TEACHER,
    Arm("FetchSGD, 4 bits"),
)
ADAM = "AdamW makes the entries of a step alike in size, which spreads its energy"
FACTORS: tuple[Claim, ...] = tuple(
    Cheaper(
        f"Factors of {what} take at most 1/3.7 of the whole matrices, the paper's saving beyond "
        "its cut in depth.",
        Arm(f"{what}, factors"),
        Arm(what),
        times=3.7,
        reason=ADAM if "AdamW" in what else "",
    )
    for what in ("moves by AdamW", "gradients")
)


def low_rank(row: Row) -> dict[str, list[float]]:
    """How far each kind of matrix stays below half of its singular values, in the first round."""
    return {f"50 - {kind}": [50 - n for n in needed(row, kind)] for kind in kinds(row)}


def kinds(row: Row) -> list[str]:
    """The kinds of matrices that were taken apart."""
    return list(row["spectra"][0]) if row["spectra"] else []


def needed(row: Row, kind: str) -> list[float]:
    """Percent of the singular values that hold 95 % of the energy, of each seed."""
    return [100 * seed[kind][0]["needed"] for seed in row["spectra"]]


SPECTRA: tuple[Claim, ...] = (
    Shown(
        "Gradients are low-rank: half of their singular values hold 95 % of the energy.",
        Arm("gradients"),
        low_rank,
    ),
)

PAPER = Paper(
    "fedkd",
    "FedKD (Wu et al., arXiv 2108.13323)",
    (
        Section(
            "Tables 2 and 3",
            'Table 3, "Performance of different methods on SMM4H." ade_cls stands in for it: '
            "adverse drug reactions in sentences of case reports, not in tweets. The paper's "
            "figures stand beside our rows of the same cut in depth. *One network* is our default, "
            "whose student is its teacher's first layers.",
            ("ade_cls",),
            (ADR, ADR_COST),
            (TAUGHT, *costs(11.4, 19.6), FRUGAL),
        ),
        Section(
            "Tables 2 and 3",
            'Table 2, "Performance of different methods on MIND." News ranking, for which sst2 is '
            "no like; what can be compared is who is above whom, and the cost.",
            ("sst2",),
            (AUC, AUC_COST),
            (TAUGHT, *costs(10.8, 18.6)),
        ),
        Section(
            "Figures 6 and 7",
            'Figure 6, "Cumulative energy distributions of singular values of different parameter '
            'gradient matrices": its text says that gradients travel, its code sends what an epoch '
            "moved.",
            claims=(*FACTORS, *SPECTRA),
        ),
    ),
)
