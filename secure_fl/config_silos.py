"""From [data] to each party's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from secure_fl import corpora
from secure_fl.config_data import (
    ColumnSettings,
    CorpusData,
    Data,
    PartyData,
    PartyFiles,
    SourceData,
    names,
)
from secure_fl.data import Columns, Splits, load, split
from secure_fl.errors import DataError
from secure_fl.examples import Example
from secure_fl.partition import partition
from secure_fl.settings import Kind, TaskSettings
from secure_fl.silo import Silo


def read(data: Data, task: TaskSettings, seed: int) -> list[Silo]:
    """Read or write (a built-in corpus) the records of every party."""
    if isinstance(data, CorpusData):
        parts = corpora.make(
            data.corpus, parties=data.parties, seed=seed, size=data.size, shift=data.shift
        )
        return _silos(names(data), parts)
    if isinstance(data, SourceData):
        return _silos(names(data), spread(data, task.kind, seed))
    return [_silo(party, data, task.kind, seed) for party in data.party]


def spread(data: SourceData, kind: Kind, seed: int) -> list[Splits]:
    """Spread one source over parties, and split each party's share."""
    examples = load(data.source, kind, format=data.format, columns=columns(data.columns))
    shares = partition(
        data.partition,
        [examples],
        data.parties,
        np.random.default_rng(seed),
        alpha=data.alpha,
        minimum=data.minimum,
    )
    parts = []
    for name, share in zip(names(data), shares, strict=True):
        try:
            parts.append(split(share, dev=data.dev, test=data.test, seed=seed))
        except DataError as error:
            raise error.at(party=name) from None
    return parts


def columns(settings: ColumnSettings) -> Columns:
    """Name columns as the loaders take them."""
    return Columns(**settings.model_dump())


def _silos(names: Sequence[str], parts: Sequence[Splits]) -> list[Silo]:
    return [
        Silo(name, part.train, part.dev, part.test) for name, part in zip(names, parts, strict=True)
    ]


def _silo(party: PartyFiles, data: PartyData, kind: Kind, seed: int) -> Silo:
    try:
        parts = _party(party, data, kind, seed)
        return Silo(
            party.name,
            parts.train,
            parts.dev,
            parts.test,
            role=party.role,
            tier=party.tier,
            model=party.model,
        )
    except DataError as error:
        raise error.at(party=party.name) from None


def _party(party: PartyFiles, data: PartyData, kind: Kind, seed: int) -> Splits:
    """Read a party's files; a share instead of a file is taken from the training records."""

    def file(source: str) -> tuple[Example, ...]:
        return load(source, kind, format=data.format, columns=columns(data.columns))

    dev = party.dev if isinstance(party.dev, float) else 0.0
    test = party.test if isinstance(party.test, float) else 0.0
    parts = split(file(party.train), dev=dev, test=test, seed=seed)
    if isinstance(party.dev, str):
        parts = replace(parts, dev=file(party.dev))
    if isinstance(party.test, str):
        parts = replace(parts, test=file(party.test))
    return parts
