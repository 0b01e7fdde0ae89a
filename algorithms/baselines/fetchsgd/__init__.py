"""FetchSGD: `algorithm` is the paper's; `sketch` is the table that its updates travel in."""

from secure_fl.algorithms.baselines.fetchsgd.algorithm import FetchSGD, fetchsgd

__all__ = ["FetchSGD", "fetchsgd"]
