"""FedKD: read `algorithm` first, then `mutual_distillation` (losses) and `factor_exchange`."""

from secure_fl.algorithms.fedkd.settings import FedKD

__all__ = ["FedKD"]
