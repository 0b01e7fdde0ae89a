"""Federated learning of transformers in which nobody can look at an individual update.

The nouns below are all most programs need; each is imported when it is first used, so that
`import secure_fl` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secure_fl.algorithms.baselines.unfederated import Centralized as Centralized
    from secure_fl.algorithms.baselines.unfederated import Local as Local
    from secure_fl.algorithms.fedadam import FedAdam as FedAdam
    from secure_fl.algorithms.fedavg import FedAvg as FedAvg
    from secure_fl.algorithms.fedid import FedID as FedID
    from secure_fl.algorithms.fedkd import FedKD as FedKD
    from secure_fl.algorithms.inclusivefl import InclusiveFL as InclusiveFL
    from secure_fl.data.silo import Silo as Silo
    from secure_fl.errors import SecureFLError as SecureFLError
    from secure_fl.federation.federation import Federation as Federation
    from secure_fl.federation.tuning import tune as tune
    from secure_fl.learning.site import Site as Site
    from secure_fl.party.cohort import Cohort as Cohort
    from secure_fl.runs.result import Result as Result
    from secure_fl.settings import ModelSettings as ModelSettings
    from secure_fl.settings import ProtectionSettings as ProtectionSettings
    from secure_fl.settings import TaskSettings as TaskSettings
    from secure_fl.settings import TrainingSettings as TrainingSettings

_HOMES = {
    "Centralized": "secure_fl.algorithms.baselines.unfederated",
    "Cohort": "secure_fl.party.cohort",
    "FedAdam": "secure_fl.algorithms.fedadam",
    "FedAvg": "secure_fl.algorithms.fedavg",
    "FedID": "secure_fl.algorithms.fedid",
    "FedKD": "secure_fl.algorithms.fedkd",
    "Federation": "secure_fl.federation.federation",
    "InclusiveFL": "secure_fl.algorithms.inclusivefl",
    "Local": "secure_fl.algorithms.baselines.unfederated",
    "ModelSettings": "secure_fl.settings",
    "ProtectionSettings": "secure_fl.settings",
    "Result": "secure_fl.runs.result",
    "SecureFLError": "secure_fl.errors",
    "Silo": "secure_fl.learning.site",
    "Site": "secure_fl.learning.site",
    "TaskSettings": "secure_fl.settings",
    "TrainingSettings": "secure_fl.settings",
    "tune": "secure_fl.federation.tuning",
}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'secure_fl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
