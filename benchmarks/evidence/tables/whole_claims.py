"""What whole sets decide: the claims about scores that a few hundred records leave open."""

from __future__ import annotations

from benchmarks.evidence.published import Paper, Section
from benchmarks.evidence.tables.fedkd_paper import SCORES
from benchmarks.evidence.tables.inclusivefl_paper import CLAIMS
from benchmarks.evidence.tables.whole import FEDKD, INCLUSIVE

WHERE = "Cells of seeds 0 to 2 ran on an NVIDIA H100, some of 3 and 4, too, the others on an EPYC."
PAPER = Paper(
    "whole",
    "FedKD and InclusiveFL on whole sets",
    (
        Section(
            FEDKD,
            "Rates are the best of three on ade_cls (dev records of seed 7, eight rounds), not "
            "chosen for sst2; FedKD has those of models that train alone and of shallow ones. "
            f"{WHERE}",
            claims=SCORES,
        ),
        Section(
            INCLUSIVE,
            "Three hospitals of each tier; 1:1:1, as in the paper's Table 2; all methods at "
            f"FedAvg's rate. The paper measures the large model. {WHERE}",
            claims=CLAIMS,
            tier="strong",
        ),
    ),
)
