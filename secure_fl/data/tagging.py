"""Entity tags: which scheme a file follows, where it breaks it, and the same tags in IOB2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from secure_fl.errors import DataError

Scheme = Literal["IOB2", "IOB1", "BIOES"]

ALLOWED = "a tag is O, or one of B- I- E- S- L- U- followed by the entity's type"

_SHAPE = re.compile(r"O|[BIESLU]-\S.*")
_BILOU = MappingProxyType({"L": "E", "U": "S"})
_LETTERS = MappingProxyType({"S": "B", "E": "I"})


def well_formed(tag: str) -> bool:
    """Tell whether it is a tag of any scheme."""
    return _SHAPE.fullmatch(tag) is not None


def _same(before: str, tag: str) -> bool:
    return before[2:] == tag[2:]


def _iob2(before: str, tag: str) -> bool:
    return tag[0] != "I" or _same(before, tag)


def _iob1(before: str, tag: str) -> bool:
    return tag[0] != "B" or _same(before, tag)  # B- only parts an entity from one of its type


def _bioes(before: str, tag: str) -> bool:
    if before[0] in "BI":
        return tag[0] in "IE" and _same(before, tag)
    return tag[0] in "OBS"


MAY_FOLLOW: Mapping[Scheme, Callable[[str, str], bool]] = MappingProxyType(
    {"IOB2": _iob2, "IOB1": _iob1, "BIOES": _bioes}
)


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Find the one scheme that all sentences follow (IOB2 where none fits, to report against)."""
    known = list(sentences)
    if any(tag[0] in "ESLU" for tags in known for tag in tags):
        return "BIOES"
    iob1 = not any(first_fault(tags, "IOB1") is not None for tags in known)
    iob2 = not any(first_fault(tags, "IOB2") is not None for tags in known)
    return "IOB1" if iob1 and not iob2 else "IOB2"


def first_fault(tags: Sequence[str], scheme: Scheme) -> int | None:
    """Find the first tag that may not stand where it does."""
    plain = [_BILOU.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    around = zip(["O", *plain], [*plain, "O"], strict=True)
    for k, (before, tag) in enumerate(around):
        if not MAY_FOLLOW[scheme](before, tag):
            return min(k, len(plain) - 1)
    return None


def to_iob2(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Write tags without a fault in IOB2: each entity begins with B- and goes on with I-."""
    plain = [_BILOU.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    if scheme == "IOB1":
        starts = zip(["O", *plain], plain, strict=False)
        return tuple(
            f"B{tag[1:]}" if tag[0] == "I" and not _same(before, tag) else tag
            for before, tag in starts
        )
    return tuple(_LETTERS.get(tag[0], tag[0]) + tag[1:] for tag in plain)


def sentences(
    lines: Iterable[tuple[int, str]], file: Path
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Split CoNLL lines into (first line, tokens, tags): the first and the last column."""
    kept = ((n, text.strip("\r\n ")) for n, text in lines)
    for blank, group in groupby(kept, key=lambda line: _between(line[1])):
        if blank:
            continue
        cells = [(n, _cells(text)) for n, text in group]
        for number, found in cells:
            if len(found) < 2 or not found[0].strip():
                what = f"found {len(found)} column(s), needed are a token first and its tag last"
                fix = "separate columns by tabs or spaces, sentences by a blank line"
                raise DataError(what, fix=fix, file=file, line=number, field="tags")
        yield cells[0][0], [found[0] for _, found in cells], [found[-1] for _, found in cells]


def _between(text: str) -> bool:
    return not text.strip() or text.startswith("-DOCSTART-")


def _cells(text: str) -> list[str]:
    return text.rstrip("\t").split("\t") if "\t" in text else re.split(" +", text)
