"""What we claim of adapters: near whole models at few bytes, and ahead of them under DP."""

from __future__ import annotations

from benchmarks.evidence.claims import Arm, Better, Cheaper
from benchmarks.evidence.published import Paper, Section
from benchmarks.evidence.tables.adapters import CLEAR, LORA, PRIVATE, WHOLE

SMALL, LARGE = Arm(LORA), Arm(WHOLE)
NEAR = Better(
    "Adapters are at most one and a half points behind the whole model.", SMALL, (LARGE,), by=-1.5
)
FEW = Cheaper("They take at most 1/50 of its bytes.", SMALL, LARGE, times=50)
AHEAD = Better(
    "Under DP-SGD adapters are better than the whole model, by AUROC.",
    SMALL,
    (LARGE,),
    figure="auroc",
)

PAPER = Paper(
    "adapters",
    "Adapters beside whole models",
    (
        Section(CLEAR, "LoRA of rank 3 on all linear layers.", claims=(NEAR, FEW)),
        Section(
            PRIVATE,
            "LoRA of rank 8 on attentions; ε of each record at each hospital, over the run. "
            "Hospitals learn from as many records of each class and are tested where a fifth is "
            "positive, so that of ade_cls F1 says little and AUROC more.",
            claims=(AHEAD,),
        ),
    ),
)
