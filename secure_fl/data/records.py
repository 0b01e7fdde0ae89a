"""Conversion of a file's rows to examples of the task's kind, with entity tags in IOB2.

Every reader yields `Row`s, and the checks of rows are here, once for all formats. An error names
the place and the field and never quotes the value, because it may be a patient's record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.rows import Columns, Field, Row, of_patient, optional, required
from secure_fl.settings import Kind

Scheme = Literal["IOB2", "IOB1", "BIOES"]

ALLOWED = "a tag is O, or one of B- I- E- S- L- U- followed by the entity's type"

LABELS = (
    "put ; or | between the labels of a record, or give a list in jsonl or parquet; an empty text "
    "or list is a record without any label, and null is unlabelled"
)

SEPARATOR = re.compile(r"[;|]")  # of labels in one text
_TRUTH = re.compile(r"true|false", re.IGNORECASE)
_WHOLE = re.compile(r"-?\d+(\.0)?")
_SHAPE = re.compile(r"O|[BIESLU]-\S.*")
_BILOU = MappingProxyType({"L": "E", "U": "S"})
_LETTERS = MappingProxyType({"S": "B", "E": "I"})


def build(rows: Iterable[Row], kind: Kind, columns: Columns | None = None) -> tuple[Example, ...]:
    """Convert every row to an example."""
    columns = columns or Columns()
    if kind == "ner":
        return _tagged(list(rows), columns)
    examples = tuple(BUILDERS[kind](row, k, columns) for k, row in enumerate(rows))
    return _respelled(examples) if kind in ("classification", "pair") else examples


def _respelled(examples: tuple[Text | Impression, ...]) -> tuple[Text | Impression, ...]:
    """Write true for True, or 1 for 1.0, if all labels are such: formats spell them differently."""
    labels = {e.label for e in examples if isinstance(e, Text) and isinstance(e.label, str)}
    if not any(all(map(shape.fullmatch, labels)) for shape in (_TRUTH, _WHOLE)):
        return examples
    return tuple(
        replace(e, label=e.label.lower().removesuffix(".0"))
        if isinstance(e, Text) and isinstance(e.label, str)
        else e
        for e in examples
    )


def _text(
    row: Row,
    position: int,
    columns: Columns,
    label: Callable[[Row, object], str | float | tuple[str, ...] | None],
) -> Text:
    text = _string(row, "text", required(row, "text", columns))
    pair = optional(row, "pair", columns)
    return Text(
        record_id(row, position, columns),
        text,
        None if pair is None or pair == "" else _string(row, "pair", pair),
        label(row, optional(row, "label", columns)),
    )


def _pair(row: Row, position: int, columns: Columns) -> Text:
    example = _text(row, position, columns, _class)
    if example.pair is None:
        required(row, "pair", columns)
        raise row.error("the second text is missing", field="pair", fix="pair tasks need both")
    return example


def _impression(row: Row, position: int, columns: Columns) -> Impression:
    history = _titles(row, "history", required(row, "history", columns))
    candidates = _titles(row, "candidates", required(row, "candidates", columns))
    clicks = required(row, "clicks", columns)
    if not candidates:
        raise row.error("no title is offered", field="candidates", fix="drop such rows")
    if not isinstance(clicks, list | tuple) or any(c not in (0, 1) for c in clicks):
        raise row.error("is not a list of true/false or 1/0", field="clicks")
    if len(clicks) != len(candidates):
        counts = f"{len(clicks)} clicks for {len(candidates)} candidates"
        raise row.error(counts, field="clicks", fix="give one click, 0 or 1, for each candidate")
    return Impression(
        record_id(row, position, columns), history, candidates, tuple(bool(c) for c in clicks)
    )


def _tagged(rows: Sequence[Row], columns: Columns) -> tuple[Tagged, ...]:
    tokens = [_words(row, "tokens", required(row, "tokens", columns)) for row in rows]
    tags = [_tags(row, words, columns) for row, words in zip(rows, tokens, strict=True)]
    scheme = scheme_of(sentence for sentence in tags if sentence is not None)
    for row, sentence in zip(rows, tags, strict=True):
        fault = first_fault(sentence or (), scheme)
        if fault is not None:
            what = f"the tag of token {fault + 1} cannot follow the one before it in {scheme}"
            fix = "use one of IOB2, IOB1, BIOES, BILOU for all tags of a file"
            raise row.error(what, field="tags", fix=fix)
    return tuple(
        Tagged(
            record_id(row, k, columns), words, None if labels is None else to_iob2(labels, scheme)
        )
        for k, (row, words, labels) in enumerate(zip(rows, tokens, tags, strict=True))
    )


def _tags(row: Row, tokens: Sequence[str], columns: Columns) -> tuple[str, ...] | None:
    value = optional(row, "tags", columns)
    if value is None or value == "":
        return None
    tags = _words(row, "tags", value)
    if len(tags) != len(tokens):
        counts = f"{len(tags)} tags for {len(tokens)} tokens"
        raise row.error(counts, field="tags", fix="give exactly one tag for each token")
    for k, tag in enumerate(tags):
        if not well_formed(tag):
            raise row.error(f"the tag of token {k + 1} is not a tag", field="tags", fix=ALLOWED)
    return tags


def record_id(row: Row, position: int, columns: Columns) -> str:
    """The id of a row's example; a row without an id has its place, counted from 0."""
    record = _name(row, "id", optional(row, "id", columns)) or str(position)
    if columns.patient is None:
        return record
    patient = _name(row, "patient", optional(row, "patient", columns))
    if not patient:
        fix = "fill the column, or remove columns.patient: then each record is its own patient"
        raise row.error("the record names no patient", field="patient", fix=fix)
    return of_patient(patient, record)


