"""A round of DP-SGD that is repeated sends again what it sent: nothing is spent a second time.

What DP-SGD came to may be released as often as anybody likes: whoever has it learns nothing by
seeing it again. So it is on the disk before it leaves, and a session that begins the same training
from the same weights takes it from there. Over whom a sum of it is opened is a matter of
`party.opened_sums`, as for inputs without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import nn

from secure_fl.learning.anatomy import trainable

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.training_account import DpAccount, SavedTrainings
    from secure_fl.learning.training import Optimizer


@dataclass(frozen=True, slots=True)
class Training:
    """One training by DP-SGD: from which weights, in which round, and the which one of it."""

    trainings: SavedTrainings
    privacy: DpAccount
    round: int
    key: str

    @classmethod
    def of(cls, privacy: DpAccount, model: nn.Module, passes: int, round: int) -> Training | None:
        """Know a training by all that it begins with; None: nothing outlives this process."""
        if privacy.trainings is None:
            return None
        found = sha256(f"{privacy.trained_in(round)} {passes}\n".encode())
        for name, weight in trainable(model).items():
            found.update(f"{name} {tuple(weight.shape)}\n".encode())
            found.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return cls(privacy.trainings, privacy, round, found.hexdigest()[:32])

    @torch.no_grad()
    def taken(self, model: nn.Module, optimizer: Optimizer | None, passes: int) -> bool:
        """Whether a session before came to its end; then the model is as that left it."""
        state = self.trainings.find(self.round, self.key)
        if state is None:
            return False
        self.privacy.spent_before(state["account"], passes)
        for name, weight in trainable(model).items():
            weight.copy_(state["weights"][name])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        return True

    def keep(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Have it on the disk before anything of it leaves; `optimizer`: one that lives on."""
        weights = {name: weight.detach() for name, weight in trainable(model).items()}
        state = {"weights": weights, "account": self.privacy.state_dict()}
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        self.trainings.keep(self.round, self.key, state)
