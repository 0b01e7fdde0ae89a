"""Whole rounds and whole runs: what protection adds, and where the time goes."""