def _name(row: Row, field: Field, value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise row.error(f"is {_kind(value)} instead of text or an integer", field=field)
    return str(value)


def _string(row: Row, field: Field, value: object) -> str:
    if not isinstance(value, str):
        raise row.error(f"is {_kind(value)} instead of text", field=field)
    if not value.strip():
        raise row.error("the text is empty", field=field, fix="drop such rows, or fill them")
    return _encodable(row, field, value)


def _encodable(row: Row, field: Field, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise row.error(
            "contains half a surrogate pair, which no tokenizer accepts", field=field
        ) from None
    return value


def _words(row: Row, field: Field, value: object) -> tuple[str, ...]:
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise row.error(f"is {_kind(value)} instead of a list of texts", field=field)
    if not words:
        raise row.error("the list is empty", field=field, fix="drop such rows")
    for k, word in enumerate(words):
        if not isinstance(word, str) or not word.strip():
            what = f"entry {k + 1} is {_kind(word)} instead of text, or is empty"
            raise row.error(what, field=field)
        _encodable(row, field, word)
    return tuple(words)


def _titles(row: Row, field: Field, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(title, str) for title in value):
        raise row.error("is not a list of titles", field=field)
    return tuple(_encodable(row, field, title) for title in value)


def _class(row: Row, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return str(value).lower()
    fix = "classes are text, integers or true/false; null is unlabelled; scores need regression"
    raise row.error(f"is {_kind(value)} instead of a class", field="label", fix=fix)


def _labels(row: Row, value: object) -> tuple[str, ...] | None:
    """Read zero or more labels: a list, or a text with ; or | between them."""
    if value is None:
        return None
    entries = SEPARATOR.split(value) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise row.error(f"is {_kind(value)} instead of labels", field="label", fix=LABELS)
    if isinstance(value, str):
        if value.strip().startswith("["):
            raise row.error("is a list that was written as text", field="label", fix=LABELS)
        entries = [entry for entry in entries if entry.strip()]
    names = [_class(row, entry) for entry in entries]
    if None in names:
        raise row.error("one of the labels is empty", field="label", fix=LABELS)
    if len(set(names)) < len(names):
        fix = "name each label of a record once"
        raise row.error("a label is named twice", field="label", fix=fix)
    return tuple(name for name in names if name is not None)


def _score(row: Row, value: object) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    fix = "give a finite number; leave unlabelled ones empty or null"
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        score = float(value)
    except (ValueError, OverflowError):
        raise row.error(f"is {_kind(value)} instead of a number", field="label", fix=fix) from None
    if not math.isfinite(score):
        raise row.error("the score is NaN or infinite", field="label", fix=fix)
    return score


def _kind(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN or infinity"
    names = {bool: "true/false", str: "text", int: "an integer", float: "a fraction"}
    return names.get(type(value), f"a {type(value).__name__}")


BUILDERS: Mapping[Kind, Callable[[Row, int, Columns], Text | Impression]] = MappingProxyType(
    {
        "classification": partial(_text, label=_class),
        "pair": _pair,
        "multilabel": partial(_text, label=_labels),
        "regression": partial(_text, label=_score),
        "ranking": _impression,
        "completion": partial(_text, label=lambda *_: None),
    }
)


def well_formed(tag: str) -> bool:
    """Check that it is a tag of any scheme."""
    return _SHAPE.fullmatch(tag) is not None


def _may_follow(before: str, tag: str, scheme: Scheme) -> bool:
    same = before[2:] == tag[2:]
    if scheme != "BIOES":  # in IOB1, B- only separates an entity from one of its type
        return tag[0] != ("I" if scheme == "IOB2" else "B") or same
    if before[0] in "BI":
        return tag[0] in "IE" and same
    return tag[0] in "OBS"


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Find the scheme that all sentences follow; IOB2 if none fits."""
    every = list(sentences)
    if any(tag[0] in "ESLU" for tags in every for tag in tags):
        return "BIOES"
    iob1, iob2 = (all(first_fault(s, by) is None for s in every) for by in ("IOB1", "IOB2"))
    return "IOB1" if iob1 and not iob2 else "IOB2"


def first_fault(tags: Sequence[str], scheme: Scheme) -> int | None:
    """Find the first tag that cannot follow the one before it."""
    plain = [_BILOU.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    neighbours = zip(["O", *plain], [*plain, "O"], strict=True)
    for k, (before, tag) in enumerate(neighbours):
        if not _may_follow(before, tag, scheme):
            return min(k, len(plain) - 1)
    return None


def to_iob2(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Convert valid tags to IOB2: each entity starts with B- and continues with I-."""
    plain = [_BILOU.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    if scheme == "IOB1":
        starts = zip(["O", *plain], plain, strict=False)
        return tuple(
            f"B{tag[1:]}" if tag[0] == "I" and before[2:] != tag[2:] else tag
            for before, tag in starts
        )
    return tuple(_LETTERS.get(tag[0], tag[0]) + tag[1:] for tag in plain)
