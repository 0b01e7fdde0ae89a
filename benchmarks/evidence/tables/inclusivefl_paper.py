"""What the InclusiveFL paper prints and claims: Tables 2, 3 and 5, Figure 5 (a plot)."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.claims import Arm, Better, Claim
from benchmarks.evidence.published import Beside, Paper, Section

NER = {  # Table 3, the column Avg.
    "AllLarge": "57.62",
    "Local": "43.11",
    "AllSmall": "40.89 (its nine entries: 50.25)",
    "HeteroFL": "42.51 (its nine entries: 40.89)",
    "InclusiveFL": "56.02",
}
SST2 = {  # Table 2
    "AllLarge": "94.43",
    "ExclusiveFL": "94.06",
    "AllSmall": "90.14",
    "HeteroFL": "84.98",
    "InclusiveFL": "94.17",
}
COLA: Mapping[str, Mapping[str, str]] = {  # Table 5
    "1:1:1": {
        "AllLarge": "63.03",
        "AllSmall": "34.91",
        "ExclusiveFL": "37.77",
        "HeteroFL": "8.15",
        "InclusiveFL without momentum": "52.69",
        "InclusiveFL": "54.85",
    },
    "1:2:7": {
        "AllLarge": "63.03",
        "AllSmall": "34.91",
        "ExclusiveFL": "59.15",
        "HeteroFL": "9.60",
        "InclusiveFL without momentum": "60.35",
        "InclusiveFL": "61.23",
    },
    "7:2:1": {
        "AllLarge": "63.03",
        "AllSmall": "34.91",
        "ExclusiveFL": "36.87",
        "HeteroFL": "N/A",
        "InclusiveFL without momentum": "N/A",
        "InclusiveFL": "34.96 (momentum only)",
    },
}

SHORT = (
    "six rounds, where the paper has a hundred to a thousand: the momentum of a round is small "
    "beside the update it is mixed into, and acts a round late"
)
FEW = "few records and rounds; single hospitals are tested on a few dozen records"
EASY = "over six rounds a pretrained checkpoint is fine-tuned a little: all models stay near to it"

FULL, PLAIN = Arm("InclusiveFL"), Arm("InclusiveFL without momentum")
LARGE, SMALL, HETERO, LOCAL = (Arm(n) for n in ("AllLarge", "AllSmall", "HeteroFL", "Local"))
NER_CLAIMS: tuple[Claim, ...] = (
    Better(
        "InclusiveFL is best of all that run on such devices (Local, AllSmall, HeteroFL).",
        FULL,
        (LOCAL, SMALL, HETERO),
        reason=FEW,
    ),
    Better("AllLarge is better than InclusiveFL.", LARGE, (FULL,), reason=EASY),
    Better(
        "InclusiveFL comes near AllLarge (we say: not more than two points behind; there: 1.6).",
        FULL,
        (LARGE,),
        by=-2.0,
        reason=FEW,
    ),
    Better("Momentum distillation helps.", FULL, (PLAIN,), reason=SHORT),
    Better("Local training is worse than AllSmall.", SMALL, (LOCAL,), reason=EASY),
    Better("HeteroFL is worse than AllSmall.", SMALL, (HETERO,), reason=FEW),
)


def strong(method: str, group: str | None = None) -> Arm:
    """A method's large model, which the paper measures; of one-size models the same hospitals."""
    return Arm(method, tier="strong", group=group)


STRONG = {m: strong(m) for m in ("AllLarge", "AllSmall", "ExclusiveFL", "HeteroFL", "InclusiveFL")}
ALL_LARGE = Better(
    "AllLarge is better than InclusiveFL.",
    STRONG["AllLarge"],
    (STRONG["InclusiveFL"],),
    reason=EASY,
)
EXCLUSIVE = Better(
    "ExclusiveFL is better than AllSmall.",
    STRONG["ExclusiveFL"],
    (STRONG["AllSmall"],),
    reason=FEW,
)
CLAIMS: tuple[Claim, ...] = (
    Better(
        "InclusiveFL's large model is better than AllSmall's, ExclusiveFL's and HeteroFL's.",
        STRONG["InclusiveFL"],
        (STRONG["AllSmall"], STRONG["ExclusiveFL"], STRONG["HeteroFL"]),
        reason=FEW,
    ),
    ALL_LARGE,
    Better(
        "Momentum distillation helps the large model.",
        STRONG["InclusiveFL"],
        (strong("InclusiveFL without momentum"),),
        reason=SHORT,
    ),
    *(
        Better(
            f"HeteroFL is worse than {arm.method}.",
            arm,
            (STRONG["HeteroFL"],),
            reason=EASY,
        )
        for arm in (STRONG["AllSmall"], STRONG["ExclusiveFL"])
    ),
    EXCLUSIVE,
)
LEFT_OUT: tuple[Claim, ...] = tuple(
    Better(
        f"Without the {tier} hospitals those that remain learn less (Figure 5).",
        FULL,
        (Arm(f"InclusiveFL without the {tier}"),),
        reason=FEW,
    )
    for tier in ("weak", "medium", "strong")
)
MORE: tuple[Claim, ...] = tuple(
    Better(
        f"{method} is better where more hospitals are strong: 1:2:7 above 1:1:1.",
        strong(method),
        (strong(method, "weak:medium:strong 1:1:1"),),
        reason=FEW,
    )
    for method in ("ExclusiveFL", "HeteroFL")
)
FEWER: tuple[Claim, ...] = (  # at 7:2:1 the paper gives no HeteroFL and no row without momentum
    ALL_LARGE,
    EXCLUSIVE,
    Better(
        "Where few hospitals are strong, InclusiveFL's large model is slightly worse than "
        "ExclusiveFL's.",
        STRONG["ExclusiveFL"],
        (STRONG["InclusiveFL"],),
        reason="the one strong hospital picks its best round by six dev records; after the last "
        "round it is not behind, see that column",
    ),
)
SAID: Mapping[str, tuple[Claim, ...]] = {
    "1:1:1": CLAIMS + LEFT_OUT,
    "1:2:7": CLAIMS + MORE,
    "7:2:1": FEWER,
}


def proportion(name: str) -> Section:
    """Table 5's column, on another set than the paper's; Table 2's beside its default."""
    source = (
        'Table 5, "Influence of different proportions of device types on the CoLA dataset"; '
        "ours are on sst2. The paper measures the large model: the strong hospitals' column. Two "
        "layers of our checkpoint stay at one class in most of these runs, so what is better than "
        "AllSmall says little here."
    )
    beside: tuple[Beside, ...] = (Beside(f"paper: CoLA, {name}", COLA[name]),)
    if name == "1:1:1":
        source = f'Table 2, "Performance comparison […] on the GLUE benchmark", SST2, and {source}'
        beside = (Beside("paper: SST2", SST2), *beside)
    group = f"weak:medium:strong {name}"
    sheet = "weak:medium:strong, on sst2"
    return Section(group, source, (), beside, SAID[name], "best", "strong", sheet, name)


PAPER = Paper(
    "inclusivefl",
    "InclusiveFL (Liu et al., KDD 2022, arXiv 2202.08036)",
    (
        Section(
            "NER across hospitals",
            'Table 3, "Performance comparison of federated learning methods on medical datasets '
            'for named entity recognition", mean over entity types. ncbi_disease, ade_ner and '
            "psytar_ner stand in for SMM4H, ADE and CADEC; our mean is over hospitals.",
            beside=(Beside("paper: mean F1", NER),),
            claims=NER_CLAIMS,
            which="best",
        ),
        *(proportion(name) for name in COLA),
    ),
)
