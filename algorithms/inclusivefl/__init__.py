"""InclusiveFL: read `algorithm` first, then `participants` (lines 5-7) and `mixing`.

Lines 14-29 exist twice: `TierSums` follows the paper, `SealedMixing` mixes under encryption.
"""

from secure_fl.algorithms.inclusivefl.settings import InclusiveFL

__all__ = ["InclusiveFL"]
