"""A federation across hospitals: invitation, each site's decision, the run and its restarts.

Read `plan` (a coordinator's proposal), `hospital` (a hospital's process, which answers by
its own policy), `site_run` and `site_memory`, `gathering` and `coordinator_process`. Any engine can
transport the messages.
"""
