"""A party's half of a run; programs use it through `cohort.Cohort`.

Begin with `summing`, which describes a sum from a party's values to the opened total. `session`
turns the requests of a program into frames and answers. `round_loop` acts between rounds:
checkpoints and late joiners. `hooks` is the interface of optional features.
"""
