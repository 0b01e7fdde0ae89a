"""What FedKD's Figures 4 to 7 show: curves only, so claims and no figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.evidence.claims import Arm, Better, Cheaper, Claim, Shown
from benchmarks.evidence.published import Section
from benchmarks.evidence.summary import Row

TABLE = "Tables 2 and 3"  # where FedKD of four parties, with the paper's thresholds, stands
FOUR, SHALLOW = Arm("FedKD 4"), Arm("FedAvg, first 4 layers")


def crowd(parties: int) -> tuple[Claim, ...]:
    """Figure 4: the same records in more hospitals than four."""
    four = replace(FOUR, group=TABLE)
    return (
        Better(
            f"FedKD is not worse with {parties} hospitals than with four (we say: by a point).",
            FOUR,
            (four,),
            by=-1.0,
            reason="a teacher, by which the paper infers, learns from fewer records in each",
            whole=True,
        ),
        Better(
            f"FedAvg of a model as shallow as the student is worse with {parties} than with four.",
            replace(SHALLOW, group=TABLE),
            (SHALLOW,),
            reason="one epoch a round: models do not part far in it",
            whole=True,
        ),
    )


def thresholds() -> Iterator[Claim]:
    """Figure 5: T_start varies under T_end = 1, then T_end under T_start = 0.95."""
    usual = Arm("FedKD 4", group=TABLE)
    low, less, most, short = (
        Arm(f"FedKD 4, T from {start} to {end}")
        for start, end in ((0.8, 1.0), (0.9, 1.0), (0.95, 1.0), (0.95, 0.95))
    )
    for cheap, dear in ((low, less), (less, most), (short, usual), (usual, most)):
        yield Cheaper("The lower the thresholds, the less is sent.", cheap, dear)
    for arm in (low, less):
        yield Better(
            "Below T_start = 0.95 models are worse.",
            most,
            (arm,),
            reason="a few hundred records and three rounds tell small differences badly",
        )


def low_rank(row: Row) -> dict[str, list[float]]:
    """How far each kind of matrix stays below half of its singular values, in the first round."""
    return {f"50 - {kind}": [50 - n for n in needed(row, kind, 0)] for kind in kinds(row)}


def feed_forward(row: Row) -> dict[str, list[float]]:
    """What the other kinds need more than the feed-forward network, in the first round."""
    ours = needed(row, "W", 0)
    return {
        f"{kind} - W": [n - w for n, w in zip(needed(row, kind, 0), ours, strict=True)]
        for kind in kinds(row)
        if kind != "W"
    }


def later(row: Row) -> dict[str, list[float]]:
    """What is needed more in the last round than in the first."""
    return {
        f"{kind}, last - first": [
            last - first
            for first, last in zip(needed(row, kind, 0), needed(row, kind, -1), strict=True)
        ]
        for kind in kinds(row)
    }


def kinds(row: Row) -> list[str]:
    """The kinds of matrices that were taken apart."""
    return list(row["spectra"][0]) if row["spectra"] else []


def needed(row: Row, kind: str, at: int) -> list[float]:
    """Percent of the singular values that hold 95 % of the energy, of each seed."""
    return [100 * seed[kind][at]["needed"] for seed in row["spectra"]]


ADAM = "AdamW makes the entries of a step alike in size, which spreads its energy"
SPECTRA: tuple[Claim, ...] = (
    Shown(
        "All kinds of matrices are low-rank (we say: half of their singular values hold 95 % of "
        "the energy in the first round).",
        FOUR,
        low_rank,
        ADAM,
    ),
    Shown("The feed-forward network's are so most of all.", FOUR, feed_forward, ADAM),
    Shown(
        "More singular values are needed at the end than at the beginning.",
        FOUR,
        later,
        "six rounds, in which hospitals still learn much in common: the paper's runs converge",
    ),
)

CURVES = (
    *(
        Section(
            f"Figure 4: {parties} parties",
            'Figure 4, "Influence of client number." Curves only.',
            claims=crowd(parties),
            sheet="Figure 4, on sst2",
            column=f"{parties} parties",
        )
        for parties in (8, 16)
    ),
    Section(
        "Figure 5",
        'Figure 5, "Influence of T_start and T_end on model performance and communication '
        'cost." Curves only.',
        claims=tuple(thresholds()),
    ),
    Section(
        "Figures 6 and 7",
        'Figure 6, "Cumulative energy distributions of singular values of different parameter '
        'gradient matrices", and Figure 7, "Evolution of the number of required singular '
        'values under T = 0.95." Curves only. The paper takes gradients apart, we the mean of '
        "what hospitals learnt in a round.",
        claims=SPECTRA,
    ),
)
