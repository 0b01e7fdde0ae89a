"""Measurements of the project's claims: each benchmark prints tables and writes JSON."""
