"""The parts of InclusiveFL; `algorithms.inclusivefl` puts them together as Algorithm 1 does.

Read `settings` (which layers which tiers share), `turn` (lines 5-7: who trains in a round),
`mixing` (what one round between training and the next model is), `server` (lines 15-23), then the
two ways of lines 14-29: `tier_sums` as printed, `sealed_mixing` under encryption.
"""
