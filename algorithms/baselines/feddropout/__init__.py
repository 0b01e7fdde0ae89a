"""Federated dropout: `algorithm` is the paper's; `submodel` cuts the model that a round trains."""

from secure_fl.algorithms.baselines.feddropout.algorithm import FedDropout, feddropout

__all__ = ["FedDropout", "feddropout"]
