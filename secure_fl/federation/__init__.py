"""A federation in one process: who sits where, by which rules, and what comes out."""
