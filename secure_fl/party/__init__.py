"""What stands behind the door `cohort.Cohort`, one idea to a file.

Read `exchange` (a message and its answer), `members` (who takes part), then what a party can ask
for: `groups` and `summing` (sums), `reserved` (their noise), `relays` (what parties tell each
other), `boundaries` and `handover` (what happens between rounds, and who joins late).
"""
