"""Every algorithm by the name that settings files use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from inspect import isabstract
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.centralized import Centralized
from secure_fl.algorithms.baselines.dsfl import DSFL, dsfl
from secure_fl.algorithms.baselines.feddf import FedDF, feddf
from secure_fl.algorithms.baselines.feddropout import FedDropout, feddropout
from secure_fl.algorithms.baselines.feded import FedED, feded
from secure_fl.algorithms.baselines.fetchsgd import FetchSGD, fetchsgd
from secure_fl.algorithms.baselines.gong import Gong, gong
from secure_fl.algorithms.baselines.heterofl import HeteroFL, heterofl
from secure_fl.algorithms.baselines.local import Local, local
from secure_fl.algorithms.baselines.mhat import MHAT, mhat
from secure_fl.algorithms.baselines.one_size import (
    AllLarge,
    AllSmall,
    ExclusiveFL,
    exclusivefl,
    one_size,
)
from secure_fl.algorithms.fedadam import FedAdam, fedadam
from secure_fl.algorithms.fedavg import FedAvg, fedavg
from secure_fl.algorithms.fedid import FedID, fedid
from secure_fl.algorithms.fedkd import FedKD, fedkd
from secure_fl.algorithms.inclusivefl import InclusiveFL, inclusivefl
from secure_fl.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Entry:
    """An algorithm: its settings, its party program, and what is special about it."""

    settings: type[Algorithm]
    program: Callable[..., Coroutine[Any, Any, None]]  # (cohort, site, settings)
    pools_data: bool = False  # a yardstick that puts all records in one place
    own_labels: bool = False  # parties may have different label sets: heads stay at home
    sums_nothing: bool = False  # nothing is ever summed
    partial_sums: bool = False  # there are sums over some parties only
    has_host: bool = False  # one member is the host, and all hold public records
    opens_predictions: bool = False  # what the host opens are predictions, which can carry noise
    dp_covers_all: bool = False  # trains by `Site.fit` alone, so DP-SGD covers all that it sends
    summary: str = ""

    def __post_init__(self) -> None:
        if isabstract(self.settings):
            lacking = ", ".join(sorted(self.settings.__abstractmethods__))
            raise SettingsError(
                f"{self.settings.__name__} does not say what it asks of a site: {lacking}",
                fix="write these methods, as `algorithms.fedavg` does: a site's limits are held "
                "against what they return",
            )


ALGORITHMS: Mapping[str, Entry] = {
    "fedavg": Entry(
        FedAvg,
        fedavg,
        own_labels=True,
        dp_covers_all=True,
        summary="mean of the parties' model updates",
    ),
    "fedadam": Entry(
        FedAdam,
        fedadam,
        own_labels=True,
        dp_covers_all=True,
        summary="FedAvg with Adam as the server's step",
    ),
    "feddropout": Entry(
        FedDropout,
        feddropout,
        dp_covers_all=True,
        summary="a random sub-model is trained and summed in each round",
    ),
    "fetchsgd": Entry(
        FetchSGD,
        fetchsgd,
        dp_covers_all=True,
        summary="count sketches of the updates; momentum and error inside the sketch",
    ),
    "fedkd": Entry(
        FedKD,
        fedkd,
        own_labels=True,
        dp_covers_all=True,
        summary="teachers stay at home, a small student travels as sealed low-rank factors",
    ),
    "fedid": Entry(
        FedID,
        fedid,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        summary="predictions on public records, and a host that says which of them helped",
    ),
    "dsfl": Entry(
        DSFL,
        dsfl,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        summary="mean predictions, sharpened, teach the host and the parties",
    ),
    "mhat": Entry(
        MHAT,
        mhat,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        summary="votes teach the host's model, its predictions the parties",
    ),
    "gong": Entry(
        Gong,
        gong,
        has_host=True,
        dp_covers_all=True,
        summary="one exchange: the host learns the mean of all logits (FedKD by Gong et al.)",
    ),
    "feded": Entry(
        FedED,
        feded,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        summary="predictions go up, the host's model comes down",
    ),
    "feddf": Entry(
        FedDF,
        feddf,
        has_host=True,
        dp_covers_all=True,
        summary="FedAvg, then the host distils the mean of predictions into the mean",
    ),
    "heterofl": Entry(
        HeteroFL,
        heterofl,
        own_labels=True,
        partial_sums=True,
        summary="hospitals that can hold less train narrower slices of the model",
    ),
    "inclusivefl": Entry(
        InclusiveFL,
        inclusivefl,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        summary="models of different depth share their lower layers, and learn from larger ones",
    ),
    "alllarge": Entry(
        AllLarge,
        one_size,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        summary="every party trains the largest tier's model",
    ),
    "allsmall": Entry(
        AllSmall,
        one_size,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        summary="every party trains the smallest tier's model",
    ),
    "exclusivefl": Entry(
        ExclusiveFL,
        exclusivefl,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        summary="only the parties of the largest tier take part",
    ),
    "local": Entry(
        Local,
        local,
        own_labels=True,
        sums_nothing=True,
        dp_covers_all=True,
        summary="every party for itself; nothing is sent",
    ),
    "centralized": Entry(
        Centralized,
        local,
        pools_data=True,
        sums_nothing=True,
        dp_covers_all=True,
        summary="all records in one place; a yardstick",
    ),
}
