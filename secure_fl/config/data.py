"""The [data] section of a settings file, in one of three forms.

corpus = "ade"                  a built-in corpus, generated for each hospital
source = "notes.csv"            one file or data set, distributed over hospitals: for experiments
[[data.party]]                  files of each hospital, as in a real federation

Each form can have public records: unlabelled, and the same at all members. It can also have a host:
the member that holds the central model and labelled records.

public = 240, labelled = 60     corpus: numbers of records, in no hospital's style
public = 0.5, labelled = 0.1    source: fractions of all records, and of the public ones
public = "public.jsonl"         party: a file; the host is the party with role = "host"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo

from secure_fl.data.rows import Columns
from secure_fl.settings import ModelSettings, Positive, Section

HUB = "hub:"
HOST = "host"  # name of a generated host
HOST_SHARE = 0.1  # default fraction of the public records that a host holds with labels


def located(text: str, base: Path) -> str:
    """Interpret a path as relative to a folder; hub names stay as they are."""
    return text if text.startswith(HUB) else str(base / Path(text).expanduser())


def _beside_the_file(text: str, info: ValidationInfo) -> str:
    base = (info.context or {}).get("base")
    return text if base is None else located(text, base)


Source: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
PartyName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class CorpusData(Section):
    """A built-in corpus of synthetic records."""

    corpus: str
    parties: Positive = 3
    size: Positive | tuple[Positive, ...] | None = None
    """Training examples, one number for all hospitals or one for each."""
    shift: Annotated[float, Field(ge=0, le=1)] | None = None
    """Difference between the hospitals, from 0 (equal) to 1."""
    public: Count = 0
    """Unlabelled records that all members hold."""
    labelled: Count = 0
    """Training records of a host. 0: no host."""
    patients: bool = False
    """Ids name a patient with one to three records, as PATIENT/NOTE, for dp.unit patient."""


class SourceData(Section):
    """One source, distributed over hospitals; with a column of patients, each patient to one."""

    source: Source
    format: str | None = None
    """Default: by suffix or content."""
    columns: Columns = Columns()
    partition: Literal["iid", "dirichlet_class", "dirichlet_client"] = "iid"
    parties: Positive = 3
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """Concentration of the Dirichlet draws; smaller is more skewed."""
    minimum: Positive = 10
    """Minimum records per hospital."""
    dev: Fraction = 0.1
    """Fraction of a hospital's records that compares rounds."""
    test: Fraction = 0.2
    """Fraction of a hospital's records for the reported results."""
    public: Fraction = 0.0
    """Fraction of the records that all members hold without labels; the rest is distributed."""
    labelled: Fraction | None = None
    """Fraction of the public records that a host holds with labels. Default: 0.1. 0: no host."""


class PartyFiles(Section):
    """Files of one hospital."""

    name: PartyName
    train: Source | None = None
    """Default: none, so that the hospital can only be evaluated, on its test records."""
    dev: Source | Fraction = 0.1
    """A file, or a fraction of the training records."""
    test: Source | Fraction = 0.2
    """A file, or a fraction of the training records."""
    role: Literal["party", "host"] = "party"
    tier: str | None = None
    model: ModelSettings | None = None
    """This hospital's own architecture, if the algorithm allows it."""


class PartyData(Section):
    """Files of each hospital."""

    party: Annotated[tuple[PartyFiles, ...], Field(min_length=1)]
    public: Source | None = None
    """Records that all members hold; labels are not read."""
    format: str | None = None
    columns: Columns = Columns()


Fault: TypeAlias = tuple[tuple[str | int, ...], str] | None  # (field, what is wrong)
Data: TypeAlias = CorpusData | SourceData | PartyData

FORMS: Mapping[str, type[Section]] = MappingProxyType(
    {"corpus": CorpusData, "source": SourceData, "party": PartyData}
)  # by the field that identifies the form


def parties(data: Data) -> tuple[str, ...]:
    """Return the names of the parties: all members except a host."""
    if isinstance(data, PartyData):
        return tuple(party.name for party in data.party if party.role != "host")
    return tuple(f"hospital-{k + 1}" for k in range(data.parties))


def names(data: Data) -> tuple[str, ...]:
    """Return the names of the members; a generated host comes last."""
    if isinstance(data, PartyData):
        return tuple(party.name for party in data.party)
    return (*parties(data), HOST) if labelled(data) else parties(data)


def labelled(data: CorpusData | SourceData) -> float:
    """Return a generated host's labelled records, as number or fraction; 0: no host."""
    return (HOST_SHARE if data.public else 0) if data.labelled is None else data.labelled


def fault(data: Data) -> Fault:
    """Find an error that concerns several fields."""
    if isinstance(data, PartyData):
        first = _member_fault(data)
    else:
        first = _corpus_fault(data) if isinstance(data, CorpusData) else _share_fault(data)
        if first is None and data.labelled and not data.public:
            what = f"found {data.labelled:g} without public records; set public, or remove this"
            return ("labelled",), what
    if first is not None or isinstance(data, CorpusData) or data.format is None:
        return first
    return _format_fault(data.format)


def _corpus_fault(data: CorpusData) -> Fault:
    from secure_fl.corpora import NAMES

    if data.corpus not in NAMES:
        return ("corpus",), f"found {data.corpus!r}; allowed: {', '.join(NAMES)}"
    if isinstance(data.size, tuple) and len(data.size) != data.parties:
        return ("size",), f"found {len(data.size)} sizes for {data.parties} parties"
    return None


def _share_fault(data: SourceData) -> Fault:
    taken = data.dev + data.test
    if taken < 1:
        return None
    return ("dev",), f"dev and test use {taken:g} of the records; no training records remain"


def _member_fault(data: PartyData) -> Fault:
    known, hosts = set[str](), [party.name for party in data.party if party.role == "host"]
    for index, party in enumerate(data.party):
        if party.name in known:
            return ("party", index, "name"), f"found {party.name!r} a second time"
        if party.train is None and not isinstance(party.test, str):
            what = "missing, and so is a file of test records; set one of them"
            return ("party", index, "train"), what
        if party.role == "host" and party.name != hosts[0]:
            return ("party", index, "role"), f"found a second host; {hosts[0]} is the host"
        known.add(party.name)
    return None


def _format_fault(format: str) -> Fault:
    from secure_fl.data.loaders import FORMATS

    if format in FORMATS:
        return None
    return ("format",), f"found {format!r}; allowed: {', '.join(FORMATS)}"
