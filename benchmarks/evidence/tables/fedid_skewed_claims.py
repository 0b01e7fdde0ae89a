"""What the skewed settings decide; none of it is the paper's."""

from __future__ import annotations

from benchmarks.evidence.claims import Arm, Better
from benchmarks.evidence.published import Section
from benchmarks.evidence.tables.fedid_skewed import SETTINGS, SHALLOW

ID = Arm("FedID, our default")
OTHERS = tuple(Arm(name) for name in ("Host alone", "DS-FL", "MHAT", "FedKD (Gong)"))
HERE = tuple(setting.title for setting in SETTINGS if setting.size is SHALLOW)
OVER = tuple(
    Better(
        f"Not the paper's: over the {len(HERE)} settings' mean, FedID by our default is better "
        f"than {other.method}.",
        ID,
        (other,),
        groups=HERE,
    )
    for other in OTHERS
)
SKEWED = tuple(
    Section(
        setting.title,
        "Not the paper's: falling rates, controls beside the methods.",
        (setting.size.data,),
        claims=OVER if setting is SETTINGS[0] else (),
    )
    for setting in SETTINGS
)
