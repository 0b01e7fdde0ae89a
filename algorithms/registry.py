"""Every algorithm by the name that settings files use: our own, and those of other packages."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint

from secure_fl.algorithms.base import Algorithm, Entry
from secure_fl.algorithms.baselines.dsfl import DSFL, dsfl
from secure_fl.algorithms.baselines.feddf import FedDF, feddf
from secure_fl.algorithms.baselines.feddropout import FedDropout, feddropout
from secure_fl.algorithms.baselines.feded import FedED, feded
from secure_fl.algorithms.baselines.fetchsgd import FetchSGD, fetchsgd
from secure_fl.algorithms.baselines.gong import Gong, gong
from secure_fl.algorithms.baselines.heterofl import HeteroFL, heterofl
from secure_fl.algorithms.baselines.mhat import MHAT, mhat
from secure_fl.algorithms.baselines.one_size import (
    AllLarge,
    AllSmall,
    ExclusiveFL,
    exclusivefl,
    one_size,
)
from secure_fl.algorithms.baselines.unfederated import Centralized, Local, local
from secure_fl.algorithms.elsewhere import GROUP, installed, load
from secure_fl.algorithms.fedadam import FedAdam, fedadam
from secure_fl.algorithms.fedavg import FedAvg, fedavg
from secure_fl.algorithms.fedid import FedID, fedid
from secure_fl.algorithms.fedkd import FedKD, fedkd
from secure_fl.algorithms.inclusivefl import InclusiveFL, inclusivefl
from secure_fl.errors import SettingsError
from secure_fl.features import load as load_features

__all__ = ["ALGORITHMS", "BUILT_IN", "Entry", "Registry", "entry_of"]

ADAPTERS = ("lora", "ffa", "dora")  # what is averaged, or taught, as any other weights are

BUILT_IN: Mapping[str, Entry] = {
    "fedavg": Entry(
        FedAvg,
        fedavg,
        own_labels=True,
        dp_covers_all=True,
        guarded="",
        adapters=(*ADAPTERS, "exact"),
        summary="mean of the parties' model updates",
    ),
    "fedadam": Entry(
        FedAdam,
        fedadam,
        own_labels=True,
        dp_covers_all=True,
        guarded="",
        adapters=ADAPTERS,
        summary="FedAvg with Adam as the server's step",
    ),
    "feddropout": Entry(
        FedDropout,
        feddropout,
        dp_covers_all=True,
        guarded="",
        summary="a random sub-model is trained and summed in each round",
    ),
    "fetchsgd": Entry(
        FetchSGD,
        fetchsgd,
        dp_covers_all=True,
        guarded="",
        summary="count sketches of the updates; momentum and error inside the sketch",
    ),
    "fedkd": Entry(
        FedKD,
        fedkd,
        own_labels=True,
        dp_covers_all=True,
        guarded="student",
        adapters=ADAPTERS,
        summary="teachers stay at home, a small student travels as sealed low-rank factors",
    ),
    "fedid": Entry(
        FedID,
        fedid,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="predictions on public records, and a host that says which of them helped",
    ),
    "dsfl": Entry(
        DSFL,
        dsfl,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="mean predictions, sharpened, teach the host and the parties",
    ),
    "mhat": Entry(
        MHAT,
        mhat,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="votes teach the host's model, its predictions the parties",
    ),
    "gong": Entry(
        Gong,
        gong,
        has_host=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="one exchange: the host learns the mean of all logits (FedKD by Gong et al.)",
    ),
    "feded": Entry(
        FedED,
        feded,
        has_host=True,
        opens_predictions=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="predictions go up, the host's model comes down",
    ),
    "feddf": Entry(
        FedDF,
        feddf,
        has_host=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
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
        guarded="",
        adapters=ADAPTERS,
        summary="models of different depth share their lower layers, and learn from larger ones",
    ),
    "alllarge": Entry(
        AllLarge,
        one_size,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        guarded="",
        adapters=ADAPTERS,
        summary="every party trains the largest tier's model",
    ),
    "allsmall": Entry(
        AllSmall,
        one_size,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        guarded="",
        adapters=ADAPTERS,
        summary="every party trains the smallest tier's model",
    ),
    "exclusivefl": Entry(
        ExclusiveFL,
        exclusivefl,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="only the parties of the largest tier take part",
    ),
    **{entry.name: entry for entry in load_features("algorithm").values()},
    "local": Entry(
        Local,
        local,
        own_labels=True,
        sums_nothing=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="every party for itself; nothing is sent",
    ),
    "centralized": Entry(
        Centralized,
        local,
        pools_data=True,
        sums_nothing=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="all records in one place; a yardstick",
    ),
}


class Registry(UserDict[str, Entry]):
    """The built-in algorithms, and those that other packages register, loaded on first use."""

    @cached_property
    def elsewhere(self) -> dict[str, EntryPoint]:
        """The entry points of other packages, as they were when first asked for."""
        return installed(frozenset(BUILT_IN))

    def __getitem__(self, name: str) -> Entry:
        if name in self.elsewhere and name not in self.data:
            self.data[name] = load(self.elsewhere[name])
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.elsewhere or name in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data | self.elsewhere)

    def __len__(self) -> int:
        return len(self.data | self.elsewhere)


ALGORITHMS = Registry(BUILT_IN)


def entry_of(algorithm: Algorithm) -> Entry:
    """The entry of these settings: the registry's, or the one that their class brings along."""
    name, cls = algorithm.name, type(algorithm)
    own = cls.entry()
    if name not in ALGORITHMS:
        if own is not None:
            return own
        raise SettingsError(
            f"there is no algorithm {name!r}: {cls.__name__} is not registered",
            fix=f"let {cls.__name__}.entry() return its Entry, which is enough in a program; or "
            f"register the Entry by an entry point of the group {GROUP}, which settings files and "
            "commands need too",
            field="algorithm.name",
        )
    if own is not None and own.settings is not ALGORITHMS[name].settings:
        raise SettingsError(
            f"another algorithm is registered as {name!r}, and {cls.__name__} brings its own entry",
            fix="give it another name",
            field="algorithm.name",
        )
    return ALGORITHMS[name]
