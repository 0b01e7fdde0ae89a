"""What each role saw of a run, recorded for audits.

`wire` is the coordinator's view: every frame, as the engine carried it. `notes` is a party's: what
it put into each sum, what was opened to it, and the keys it could open other things with. Both are
recorded by wrapping what already stands at the border (the engine, and the party's half of sums),
so a program cannot tell whether it is watched. `opening` turns views into readable values.

A recorded run holds everything that its parties sent, and the keys of its cohort: it is for
audits, on one machine, over records that lie there anyway, and as secret as they are.
"""
