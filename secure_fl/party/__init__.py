"""A party's half of a run; programs use it through `cohort.Cohort`.

Begin with `summing`, which describes a sum from a party's values to the opened total. `exchange`
and `session` turn the requests of a program into frames and answers. `members` holds the members of
a run, `relays` messages between parties, `noise_account` the noised sums that a party reserved.
`round_loop`, `joining` and `opened_sums` act between rounds: checkpoints, late joiners, and the
sums that may be repeated after a crash. `hooks` is the interface of optional features.
"""
