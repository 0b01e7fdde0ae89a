"""The views of all roles of a run, recorded for audits.

`coordinator_view` records every frame as the engine carried it. `party_view` records what a party
put into each sum, what it opened, and the keys it could open other things with. Both wrap what is
already at the border (the engine, and the party's half of sums), so a program cannot detect that it
is recorded. `opening` and `readings` turn views into readable values.

A recorded run contains everything that its parties sent, and the keys of its cohort. It is for
audits on one machine that has the records anyway, and as secret as these.
"""
