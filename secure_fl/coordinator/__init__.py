"""The blind sum machine: it relays, counts and adds, and imports nothing that could open a sum."""
