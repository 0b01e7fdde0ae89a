"""What the InclusiveFL paper prints and claims: Tables 2, 3 and 5."""

from __future__ import annotations

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
COLA = {  # Table 5, 1:1:1
    "AllLarge": "63.03",
    "AllSmall": "34.91",
    "ExclusiveFL": "37.77",
    "HeteroFL": "8.15",
    "InclusiveFL": "54.85",
}
COLA_MOMENTUM = {"InclusiveFL": "54.85", "InclusiveFL without momentum": "52.69"}

FEW = "few records and rounds: a pretrained checkpoint is fine-tuned a little, so models stay near"
FULL, LARGE, SMALL, HETERO, LOCAL = (
    Arm(name) for name in ("InclusiveFL", "AllLarge", "AllSmall", "HeteroFL", "Local")
)
NEAR = "InclusiveFL comes near AllLarge (we say: at most two points behind; in Table 3: 1.6)."
ROOM = "There is head-room: AllLarge is above AllSmall."
NER_CLAIMS: tuple[Claim, ...] = (  # judged on a whole set (`whole_claims`)
    Better(ROOM, LARGE, (SMALL,), screens=True),
    Better(
        "InclusiveFL is best of all that run on such devices (Local, AllSmall, HeteroFL).",
        FULL,
        (LOCAL, SMALL, HETERO),
        reason=FEW,
    ),
    Better(NEAR, FULL, (LARGE,), by=-2.0, reason=FEW),
)


def strong(method: str) -> Arm:
    """A method's large model, which the paper measures; of one-size models the same hospitals."""
    return Arm(method, tier="strong")


CLAIMS: tuple[Claim, ...] = (  # judged on a whole set (`whole_claims`)
    Better(ROOM, strong("AllLarge"), (strong("AllSmall"),), screens=True),
    Better(
        "InclusiveFL's large model is better than AllSmall's, ExclusiveFL's and HeteroFL's.",
        strong("InclusiveFL"),
        (strong("AllSmall"), strong("ExclusiveFL"), strong("HeteroFL")),
        reason=FEW,
    ),
    Better(NEAR, strong("InclusiveFL"), (strong("AllLarge"),), by=-2.0, reason=FEW),
    Better("HeteroFL is worse than AllSmall.", strong("AllSmall"), (strong("HeteroFL"),)),
)
MOMENTUM = Better(
    "Momentum distillation helps the smaller tiers (parties train by SGD).",
    FULL,
    (Arm("InclusiveFL without momentum"),),
    reason="the momentum of a round is small beside the update it is mixed into",
)
ONE_EACH = "1:1:1, on sst2"

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
        ),
        Section(
            "weak:medium:strong 1:1:1",
            'Table 2, "Performance comparison […] on the GLUE benchmark", SST2, and Table 5, '
            '"Influence of different proportions of device types on the CoLA dataset". The paper '
            "measures the large model: the strong hospitals' column. Each tier's model is tested "
            "on all test records.",
            beside=(Beside("paper: SST2", SST2), Beside("paper: CoLA, 1:1:1", COLA)),
            tier="strong",
            sheet=ONE_EACH,
            column="AdamW at the parties",
        ),
        Section(
            "by SGD, 1:1:1",
            "Table 5, with and without momentum distillation: hospitals train by SGD, as the "
            "paper's do, since AdamW's moves carry no direction.",
            beside=(Beside("paper: CoLA, momentum", COLA_MOMENTUM),),
            claims=(MOMENTUM,),
            sheet=ONE_EACH,
            column="SGD at the parties",
        ),
    ),
)
