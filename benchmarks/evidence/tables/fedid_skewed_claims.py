"""What the skewed settings decide; none of it is the paper's."""

from __future__ import annotations

from benchmarks.evidence.claims import Arm, Better
from benchmarks.evidence.published import Section
from benchmarks.evidence.tables.fedid_skewed import SETTINGS, SHALLOW

ID = Arm("FedID, our default")
OTHERS = tuple(Arm(name) for name in ("Host alone", "DS-FL", "MHAT", "FedKD (Gong)"))
AHEAD = Better(
    "Not the paper's: FedID by our default is better than the host alone, DS-FL, MHAT and FedKD "
    "(Gong).",
    ID,
    OTHERS,
)
SHARES = "it then predicts as if its classes were even, too, and that is most of FedID's lead"
SOURCE = Better(
    "Not the paper's: it stays better than DS-FL that divides out shares, too.",
    ID,
    (Arm("DS-FL, own shares divided"),),
    reason=SHARES,
)
SKEWED = tuple(
    Section(
        setting.title,
        "Not the paper's: falling rates, controls beside the methods.",
        (setting.size.data,),
        claims=(AHEAD, SOURCE) if setting is SETTINGS[0] else (AHEAD,),
    )
    for setting in SETTINGS
    if setting.size is SHALLOW
)
