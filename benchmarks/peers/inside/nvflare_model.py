"""The weights of the job that travel, as the model that NVFLARE's server keeps."""

from __future__ import annotations

import torch
from job import Job, trained

DOT = "__"  # in place of a dot, which a parameter's name may not have


class Travelling(torch.nn.Module):
    """The trained weights alone: embeddings stay where they are, as in every other system."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in trained(Job().model()).items():
            self.register_parameter(
                name.replace(".", DOT), torch.nn.Parameter(torch.as_tensor(values))
            )
