"""Names of values in sums and shares, by which recordings are read.

They are sent and recorded. The programs that build the values and the readers of recordings import
them from here, so a reader never looks for a name that no program uses.
"""

from __future__ import annotations

RECORDS = "records"  # the number of records behind the values
PARTIES = "parties"  # the number of parties behind the values
WEIGHT = "weight"  # the weight of predictions, or of a tier ("small/weight")
OWNERS = "owners"  # the weight of all owners of a region of the model ("owners#small")
WEIGHTS = (RECORDS, PARTIES, WEIGHT, OWNERS)

SCALES = "|"  # prefix of the names of sums of unknown scales
PART = "|"  # separates a matrix's name from one of its parts
SKETCH = f"{PART}Y"  # suffix of a matrix's own sketch Y = G·Ω
PROJECTED = f"{PART}B"  # suffix of a projection B = Uᵀ·G
RANK = f"{PART}rank"  # suffix of the number of columns that a party proposes
WHOLE = "whole"  # the part of a matrix that is shared without factors
