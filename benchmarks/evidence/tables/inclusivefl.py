"""InclusiveFL (Liu et al., KDD 2022): medical NER across hospitals, and proportions of tiers.

A sum that fewer than `min_cohort` parties would form is refused. Rows that take `min_cohort = 1` on
purpose, to show the paper's own sums by tier, are marked wherever they are printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import CONSTANT, Budget, Table, audited
from secure_fl.settings import ProtectionSettings

DEPTHS = {"weak": 2, "medium": 4, "strong": 6}  # of a model of six layers
TRIO = {"ncbi_disease": "weak", "ade_ner": "medium", "psytar_ner": "strong"}
PROPORTIONS = {"1:1:1": (1, 1, 1), "1:2:7": (1, 2, 7), "7:2:1": (7, 2, 1)}  # weak:medium:strong
OWN: dict[str, Any] = {"sets": tuple(TRIO), "parties": 3, "tiers": tuple(TRIO.values())}
SIZES: Mapping[Budget, Mapping[str, Spread]] = {
    "cpu": {
        "ner": Spread(**OWN, train=240, dev=60, test=200),
        "sst2": Spread(("sst2",), 10, train=600, dev=60, test=300),
    },
    "gpu": {
        "ner": Spread(**OWN),
        "sst2": Spread(("sst2",), 30, train=9000, dev=1000),  # three or more in every tier
    },
}
ROUNDS: Mapping[Budget, int] = {"cpu": 6, "gpu": 50}
NER_BETA, BETA = 0.5, 0.2  # the paper's, for NER and for GLUE
SWEEP = (0.2, 0.8)  # other β
ONCE = (  # with the first seed only, where there are two cores
    "HeteroFL, sums by tier",
    *(f"InclusiveFL, β = {beta}" for beta in SWEEP),
)
ATTACKED = ("AllLarge", "HeteroFL")
LINEAR = {"server_optimizer": "linear"}  # HeteroFL has no other server: so all are compared alike
OPEN = "min_cohort = 1 on purpose: some sums are over one hospital, and ARE its update"
CLEAR = "sums in the clear: on two cores, sealing ten updates of this size outweighs the training"

Method = Mapping[str, Any]


def tiered(name: str, **settings: Any) -> Method:
    """A method of tiers, all under the same server."""
    before = {"server_learning_rate": 1e-2}  # the default when these cells were run
    return {"algorithm": {"name": name, "tiers": DEPTHS} | before | LINEAR | settings}


def opened(method: Method, spread: Spread) -> Method:
    """The method as it may run: sums over fewer parties than allowed are asked for, and marked."""
    one_size = method["algorithm"]["name"] in ("allsmall", "alllarge", "local")
    if one_size or method["algorithm"].get("mix") == "wide":
        return method
    members = Counter(t for t in spread.tiers if t != spread.without)
    if method["algorithm"]["name"] == "exclusivefl":
        members = Counter({"strong": members["strong"]})
    few = min(members.values()) < ProtectionSettings().min_cohort
    return {**method, "protection": {"min_cohort": 1}, "mark": OPEN} if few else method


def in_the_clear(method: Method) -> Method:
    """The method without protection, marked as such."""
    protection = {**method.get("protection", {}), "mode": "none"}
    marks = [mark for mark in (method.get("mark"), CLEAR) if mark]
    return {**method, "protection": protection, "mark": "; ".join(marks)}


LOCAL: Method = {"algorithm": {"name": "local"}, "local": True}
HETERO: Method = {"algorithm": {"name": "heterofl", "tiers": DEPTHS}}


def ner_methods() -> dict[str, Method]:
    """One hospital in each tier, so its sums are over one, and marked; HeteroFL can do without."""
    wide = {"algorithm": HETERO["algorithm"] | {"mix": "wide"}}
    swept = {
        f"InclusiveFL, β = {beta}": tiered("inclusivefl", beta=beta, momentum="unmixed")
        for beta in SWEEP
    }
    return {
        "Local": LOCAL,
        "AllSmall": tiered("allsmall"),
        "HeteroFL": wide,
        "AllLarge": tiered("alllarge"),
        "InclusiveFL": tiered("inclusivefl", beta=NER_BETA, momentum="unmixed"),
        "InclusiveFL without momentum": tiered("inclusivefl", momentum="off"),
        "HeteroFL, sums by tier": HETERO,
        **swept,
    }


def class_methods() -> dict[str, Method]:
    """The methods of the paper's Table 2."""
    return {
        "AllSmall": tiered("allsmall"),
        "ExclusiveFL": tiered("exclusivefl"),
        "HeteroFL": HETERO,
        "AllLarge": tiered("alllarge"),
        "InclusiveFL": tiered("inclusivefl", beta=BETA, momentum="unmixed"),
        "InclusiveFL without momentum": tiered("inclusivefl", momentum="off"),
    }


def tiers(shares: tuple[int, ...], parties: int) -> tuple[str, ...]:
    """Tiers of parties in these proportions; what is left over goes to the strong."""
    counts = [parties * share // sum(shares) for share in shares]
    counts[-1] += parties - sum(counts)
    return tuple(tier for tier, n in zip(DEPTHS, counts, strict=True) for _ in range(n))


def cells(budget: Budget, seed: int) -> Iterator[Cell]:
    """NER with one corpus for each hospital, and classification in three proportions."""
    spread = SIZES[budget]["ner"]
    for method, settings in ner_methods().items():
        if budget == "cpu" and seed and method in ONCE:
            continue
        settings = opened(settings, spread)
        yield _cell("NER across hospitals", "ner trio", method, settings, spread, budget, seed)
        if method in ATTACKED and not seed:
            yield audited(_cell("Leakage", "ner trio", method, settings, spread, budget, seed))
    alike = SIZES[budget]["sst2"]
    for proportion, shares in PROPORTIONS.items():
        spread = replace(alike, tiers=tiers(shares, alike.parties))
        group = f"weak:medium:strong {proportion}"
        for method, settings in class_methods().items():
            yield _classified(group, method, settings, spread, budget, seed)
    spread = replace(alike, tiers=tiers(PROPORTIONS["1:1:1"], alike.parties))
    for tier in DEPTHS:
        less = replace(spread, without=tier)
        name, settings = f"InclusiveFL without the {tier}", class_methods()["InclusiveFL"]
        yield _classified("weak:medium:strong 1:1:1", name, settings, less, budget, seed)


def _classified(
    group: str, method: str, settings: Method, spread: Spread, budget: Budget, seed: int
) -> Cell:
    settings = opened(settings, spread)
    if budget == "cpu" and not settings.get("local"):
        settings = in_the_clear(settings)
    if settings["algorithm"]["name"] in ("allsmall", "alllarge"):
        spread = replace(spread, tiers=())  # one size: the same run for all proportions
    return _cell(group, "sst2", method, settings, spread, budget, seed)


def _cell(
    group: str, data: str, method: str, settings: Method, spread: Spread, budget: Budget, seed: int
) -> Cell:
    return Cell(
        data,
        method,
        seed,
        spread,
        settings["algorithm"] | {"rounds": ROUNDS[budget]},
        {"pooling": "cls"} | settings.get("model", {}),
        CONSTANT | {"learning_rate": 5e-4, "batch_size": 16, "precision": "bfloat16"},
        settings.get("protection", {}),
        48 if budget == "cpu" else 128,
        group,
        settings.get("mark", ""),
        tuple(DEPTHS[t] for t in spread.tiers) if settings.get("local") else (),
    )


TABLE = Table("inclusivefl", "InclusiveFL on real text", cells, reference="AllLarge")
