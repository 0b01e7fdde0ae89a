"""A round on a hospital's own records, at this hospital alone: nothing is sent, nothing is kept."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.data.partition import iid
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.pilot.plan import spec_of
from secure_fl.policy.rules import Plan

PARTIES = 3


def can_rehearse(plan: Plan) -> bool:
    """Whether one site's records are enough: not where a host or other tiers are needed."""
    entry = ALGORITHMS[plan.algorithm.name]
    return not entry.has_host and not entry.partial_sums


def rehearse(plan: Plan, silo: Silo, folder: Path) -> float:
    """Train one round of the plan on parts of these records; return its seconds.

    `folder`: where things lie meanwhile, on the site's own disk. Privacy is spent in a ledger that
    goes with it: nothing of what was learned outlives the rehearsal.
    """
    parts = iid(silo.train, PARTIES, np.random.default_rng(0))
    silos = [
        Silo(f"part-{n}", part, silo.dev, silo.test, public=silo.public)
        for n, part in enumerate(parts, 1)
    ]
    with TemporaryDirectory(dir=folder, prefix=".rehearsal-") as place:
        spec = spec_of(plan, Path(place) / "ledger")
        short = spec.algorithm.model_copy(update={"rounds": 1})
        federation = Federation.of_spec(
            replace(spec, algorithm=short), silos, Path(place) / "run", progress=False
        )
        started = time.perf_counter()
        federation.run()
        return time.perf_counter() - started
