"""Batched simulation: the sites of one process train as one batch."""
