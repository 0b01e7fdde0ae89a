"""What FedID's Figures 2 to 4 show: curves only, so claims and no figures."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.evidence.claims import Arm, Better, Claim
from benchmarks.evidence.published import Section
from benchmarks.evidence.tables.fedid_sizes import SWEEPS

TABLE = "homogeneous, α = 1"  # where four hospitals learn with all public and labelled records
ID, DSFL = Arm("FedID"), Arm("DS-FL")
DRAWS = "draws of so few records differ by more than what is varied here changes"
AHEAD = Better("FedID stays better than DS-FL.", ID, (DSFL,), reason=DRAWS)


def worse(than: str) -> tuple[Claim, ...]:
    """What is varied harms both ways to distil."""
    return tuple(
        Better(
            f"{arm.method}'s central model is worse with {than}.",
            replace(arm, group=TABLE),
            (arm,),
            reason=DRAWS,
        )
        for arm in (ID, DSFL)
    )


def as_good() -> tuple[Claim, ...]:
    """Half of the labelled records cost little: FedID only asks them, for DS-FL they are few."""
    return tuple(
        Better(
            f"{arm.method} hardly needs more labelled records (we say: half cost two points at "
            "most).",
            arm,
            (replace(arm, group=TABLE),),
            by=-2.0,
            reason=DRAWS,
        )
        for arm in (ID, DSFL)
    )


SWEEP = SWEEPS["cpu"]
VARIED = (  # figure, what our groups are called by, the caption's words, sizes, claims
    (2, "public records", "sizes of public dataset", SWEEP.public, worse("fewer public records")),
    (3, "labelled records", "sizes of labeled dataset", SWEEP.labelled, as_good()),
    (4, "parties", "numbers of clients", SWEEP.parties, worse("more hospitals")),
)
CURVES = tuple(
    Section(
        f"Figure {figure}: {size} {varied}",
        f'Figure {figure}, "Performance of the central model on SST-2 with different {caption}." '
        "Curves only.",
        claims=(*claims, AHEAD),
        sheet="Figures 2 to 4, on sst2",
        column=f"{size} {varied}",
    )
    for figure, varied, caption, sizes, claims in VARIED
    for size in sizes
)
