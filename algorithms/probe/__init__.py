"""Probe: read `algorithm` first, then `fits` (models from sums) and `features`."""

from secure_fl.algorithms.settings import Probe

__all__ = ["Probe"]
