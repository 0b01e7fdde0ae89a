"""FedID: read `algorithm` first, then `party_step` and `feedback` (the host's step)."""

from secure_fl.algorithms.fedid.settings import FedID

__all__ = ["FedID"]
