"""A file of vectors: what the product gives, and what it must refuse with which code."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.vectors.product import code_of
from secure_fl.errors import SecureFLError

LONG = re.compile(r"[A-Za-z0-9+/=]{200,}")


def outcome(case: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Compute the product's result of a case, or the code of the check that refused it."""
    try:
        return {"result": kinds[case["kind"]](case)}
    except SecureFLError as error:
        return {"refused": code_of(error)}


@dataclass
class Book:
    """The cases of one file."""

    about: str
    kinds: Mapping[str, Callable[[Any], Any]]
    cases: list[dict[str, Any]] = field(default_factory=list)

    def ok(self, name: str, kind: str, **fields: Any) -> None:
        """Add a case with the product's result."""
        case = {"name": name, "kind": kind, **fields}
        self.cases.append({**case, "result": self.kinds[kind](case)})

    def no(self, code: str, name: str, kind: str, **fields: Any) -> None:
        """Add a case that must be refused with this code; `whole`: the case that it changes."""
        whole = fields.pop("whole", {})
        case = {"name": name, "kind": kind, **fields}
        found = outcome({**case, **whole}, self.kinds)
        if found != {"refused": code}:
            raise ValueError(f"{name}: {code} expected, {str(found)[:200]} found")
        self.cases.append({**case, "refused": code})

    def series(self, kind: str, prefix: str = "", **fields: Any) -> Series:
        """Start cases of one kind that change these fields; `prefix`: of all their codes."""
        return Series(self, kind, prefix, fields)

    def text(self) -> str:
        """Encode: a case a line, with short names for long strings that occur again."""
        cases = ",\n".join(json.dumps(_short(case), ensure_ascii=False) for case in self.cases)
        often = [text for text, n in Counter(LONG.findall(cases)).items() if n > 1]
        strings = {f"@{number:03}": text for number, text in enumerate(often)}
        for name, text in strings.items():
            cases = cases.replace(text, name)
        about, named = json.dumps(self.about), json.dumps(strings, indent=0)
        return f'{{"about": {about}, "strings": {named}, "cases": [\n{cases}\n]}}\n'


@dataclass(frozen=True)
class Series:
    """Cases of one kind, which change the fields of one case."""

    book: Book
    kind: str
    prefix: str
    fields: Mapping[str, Any]

    def ok(self, name: str, **changes: Any) -> None:
        """Add a case with the product's result."""
        self.book.ok(name, self.kind, **{**self.fields, **changes})

    def no(self, code: str, name: str, **changes: Any) -> None:
        """Add a case that must be refused with this code."""
        self.book.no(self.prefix + code, name, self.kind, **{**self.fields, **changes})


def _short(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compress the frames of a recording, in which most bytes are there twice."""
    if case["kind"] != "recording" or "frames" not in case:
        return case
    raw = [b64decode(data) for _, _, data in case["frames"]]
    sizes = [[*frame[:2], len(data)] for frame, data in zip(case["frames"], raw, strict=True)]
    packed = b64encode(zlib.compress(b"".join(raw), 9)).decode()
    return {**case, "frames": sizes, "data": packed}


def write(folder: Path, books: Mapping[str, Book]) -> None:
    """Write all files."""
    for name, book in books.items():
        (folder / f"{name}.json").write_text(book.text(), encoding="utf-8")
