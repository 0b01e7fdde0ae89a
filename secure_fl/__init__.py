"""Federated learning of transformers in which nobody can look at an individual update.

The nouns below are all most programs need; each is imported when it is first used, so that
`import secure_fl` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from secure_fl.features import places
from secure_fl.version import VERSION

if TYPE_CHECKING:
    from secure_fl.algorithms.baselines.reference_points import AllLarge as AllLarge
    from secure_fl.algorithms.baselines.reference_points import AllSmall as AllSmall
    from secure_fl.algorithms.baselines.reference_points import Centralized as Centralized
    from secure_fl.algorithms.baselines.reference_points import ExclusiveFL as ExclusiveFL
    from secure_fl.algorithms.baselines.reference_points import Local as Local
    from secure_fl.algorithms.baselines.settings import DSFL as DSFL
    from secure_fl.algorithms.baselines.settings import MHAT as MHAT
    from secure_fl.algorithms.baselines.settings import FedDF as FedDF
    from secure_fl.algorithms.baselines.settings import FedDropout as FedDropout
    from secure_fl.algorithms.baselines.settings import FedED as FedED
    from secure_fl.algorithms.baselines.settings import FetchSGD as FetchSGD
    from secure_fl.algorithms.baselines.settings import Gong as Gong
    from secure_fl.algorithms.baselines.settings import HeteroFL as HeteroFL
    from secure_fl.algorithms.fedid import FedID as FedID
    from secure_fl.algorithms.fedkd import FedKD as FedKD
    from secure_fl.algorithms.inclusivefl import InclusiveFL as InclusiveFL
    from secure_fl.algorithms.settings import FedAdam as FedAdam
    from secure_fl.algorithms.settings import FedAvg as FedAvg
    from secure_fl.algorithms.settings import FedAvgM as FedAvgM
    from secure_fl.algorithms.settings import FedExP as FedExP
    from secure_fl.algorithms.settings import FedProx as FedProx
    from secure_fl.algorithms.settings import FedSGD as FedSGD
    from secure_fl.algorithms.settings import FedYogi as FedYogi
    from secure_fl.algorithms.settings import Scaffold as Scaffold
    from secure_fl.data.examples import Impression as Impression
    from secure_fl.data.examples import Tagged as Tagged
    from secure_fl.data.examples import Text as Text
    from secure_fl.data.rows import Columns as Columns
    from secure_fl.data.silo import Silo as Silo
    from secure_fl.errors import SecureFLError as SecureFLError
    from secure_fl.features.batched_simulation.trainer import BatchedTraining as BatchedTraining
    from secure_fl.features.evaluation.evaluation import Evaluation as Evaluation
    from secure_fl.features.evaluation.evaluation import evaluate as evaluate
    from secure_fl.features.scripts.algorithm import Script as Script
    from secure_fl.features.scripts.audit import audit_script as audit_script
    from secure_fl.features.scripts.cohort import ScriptCohort as ScriptCohort
    from secure_fl.features.scripts.hf import FederatedCallback as FederatedCallback
    from secure_fl.features.scripts.joining import join as join
    from secure_fl.features.scripts.simulation import simulate as simulate
    from secure_fl.features.tuning.tuning import tune as tune
    from secure_fl.federation.federation import Federation as Federation
    from secure_fl.federation.result import Result as Result
    from secure_fl.learning.site import Site as Site
    from secure_fl.learning.tasks.task import Task as Task
    from secure_fl.party.cohort import Cohort as Cohort
    from secure_fl.settings import AdapterSettings as AdapterSettings
    from secure_fl.settings import DPSettings as DPSettings
    from secure_fl.settings import ModelSettings as ModelSettings
    from secure_fl.settings import NoiseSettings as NoiseSettings
    from secure_fl.settings import ProtectionSettings as ProtectionSettings
    from secure_fl.settings import TaskSettings as TaskSettings
    from secure_fl.settings import TrainingSettings as TrainingSettings

_NAMES = {  # by module
    "secure_fl.algorithms.baselines.reference_points": (
        "AllLarge AllSmall Centralized ExclusiveFL Local"
    ),
    "secure_fl.algorithms.baselines.settings": (
        "DSFL FedDF FedDropout FedED FetchSGD Gong HeteroFL MHAT"
    ),
    "secure_fl.algorithms.fedid": "FedID",
    "secure_fl.algorithms.fedkd": "FedKD",
    "secure_fl.algorithms.inclusivefl": "InclusiveFL",
    "secure_fl.algorithms.settings": (
        "FedAdam FedAvg FedAvgM FedExP FedProx FedSGD FedYogi Scaffold"
    ),
    "secure_fl.data.examples": "Impression Tagged Text",
    "secure_fl.data.rows": "Columns",
    "secure_fl.data.silo": "Silo",
    "secure_fl.errors": "SecureFLError",
    "secure_fl.federation.federation": "Federation",
    "secure_fl.federation.result": "Result",
    "secure_fl.learning.site": "Site",
    "secure_fl.learning.tasks.task": "Task",
    "secure_fl.party.cohort": "Cohort",
    "secure_fl.settings": (
        "AdapterSettings DPSettings ModelSettings NoiseSettings ProtectionSettings "
        "TaskSettings TrainingSettings"
    ),
}
_HOMES = {
    **{name: module for module, names in _NAMES.items() for name in names.split()},
    **{name: place.partition(":")[0] for name, place in places("exports").items()},
}

__all__ = sorted(_HOMES)
__version__ = VERSION


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'secure_fl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
