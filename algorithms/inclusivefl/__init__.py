"""InclusiveFL: read `algorithm` first, then `participants` (lines 5-7) and `mixing`.

Lines 14-29 exist twice: `tier_sums` follows the paper, `sealed_mixing` mixes under encryption.
"""

from secure_fl.algorithms.inclusivefl.settings import InclusiveFL

__all__ = ["InclusiveFL"]
