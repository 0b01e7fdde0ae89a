"""Tests of the installed code that a run used: its noise, clipping, masks and refusals."""
