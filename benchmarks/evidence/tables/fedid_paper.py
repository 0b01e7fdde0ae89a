"""What the FedID paper prints of our sets: Tables 1, 2 and 4, and its claim about bytes.

Its claims about scores are held against the skewed settings (`fedid_skewed_claims`), where rates
fall and the controls stand beside the methods. As printed, all members at one rate that never
falls, three seeds differ by more than the methods do, so those tables are shown without verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.claims import Arm, Cheaper, Claim
from benchmarks.evidence.published import Beside, Paper, Section
from benchmarks.evidence.tables.fedid_skewed_claims import SKEWED

ALIKE: Mapping[str, Mapping[str, str]] = {  # Table 1, SST-2
    "100": {
        "Centralized": "92.4",
        "FedAvg": "91.8",
        "FedDF": "92.0",
        "FedED": "91.1",
        "FedKD (Gong)": "89.2",
        "DS-FL": "90.7",
        "MHAT": "91.0",
        "FedID": "91.6",
    },
    "1": {
        "Centralized": "92.4",
        "FedAvg": "91.0",
        "FedDF": "91.2",
        "FedED": "90.7",
        "FedKD (Gong)": "88.9",
        "DS-FL": "90.6",
        "MHAT": "90.7",
        "FedID": "90.9",
    },
}
UNLIKE = {"FedKD (Gong)": "88.9", "DS-FL": "90.9", "MHAT": "91.2", "FedID": "91.8"}  # Table 2
ABLATED = {"FedID": "91.8", "without g_feedback": "90.7", "without g_distill": "91.1"}  # Table 4

ID = Arm("FedID")
COSTS: tuple[Claim, ...] = (
    *(
        Cheaper(f"FedID takes at most half of {name}'s bytes.", ID, Arm(name), 2)
        for name in ("FedAvg", "FedDF", "FedED")
    ),
    Cheaper("FedID's bytes stay in line with DS-FL's (we say: twice).", ID, Arm("DS-FL"), 0.5),
)


def printed(group: str, source: str, figures: Mapping[str, str], *claims: Claim) -> Section:
    """A table of the paper beside ours on sst2."""
    beside = (Beside("paper: SST-2", figures),)
    return Section(group, source, ("sst2",), beside, claims, sheet="As printed", column=group)


TABLE_1 = 'Table 1, "Experiment results of the homogeneous setting on the GLUE dev sets".'
PAPER = Paper(
    "fedid",
    "FedID (Ma et al., EMNLP 2023)",
    (
        *SKEWED,
        printed("homogeneous, α = 100", TABLE_1, ALIKE["100"]),
        printed("homogeneous, α = 1", TABLE_1, ALIKE["1"], *COSTS),
        printed(
            "heterogeneous, α = 1",
            'Table 2, "Experiment results of the heterogeneous setting on the GLUE dev sets".',
            UNLIKE,
        ),
        printed(
            "Table 4",
            'Table 4, "Results of model ablations on RTE, SST-2, and QQP." The paper\'s models are '
            "of several architectures there, ours are alike.",
            ABLATED,
        ),
    ),
)
