"""Each hospital's records as a table with named columns, whatever they were read from.

Usual names are found as the readers of records find them (`text`, `label`, `patient`, ...); all
other columns keep their own. Lengths are columns too: `words` and `characters` of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from typing import Any

import pandas as pd

from secure_fl.config.data import CorpusData, PartyData, PartyFiles, SourceData, parties
from secure_fl.config.load import Settings
from secure_fl.config.silos import columns, generated, spread
from secure_fl.data.examples import Example
from secure_fl.data.loaders import rows_of
from secure_fl.data.rows import DEFAULT_NAMES, Columns
from secure_fl.data.silo import Silo
from secure_fl.data.splits import PARTS
from secure_fl.errors import DataError

CLASH = "words"  # our lengths of texts; where it is a column of tokens, tokens has them


def tables_of(settings: Settings) -> dict[str, pd.DataFrame]:
    """The tables of a settings file's hospitals; a host's records and public ones are not asked."""
    data, seed = settings.data, settings.run.seed
    if isinstance(data, PartyData):
        members = [party for party in data.party if party.role != "host"]
        return {party.name: of_files(party, data) for party in members}
    if isinstance(data, CorpusData):
        dealt = generated(data, seed).parties
        made: Sequence[pd.DataFrame] = [
            of_examples(chain(*(getattr(one, part) for part in PARTS))) for one in dealt
        ]
    else:
        made = _of_source(data, settings)
    return dict(zip(parties(data), made, strict=True))


def of_silo(silo: Silo) -> pd.DataFrame:
    """The table of a silo: what examples hold."""
    return of_examples(chain(silo.train, silo.dev, silo.test))


def of_examples(examples: Iterable[Example]) -> pd.DataFrame:
    """A row for each example; a patient is what stands before "/" in its id."""
    table = finished(pd.DataFrame([asdict(example) for example in examples]), Columns())
    if "patient" not in table and len(table) and table["id"].str.contains("/").all():
        table["patient"] = table["id"].str.partition("/")[0]
    return table


def of_file(source: str, format: str | None, how: Columns) -> pd.DataFrame:
    """All columns of a file, a folder or a data set."""
    rows = pd.DataFrame([dict(row.values) for row in rows_of(source, format)])
    if rows.empty:
        raise DataError("holds no record", fix="check that the export is complete", file=source)
    return finished(rows, how)


def finished(rows: pd.DataFrame, how: Columns) -> pd.DataFrame:
    """Give usual fields their names, and add lengths and entities."""
    table = rows.copy()
    for field in fields(how):
        chosen = getattr(how, field.name)
        names = DEFAULT_NAMES[field.name] if chosen is None else (chosen,)  # type: ignore[index]
        found = next((name for name in names if name in rows), None)
        if found is not None:
            table[field.name] = rows[found]
    if "tags" in table:
        table["entities"] = table["tags"].map(_entities)
    if "text" not in table and "tokens" in table:
        table["text"] = table["tokens"].map(_joined)
    if "text" in table:
        text = table["text"].where(table["text"].notna(), "").astype(str)
        table["characters"], table[CLASH] = text.str.len(), text.str.split().str.len()
    return table


def of_files(party: PartyFiles, data: PartyData) -> pd.DataFrame:
    """The table of one party's files, whichever split they are."""
    sources = [part for part in (party.train, party.dev, party.test) if isinstance(part, str)]
    try:
        read = [of_file(source, data.format, columns(data.columns)) for source in sources]
    except DataError as error:
        raise error.at(party=party.name) from None
    return pd.concat(read, ignore_index=True)


def _of_source(data: SourceData, settings: Settings) -> Sequence[pd.DataFrame]:
    """The rows that training would give to each party, with all their columns."""
    table = of_file(data.source, data.format, columns(data.columns))
    dealt = spread(data, settings.task.kind, settings.run.seed)
    ids = table["id"].astype(str) if "id" in table else table.index.astype(str).to_series()
    table = table.set_index(pd.Index(ids.to_numpy()))
    if table.index.has_duplicates:
        fix = "give each record an id of its own, or none at all"
        raise DataError("two records have one id", fix=fix, file=data.source, field="id")
    return [table.loc[_ids(one)].reset_index(drop=True) for one in map(_all, dealt.parties)]


def _all(splits: Any) -> list[Example]:
    return list(chain(*(getattr(splits, part) for part in PARTS)))


def _ids(examples: Sequence[Example]) -> list[str]:
    return [example.id.rpartition("/")[2] for example in examples]


def _joined(tokens: Any) -> str:
    return tokens if isinstance(tokens, str) else " ".join(map(str, tokens))


def _entities(tags: Any) -> list[str]:
    words = tags.split() if isinstance(tags, str) else (tags if tags is not None else ())
    return [tag[2:] for tag in words if str(tag)[:1] in ("B", "S", "U")]


def as_table(given: Any) -> pd.DataFrame:
    """A hospital's table from what a program holds: a frame, a `datasets.Dataset` or a silo."""
    if isinstance(given, Silo):
        return of_silo(given)
    if hasattr(given, "to_pandas"):
        given = given.to_pandas()
    if not isinstance(given, pd.DataFrame):
        fix = "give a pandas.DataFrame, a datasets.Dataset, or a Silo"
        raise DataError(f"found {type(given).__name__}", fix=fix)
    return finished(given, Columns())


def tables_from(given: Mapping[str, Any] | Sequence[Silo]) -> dict[str, pd.DataFrame]:
    """The same for all hospitals."""
    if not isinstance(given, Mapping):
        return {silo.name: of_silo(silo) for silo in given if silo.role != "host"}
    return {name: as_table(one) for name, one in given.items()}
