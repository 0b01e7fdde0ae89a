"""FedID: interactive distillation on public records (Ma et al., EMNLP 2023)."""

from secure_fl.algorithms.fedid.settings import FedID

__all__ = ["FedID"]
