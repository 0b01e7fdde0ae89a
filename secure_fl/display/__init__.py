"""Output for people: tables, the live view of a run, and its page."""
