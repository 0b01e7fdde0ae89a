"""The views of all roles of a run, recorded for audits.

Recorders wrap what is already at the border (the engine, and the party's half of sums), so a
program cannot detect them. A recorded run contains everything that its parties sent, and the keys
of its cohort: it is for audits on one machine that has the records anyway, and as secret as these.
"""
