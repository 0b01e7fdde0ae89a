"""The [data] of a settings file: three ways to say which records each party has.

corpus = "ade"                         a built-in corpus, written for each party
source = "notes.csv"                   one file or data set, spread over parties: experiments
[[data.party]]                         each party's own files, as in a real federation
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo

from secure_fl.settings import ModelSettings, Positive, Section

HUB = "hub:"


def located(text: str, base: Path) -> str:
    """Take a path as relative to a folder; names of the hub stay."""
    return text if text.startswith(HUB) else str(base / Path(text).expanduser())


def _beside_the_file(text: str, info: ValidationInfo) -> str:
    base = (info.context or {}).get("base")
    return text if base is None else located(text, base)


Source: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
PartyName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ColumnSettings(Section):
    """Which column holds which field; left out: the first of the usual names that is there."""

    id: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    tokens: str | None = None
    tags: str | None = None
    history: str | None = None
    candidates: str | None = None
    clicks: str | None = None


class CorpusData(Section):
    """A built-in corpus."""

    corpus: str
    parties: Positive = 3
    size: Positive | tuple[Positive, ...] | None = None  # training examples, for all or for each
    shift: Annotated[float, Field(ge=0, le=1)] | None = None  # 0: hospitals alike; 1: different


class SourceData(Section):
    """One source, spread over parties."""

    source: Source
    format: str | None = None  # None: by suffix or content
    columns: ColumnSettings = ColumnSettings()
    partition: Literal["iid", "dirichlet_class", "dirichlet_client"] = "iid"
    parties: Positive = 3
    alpha: Annotated[float, Field(gt=0)] = 1.0  # of the Dirichlet draws; smaller is more skewed
    minimum: Positive = 10  # records that every party must get
    dev: Fraction = 0.1  # share of each party's records that compares rounds
    test: Fraction = 0.2  # share that results are reported on


class PartyFiles(Section):
    """One party's files."""

    name: PartyName
    train: Source
    dev: Source | Fraction = 0.1  # a file, or a share of the training records
    test: Source | Fraction = 0.2
    role: Literal["party", "host"] = "party"
    tier: str | None = None
    model: ModelSettings | None = None  # its own architecture, where an algorithm allows that


class PartyData(Section):
    """Files per party."""

    party: Annotated[tuple[PartyFiles, ...], Field(min_length=1)]
    format: str | None = None
    columns: ColumnSettings = ColumnSettings()


Data: TypeAlias = CorpusData | SourceData | PartyData

FORMS: Mapping[str, type[Section]] = MappingProxyType(
    {"corpus": CorpusData, "source": SourceData, "party": PartyData}
)  # by the field that tells them apart


def names(data: Data) -> tuple[str, ...]:
    """Name the parties."""
    if isinstance(data, PartyData):
        return tuple(party.name for party in data.party)
    return tuple(f"hospital-{k + 1}" for k in range(data.parties))


def fault(data: Data) -> tuple[tuple[str | int, ...], str] | None:
    """Find what no single field can know: (field, what is wrong), or None."""
    if isinstance(data, CorpusData):
        from secure_fl.corpora import NAMES

        if data.corpus not in NAMES:
            return ("corpus",), f"found {data.corpus!r}; allowed: {', '.join(NAMES)}"
        if isinstance(data.size, tuple) and len(data.size) != data.parties:
            return ("size",), f"found {len(data.size)} sizes for {data.parties} parties"
        return None
    if isinstance(data, SourceData) and data.dev + data.test >= 1:
        return (
            "dev",
        ), f"dev and test take {data.dev + data.test:g} of the records, nothing is left"
    known: Any = ()
    for index, name in enumerate(names(data)):
        if name in known:
            return ("party", index, "name"), f"found {name!r} a second time"
        known = (*known, name)
    return None if data.format is None else _format_fault(data.format)


def _format_fault(format: str) -> tuple[tuple[str | int, ...], str] | None:
    from secure_fl.loaders import FORMATS

    if format in FORMATS:
        return None
    return ("format",), f"found {format!r}; allowed: {', '.join(FORMATS)}"
