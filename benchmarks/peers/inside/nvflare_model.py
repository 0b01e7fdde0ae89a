"""The trained weights of the job, as the model of NVFLARE's server."""

from __future__ import annotations

import torch
from job import Job, trained

DOT = "__"  # replaces a dot, which names of parameters may not have


class Travelling(torch.nn.Module):
    """The trained weights only, without embeddings, as in every system."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in trained(Job().model()).items():
            self.register_parameter(
                name.replace(".", DOT), torch.nn.Parameter(torch.as_tensor(values))
            )
