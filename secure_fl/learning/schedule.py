"""How the learning rate goes over a run: a function of how far the run is, so nothing is kept.

Rounds are the measure, and steps within them: whoever resumes, joins late or sits out a round has
the rate that all others have. BERT's own: linear warm-up, then linear decay to 0 (arXiv 1810.04805,
A.2).
"""

from __future__ import annotations

from torch.optim import Optimizer

from secure_fl.party.rounds import Round
from secure_fl.settings import TrainingSettings

WARMUP = 0.1  # share of a run with a linear schedule
ALONE = Round(1, 1)  # where training is all there is: one stretch, from the first rate to the last


def factor(settings: TrainingSettings, progress: float) -> float:
    """By what the learning rate is multiplied at this share of the run, in (0, 1)."""
    linear = settings.schedule == "linear"
    warmup = settings.warmup if settings.warmup is not None else WARMUP * linear
    if progress < warmup:
        return progress / warmup
    return (1 - progress) / (1 - warmup) if linear else 1.0


def pace(optimizer: Optimizer, settings: TrainingSettings, progress: float) -> None:
    """Give every group of weights its learning rate at this share of the run."""
    scale = factor(settings, progress)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * scale
