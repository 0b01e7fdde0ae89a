"""Records of each member, from the [data] section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from secure_fl import corpora
from secure_fl.config.data import (
    HOST,
    CorpusData,
    Data,
    PartyData,
    PartyFiles,
    SourceData,
    labelled,
    parties,
)
from secure_fl.data.examples import Example, without_labels
from secure_fl.data.partition import partition
from secure_fl.data.silo import Silo, read_splits
from secure_fl.data.splits import Splits, load, patient, split
from secure_fl.errors import DataError
from secure_fl.seeds import seed_for
from secure_fl.settings import Kind, TaskSettings

Examples = tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class DistributedRecords:
    """Records after distribution: of each party, public, and of a host."""

    parties: tuple[Splits, ...]
    public: Examples = ()
    host: Splits | None = None


def read(data: Data, task: TaskSettings, seed: int) -> list[Silo]:
    """Read the records of every member, or generate them from a built-in corpus."""
    if isinstance(data, PartyData):
        return _own_files(data, task.kind, seed)
    if isinstance(data, CorpusData):
        dealt = generated(data, seed)
    else:
        dealt = spread(data, task.kind, seed)
    named = zip(parties(data), dealt.parties, strict=True)
    made = [Silo(n, s.train, s.dev, s.test, public=dealt.public) for n, s in named]
    if (host := dealt.host) is not None:
        made.append(Silo(HOST, host.train, host.dev, host.test, role="host", public=dealt.public))
    return made


def generated(data: CorpusData, seed: int) -> DistributedRecords:
    """Generate a built-in corpus. Public records and the host's are one draw, cut into parts."""
    made = tuple(
        corpora.make(data.corpus, parties=data.parties, seed=seed, size=data.size, shift=data.shift)
    )
    if data.patients:
        made = tuple(map(corpora.with_patients, made))
    if not data.public:
        return DistributedRecords(made)
    sizes = [data.labelled, max(1, data.labelled // 4), max(1, data.labelled // 2)]
    own = sizes if data.labelled else []
    drawn = corpora.public(data.corpus, seed=seed, size=sum(own) + data.public)
    ends = np.cumsum(own).tolist()  # the host's come first: they stay the same if D⁰ grows
    parts = [drawn[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]
    return DistributedRecords(made, without_labels(parts[-1]), Splits(*parts[:-1]) if own else None)


def spread(data: SourceData, kind: Kind, seed: int) -> DistributedRecords:
    """Make a fraction of a source public, distribute the rest, and split each party's part."""
    examples = load(data.source, kind, format=data.format, columns=data.columns)
    private, public = _cut(examples, data.public, seed, "public")
    if data.public and len(private) < data.parties * data.minimum:
        raise DataError(
            f"{len(private)} records remain for {data.parties} parties, and each needs "
            f"{data.minimum}; the other {len(public)} are public",
            fix="lower data.public, data.minimum or data.parties",
            field="data.public",
        )
    shares = partition(
        data.partition,
        private,
        data.parties,
        np.random.default_rng(seed),
        alpha=data.alpha,
        minimum=data.minimum,
        by=patient,
    )
    parts = zip(parties(data), shares, strict=True)
    dealt = DistributedRecords(tuple(_split(name, share, data, seed) for name, share in parts))
    if not labelled(data):
        return replace(dealt, public=without_labels(public))
    measured = _split(HOST, public, data, seed_for(seed, HOST))
    unlabelled, own = _cut(measured.train, labelled(data), seed, "labelled")
    return replace(dealt, public=without_labels(unlabelled), host=replace(measured, train=own))


def _cut(examples: Examples, share: float, seed: int, field: str) -> tuple[Examples, Examples]:
    """Split off a fraction; a patient's side depends on its id, the seed and the field."""
    if not share:
        return examples, ()
    try:
        # Another seed than for dev and test, so that both sides have dev and test records.
        parts = split(examples, dev=0.0, test=share, seed=seed_for(seed, field), by=patient)
    except DataError as error:
        raise DataError(error.what, fix=error.fix, field=f"data.{field}") from None
    return parts.train, parts.test


def _split(name: str, share: Sequence[Example], data: SourceData, seed: int) -> Splits:
    try:
        return split(share, dev=data.dev, test=data.test, seed=seed, by=patient)
    except DataError as error:
        raise error.at(party=name) from None


def _own_files(data: PartyData, kind: Kind, seed: int) -> list[Silo]:
    """Read each member's own files, and the public file once."""
    public: Examples = ()
    if data.public is not None:
        try:
            public = load(
                data.public, kind, labelled=False, format=data.format, columns=data.columns
            )
        except DataError as error:
            raise error.at(split="public") from None
    return [_silo(party, data, kind, seed, public) for party in data.party]


def _silo(party: PartyFiles, data: PartyData, kind: Kind, seed: int, public: Examples) -> Silo:
    """Read a member's own files; a fraction is split off the training records."""

    def file(source: str) -> Examples:
        return load(source, kind, format=data.format, columns=data.columns)

    own = {"train": party.train, "dev": party.dev, "test": party.test}
    try:
        parts = read_splits(file, {n: p for n, p in own.items() if p is not None}, seed)
        return Silo(
            party.name,
            parts.train,
            parts.dev,
            parts.test,
            role=party.role,
            tier=party.tier,
            model=party.model,
            public=public,
        )
    except DataError as error:
        raise error.at(party=party.name) from None
