"""Audits of the code that a run used: its noise, its clipping, its masks, its refusals."""
