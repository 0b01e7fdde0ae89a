"""A party's half of a run: what stands behind the door `cohort.Cohort`, one idea to a file.

Begin with `summing`, which tells the whole story of a sum. `session` turns what a program asks for
into frames, `cohort` knows who takes part, `groups` who contributes what to a partial sum,
`noise_account` what noise was reserved, `relays` what parties tell each other; `rounds`,
`boundaries`, `joining` and `opened_sums` are about what is between rounds: checkpoints, who joins
late, and what may be repeated after a crash.
"""
