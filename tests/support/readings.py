"""Readings of real training steps of the tiny built-in model, and what attackers know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from secure_fl import FedAvg, Silo, TaskSettings, TrainingSettings
from secure_fl.algorithms.updates import local_update
from secure_fl.audits.findings import CoordinatorView, Prior, Reading, Truth
from secure_fl.corpora import make, public
from secure_fl.data.examples import Example
from secure_fl.events import EventLog
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Task, labels_of, make_task
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings

Values = Mapping[str, NDArray[Any]]
Records = Sequence[Example]

ADE = make_task(TaskSettings(labels=("ade", "no-ade"), max_length=32))
EMBEDDING = "bert.embeddings.word_embeddings.weight"


def adamw(**fields: Any) -> TrainingSettings:
    """What the library trains with by default, faster."""
    given: dict[str, Any] = {"learning_rate": 1.5e-3, "batch_size": 16, "device": "cpu"} | fields
    return TrainingSettings(**given)


def sgd(**fields: Any) -> TrainingSettings:
    """Plain gradient descent, of which all these papers speak."""
    given: dict[str, Any] = {
        "optimizer": "sgd",
        "schedule": "constant",
        "learning_rate": 0.1,
        "batch_size": 64,
        "device": "cpu",
    } | fields
    return TrainingSettings(**given)


@cache
def hospital(number: int = 0, size: int = 48, corpus: str = "ade") -> tuple[Example, ...]:
    return tuple(make(corpus, parties=5, seed=0, size=size)[number].train)


@cache
def outsiders(corpus: str = "ade", size: int = 64) -> tuple[Example, ...]:
    return public(corpus, seed=0, size=size)


@cache
def tokenizer() -> Any:
    return load_tokenizer(ModelSettings())


def ner_task() -> Task:
    """Tags of all hospitals together, as a federation declares them."""
    everybody = [e for k in range(5) for e in hospital(k, 16, "ner")]
    types = [label[2:] for label in labels_of("ner", everybody) if label.startswith("B-")]
    return make_task(TaskSettings(kind="ner", labels=tuple(types), max_length=32))


def prior_of(
    parties: Mapping[str, Records],
    training: TrainingSettings,
    *,
    frozen: bool = True,
    epochs: int = 1,
    rounds: int = 10,
    task: Task = ADE,
    public: Records | None = None,
    layers: int = 2,
    seed: int = 0,
) -> Prior:
    """Make a prior for attacks: a federation of small models, and its parties' records."""
    known = outsiders() if public is None else tuple(public)
    settings = ModelSettings(layers=layers, freeze_embeddings=frozen)

    def model() -> nn.Module:
        return load_model(settings, task, tokenizer(), seed)

    truth = {name: Truth(name, tuple(records)) for name, records in parties.items()}
    algorithm = FedAvg(rounds=rounds, epochs=epochs)
    return Prior(model, tokenizer(), task, training, algorithm, seed, truth, tuple(known))


def seeded(seed: int) -> Prior:
    """An attacker that knows nothing, but draws at random."""
    nothing: Any = None
    return Prior(nothing, nothing, nothing, nothing, nothing, seed)


def moved(
    prior: Prior,
    records: Records,
    *,
    dropout: bool = True,
    frozen: bool = True,
    epochs: int = 1,
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """How a party's training moves the shared model: what it would send without protection."""
    settings = ModelSettings(layers=2, freeze_embeddings=frozen)
    silo = Silo("hospital", tuple(records))
    site = Site(
        silo,
        SiteSpec(prior.task, settings, prior.training, seed),
        SiteContext(EventLog("hospital")),
    )
    model = prior.model()
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    with site.surroundings():
        Δ = local_update(site, model, epochs, Round(1, prior.algorithm.rounds))
        return {name: δ.numpy() for name, δ in Δ.items()}


def view_of(*readings: tuple[Sequence[str], Values], round: int = 1) -> CoordinatorView:
    """The coordinator read these, in one round."""
    return CoordinatorView(
        "coordinator",
        tuple(
            Reading(tuple(of), round, values, (f"wire/{at}",))
            for at, (of, values) in enumerate(readings)
        ),
    )


def permuted(view: CoordinatorView, seed: int = 1) -> CoordinatorView:
    """The null: every value's entries in another order, so that nothing is left to be found."""
    rng = np.random.default_rng(seed)
    return CoordinatorView(
        view.role,
        tuple(
            Reading(
                r.of,
                r.round,
                {n: rng.permutation(v.ravel()).reshape(v.shape) for n, v in r.values.items()},
                r.evidence,
            )
            for r in view.readings
        ),
    )
