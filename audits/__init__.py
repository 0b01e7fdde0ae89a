"""Attacks on what each role really saw, and the report."""
