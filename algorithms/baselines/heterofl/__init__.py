"""HeteroFL: `algorithm` is the paper's; models are cut to `widths`, their sums to `regions`."""

from secure_fl.algorithms.baselines.heterofl.algorithm import HeteroFL, heterofl

__all__ = ["HeteroFL", "heterofl"]
