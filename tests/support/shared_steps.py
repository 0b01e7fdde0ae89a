"""Hospitals that make steps with shared noise: accounts on disk, and gradients at their bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secure_fl.crypto.privacy.ledger import events_of, load_chain
from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.dp.noised_steps import NoisedSteps
from secure_fl.learning.dp.scope import open_ledger, sampling_units
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.party.cohort import Cohort
from secure_fl.runs.party_checkpoints import SavedTrainings
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.harness import Federated, federate
from tests.support.event_documents import into
from tests.support.private import notes

NAMES = ("east", "north", "south", "west")
VALUES, BOUND = 500, 0.5
SETTINGS = DPSettings(
    epsilon=50.0, delta=1e-3, noise_multiplier=2.0, noise="shared", dropouts=0, accountant="rdp"
)
Rows = Callable[[Sequence[int]], Tensor]


def site_of(
    name: str = "north",
    folder: Path | None = None,
    *,
    records: Sequence[Text] | None = None,
    passes: int = 30,
    rate: float = 1.0,
    kept: bool = True,
    events: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Site:
    """A process of a hospital that begins: all that it knows is on the disk."""
    dp = SETTINGS.model_copy(update=fields)
    silo = Silo(name, records or notes(40, name))
    units = sampling_units(silo.train, dp, name)
    ledger = None if folder is None else open_ledger(folder / name, name)
    account = DpAccount(
        name, dp, units, 10, passes=passes, sample_rate=rate, ledger=ledger, run="this run"
    )
    if folder is not None and kept:
        account.trainings = SavedTrainings(folder / name / "trainings")
    task, training = make_task(TaskSettings(labels=("no", "yes"))), TrainingSettings(dp=dp)
    spec = SiteSpec(task, ModelSettings(layers=1), training, 1)
    log = EventLog(name, into([] if events is None else events))
    return Site(silo, spec, SiteContext(log, privacy=account))


def account_of(site: Site) -> DpAccount:
    assert site.privacy is not None
    return site.privacy


def one_hot(sample: Sequence[int], long: float = 1.0) -> Tensor:
    """A gradient for each unit, at its bound, in the value of its number."""
    rows = torch.zeros(len(sample), VALUES)
    rows[range(len(sample)), list(sample)] = long * BOUND
    return rows


def stepped(
    sites: Mapping[str, Site], steps: int = 1, rows: Rows = one_hot, first: int = 1, **options: Any
) -> Federated:
    """Make steps at all sites; each returns the mean gradients."""

    def program(site: Site) -> Any:
        async def run(cohort: Cohort) -> list[Any]:
            units, means = 40.0 * len(sites), []
            for round in range(first, first + steps):
                site.recorder.round = round
                noised = NoisedSteps(cohort, site, units, BOUND, 1000)
                state = f"weights of {round}".encode()
                means.append(await noised.mean(state, VALUES, lambda s, _: iter([rows(s)])))
            return means

        return run

    return federate({n: program(s) for n, s in sites.items()}, mode="secagg", **options)


def four(folder: Path | None = None, **fields: Any) -> dict[str, Site]:
    return {name: site_of(name, folder, **fields) for name in NAMES}


def reserved(folder: Path, name: str = "north") -> list[Any]:
    return events_of(load_chain(folder / name / "ledger.sqlite"), name, "record")
