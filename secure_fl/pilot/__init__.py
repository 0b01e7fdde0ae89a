"""A federation across hospitals: who invites, who decides, and how a run begins again.

Read `plan` (what a coordinator proposes), `lobby` (how a run gets its id), `hospital` (a hospital's
end, which answers by its own policy), `site` (what it brings) and its `site_run`; `gathering` and
`lead` (the coordinator's end). Any engine can carry it.
"""
