"""News ranking in MIND's own format: a folder with news.tsv and behaviors.tsv, without headers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from secure_fl.data.rows import Row
from secure_fl.data.tables import lines
from secure_fl.errors import DataError

NEWS_COLUMNS = 8  # id, category, subcategory, title, abstract, url, two lists of entities
BEHAVIOR_COLUMNS = 5  # id, user, time, history, impressions

_OFFERED = re.compile(r"(\S+)-([01])")


def mind_rows(source: str) -> Iterator[Row]:
    """Read each impression with the titles instead of the news ids."""
    titles = dict(_titles(Path(source, "news.tsv")))
    file = Path(source, "behaviors.tsv")
    for number, text in lines(file):
        cells = text.rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if len(cells) != BEHAVIOR_COLUMNS:
            what = f"found {len(cells)} columns, allowed are {BEHAVIOR_COLUMNS}"
            fix = "id, user, time, history, impressions, parted by tabs"
            raise DataError(what, fix=fix, file=file, line=number)
        offered = [_OFFERED.fullmatch(entry) for entry in cells[4].split()]
        clicked = [match for match in offered if match is not None]
        if len(clicked) != len(offered) or not offered:
            fix = "each entry reads NEWS-1 (clicked) or NEWS-0; the hidden test set has neither"
            what = "an entry without its click, or none at all"
            raise DataError(what, fix=fix, file=file, line=number, field="impressions")
        values: dict[str, object] = {
            "id": cells[0],
            "history": _look_up(cells[3].split(), titles, file, number, "history"),
            "candidates": _look_up(
                [match[1] for match in clicked], titles, file, number, "impressions"
            ),
            "clicks": [match[2] == "1" for match in clicked],
        }
        yield Row(values, str(file), number)


def _titles(file: Path) -> Iterator[tuple[str, str]]:
    for number, text in lines(file):
        cells = text.rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if len(cells) < 4:
            what = f"found {len(cells)} columns, allowed are {NEWS_COLUMNS}, at least 4"
            fix = "id, category, subcategory, title and so on, parted by tabs"
            raise DataError(what, fix=fix, file=file, line=number)
        yield cells[0], cells[3]


def _look_up(
    ids: list[str], titles: Mapping[str, str], file: Path, line: int, field: str
) -> list[str]:
    for k, news in enumerate(ids):
        if news not in titles:
            what = f"news {k + 1} of this list is not in news.tsv"
            fix = "take news.tsv and behaviors.tsv of the same release"
            raise DataError(what, fix=fix, file=file, line=line, field=field)
    return [titles[news] for news in ids]
