"""Each hospital's records as a table: the columns that a codebook may count.

Texts and identifiers are left out, under their usual names and under mapped ones. Two lengths are
added: `words` and `characters` of a text. The patient of each record is kept apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from secure_fl.config.data import CorpusData, Data, PartyData, PartyFiles, SourceData, parties
from secure_fl.config.silos import generated, spread
from secure_fl.data.examples import Example
from secure_fl.data.loaders import rows_of
from secure_fl.data.records import record_id
from secure_fl.data.rows import DEFAULT_NAMES, Columns
from secure_fl.data.silo import Silo
from secure_fl.data.splits import PARTS
from secure_fl.errors import DataError
from secure_fl.settings import TaskSettings

PRIVATE = frozenset(DEFAULT_NAMES) - {"label"} | {"prompt", "completion"}
USUAL = PRIVATE.union(*(names for field, names in DEFAULT_NAMES.items() if field != "label"))


@dataclass(frozen=True)
class RecordTable:
    """One hospital's records: countable columns, and a key for the patient of each record."""

    frame: pd.DataFrame
    patients: NDArray[Any]  # of each record; without a column of patients, the record's own key
    grouped: bool  # true if patients may have several records
    named: str | None = None  # column that names the patient or the id of every record

    @cached_property
    def state(self) -> str:
        """A digest of all records and their patients."""
        rows = pd.util.hash_pandas_object(self.frame.astype(str), index=False).to_numpy()
        keyed = np.stack([rows, self.patients.astype(np.uint64)], axis=1)
        names = ",".join(map(str, self.frame.columns))
        return hashlib.sha256(names.encode() + keyed.tobytes()).hexdigest()

    def __len__(self) -> int:
        """Count the records."""
        return len(self.frame)


def silos_of(data: Data, task: TaskSettings, seed: int) -> list[Silo]:
    """Read the tables of all members; a host's records and public ones are not counted."""
    if isinstance(data, PartyData):
        named = {p.name: _of_files(p, data) for p in data.party if p.role != "host"}
    elif isinstance(data, CorpusData):
        made = generated(data, seed).parties
        named = {n: _of_examples(_all(one)) for n, one in zip(parties(data), made, strict=True)}
    else:
        named = dict(zip(parties(data), _of_source(data, task, seed), strict=True))
    return [Silo(name, (), table=table) for name, table in named.items()]


def table_of(given: Any) -> RecordTable:
    """Make a table of a silo, a data frame or a `datasets.Dataset`."""
    if isinstance(given, RecordTable):
        return given
    if isinstance(given, Silo):
        if given.table is not None:
            return table_of(given.table)
        return _of_examples(chain(given.train, given.dev, given.test))
    if hasattr(given, "to_pandas"):
        given = given.to_pandas()
    if not isinstance(given, pd.DataFrame):
        fix = "give a pandas.DataFrame, a datasets.Dataset, or a Silo"
        raise DataError(f"found {type(given).__name__} instead of records", fix=fix)
    patient = "patient" if "patient" in given else None
    return finished(given, Columns(patient=patient))


def finished(rows: pd.DataFrame, how: Columns) -> RecordTable:
    """Leave out texts and identifiers, and add the lengths of texts."""
    found: dict[str, str] = {}
    for field, usual in DEFAULT_NAMES.items():
        chosen = getattr(how, field)
        names = usual if chosen is None else (chosen,)
        name = next((name for name in names if name in rows), None)
        if chosen is not None and name is None:
            raise DataError("there is no such column", field=chosen, fix=_columns(rows))
        if name is not None:
            found[field] = name
    private = {name for field, name in found.items() if field != "label"} | USUAL
    private -= {found.get("label")} - PRIVATE
    table = rows.drop(columns=[name for name in rows if name in private])
    if "label" in found:
        table = table.rename(columns={found["label"]: "label"})
    text = rows[found["text"]] if "text" in found else rows.get(found.get("tokens", ""))
    if text is not None:
        text = text.map(_joined)
        table["characters"], table["words"] = text.str.len(), text.str.split().str.len()
    return _keyed(rows, table.reset_index(drop=True), found)


def _keyed(rows: pd.DataFrame, table: pd.DataFrame, found: Mapping[str, str]) -> RecordTable:
    """Add the key of each record's patient; without patients, of the record."""
    named = found.get("patient", found.get("id"))
    keys = pd.Series(range(len(rows))) if named is None else rows[named]
    of_rows = pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy()
    if named is None:
        return RecordTable(table, of_rows, grouped=False)
    missing = (keys.isna() | (keys == "")).to_numpy()
    if "patient" in found and missing.any():
        raise DataError(
            f"{int(missing.sum())} records name no patient",
            fix="fill the column of patients",
            field=named,
        )
    texts = keys.map(_name).to_numpy(dtype=object)
    hashed = np.asarray(pd.util.hash_array(texts, categorize=False))
    # Records without an id are not one person.
    patients = np.where(missing, of_rows, hashed)
    every = None if missing.any() else named
    return RecordTable(table, patients, grouped="patient" in found, named=every)


def _of_examples(examples: Iterable[Example]) -> RecordTable:
    """Make a row of each example; the patient is the part of its id before "/"."""
    rows = pd.DataFrame([asdict(example) for example in examples])
    whose = rows["id"].str.partition("/")
    grouped = len(rows) > 0 and bool((whose[1] == "/").all())
    if grouped:
        rows["patient"] = whose[0]
    return finished(rows, Columns(patient="patient" if grouped else None))


def _of_file(source: str, data: PartyData | SourceData) -> pd.DataFrame:
    rows = pd.DataFrame([dict(row.values) for row in rows_of(source, data.format)])
    if rows.empty:
        raise DataError("holds no record", fix="check that the export is complete", file=source)
    return rows


def _of_files(party: PartyFiles, data: PartyData) -> RecordTable:
    """Read one party's files, of all splits."""
    sources = [part for part in (party.train, party.dev, party.test) if isinstance(part, str)]
    try:
        rows = pd.concat([_of_file(source, data) for source in sources], ignore_index=True)
        return finished(rows, data.columns)
    except DataError as error:
        raise error.at(party=party.name) from None


def _of_source(data: SourceData, task: TaskSettings, seed: int) -> Sequence[RecordTable]:
    """Read the rows that training would give to each party, with all their columns."""
    rows, how = _of_file(data.source, data), data.columns
    dealt = spread(data, task.kind, seed)
    read = enumerate(rows_of(data.source, data.format))
    rows.index = pd.Index([record_id(row, k, how) for k, row in read])
    if rows.index.has_duplicates:
        fix = "give each record an id of its own, or none at all"
        raise DataError("two records have one id", fix=fix, file=data.source, field="id")
    of_parties = [[example.id for example in _all(one)] for one in dealt.parties]
    return [finished(rows.loc[ids].reset_index(drop=True), how) for ids in of_parties]


def _all(splits: Any) -> list[Example]:
    return list(chain(*(getattr(splits, part) for part in PARTS)))


def _columns(rows: pd.DataFrame) -> str:
    return f"rename a column, or map it in data.columns; found: {', '.join(map(str, rows))}"


def _name(value: Any) -> str:
    """Format an id as `data.records` does: a missing value elsewhere makes integers floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _joined(text: Any) -> str:
    if isinstance(text, list | tuple | np.ndarray):
        return " ".join(map(str, text))
    return "" if text is None or text is pd.NA or text != text else str(text)
