"""Every algorithm by the name that settings files use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.centralized import Centralized
from secure_fl.algorithms.baselines.local import Local, local
from secure_fl.algorithms.fedadam import FedAdam, fedadam
from secure_fl.algorithms.fedavg import FedAvg, fedavg


@dataclass(frozen=True, slots=True)
class Entry:
    """An algorithm: its settings, its party program, and what is special about it."""

    settings: type[Algorithm]
    program: Callable[..., Coroutine[Any, Any, None]]  # (cohort, site, settings)
    pools_data: bool = False  # a yardstick that puts all records in one place
    own_labels: bool = False  # parties may have different label sets
    has_host: bool = False  # one party may be the host
    through_fit: bool = False  # trains by `Site.fit` alone, so DP-SGD covers all that it sends
    summary: str = ""


ALGORITHMS: Mapping[str, Entry] = {
    "fedavg": Entry(FedAvg, fedavg, through_fit=True, summary="mean of the parties' model updates"),
    "fedadam": Entry(
        FedAdam, fedadam, through_fit=True, summary="FedAvg with Adam as the server's step"
    ),
    "local": Entry(
        Local,
        local,
        own_labels=True,
        through_fit=True,
        summary="every party for itself; nothing is sent",
    ),
    "centralized": Entry(
        Centralized,
        local,
        pools_data=True,
        through_fit=True,
        summary="all records in one place; a yardstick",
    ),
}
