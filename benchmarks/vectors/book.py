"""A file of vectors: what the product gives, and what it must refuse with which code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.vectors.product import code_of
from secure_fl.errors import SecureFLError


def outcome(case: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """What the product gives for a case: a result, or the code of the check that refused it."""
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

    def text(self) -> str:
        """Encode: a case a line, so that a change of one shows as one."""
        cases = ",\n".join(json.dumps(case, ensure_ascii=False) for case in self.cases)
        return f'{{"about": {json.dumps(self.about)}, "cases": [\n{cases}\n]}}\n'


def write(folder: Path, books: Mapping[str, Book]) -> None:
    """Write all files."""
    for name, book in books.items():
        (folder / f"{name}.json").write_text(book.text(), encoding="utf-8")
