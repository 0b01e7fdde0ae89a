"""What whole sets decide: the claims about scores that a few hundred records leave open."""

from __future__ import annotations

from benchmarks.evidence.published import Paper, Section
from benchmarks.evidence.tables.fedkd_paper import SCORES
from benchmarks.evidence.tables.inclusivefl_paper import CLAIMS
from benchmarks.evidence.tables.whole import FEDKD, INCLUSIVE

MADE = "`python -m benchmarks halved FOLDER` makes their checkpoint again, for `--model`."
PAPER = Paper(
    "whole",
    "FedKD and InclusiveFL on whole sets",
    (
        Section(
            FEDKD,
            "Rates are the best of three on ade_cls (dev records of seed 7, eight rounds), not "
            "chosen for sst2; FedKD has those of models that train alone and of shallow ones. All "
            f"cells ran on an NVIDIA H100. {MADE}",
            claims=SCORES,
        ),
        Section(
            INCLUSIVE,
            "Three hospitals of each tier; 1:1:1, as in the paper's Table 2; all methods at "
            "FedAvg's rate. The paper measures the large model. Three cells of seeds 3 and 4 ran "
            "on an EPYC, the others on an NVIDIA H100.",
            claims=CLAIMS,
            tier="strong",
        ),
    ),
)
