"""One hospital's records, and what it brings to a federation: plain data that anyone can make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.frames import frame_rows, set_rows
from secure_fl.data.loaders import load
from secure_fl.data.public import without_labels
from secure_fl.data.records import build
from secure_fl.data.rows import Columns
from secure_fl.data.splits import Splits, split, whose
from secure_fl.errors import DataError
from secure_fl.settings import Kind, ModelSettings

if TYPE_CHECKING:
    import datasets

Read: TypeAlias = Callable[[Any], Sequence[Example]]
EXAMPLES = (Text, Tagged, Impression)


@dataclass(frozen=True, slots=True, repr=False)
class Silo:
    """One hospital: its name, its records, and what it brings to the federation."""

    name: str
    train: Sequence[Example]  # none: it can be evaluated and asked, and train nothing
    dev: Sequence[Example] = ()
    test: Sequence[Example] = ()
    role: Literal["party", "host"] = "party"
    tier: str | None = None
    model: ModelSettings | None = None  # its own architecture, where an algorithm allows that
    public: Sequence[Example] = ()  # D⁰, the same at all members; labels are taken off

    def __post_init__(self) -> None:
        for part in ("train", "dev", "test", "public"):
            _require_examples(getattr(self, part), self.name, part)
        if not self.train and not self.test:
            raise DataError(
                "the training split is empty",
                fix="give more records, or smaller shares for dev and test",
                party=self.name,
                field="train",
            )
        object.__setattr__(self, "public", without_labels(self.public))

    def __repr__(self) -> str:
        """In a line, and no record in it: notebooks are handed on."""
        parts = ("train", "dev", "test", "public")
        counts = [f"{len(found)} {part}" for part in parts if (found := getattr(self, part))]
        return f"<Silo {self.name}, {self.role}: {', '.join(counts)}>"

    @classmethod
    def _of(
        cls,
        name: str,
        read: Read,
        parts: Mapping[str, Any],
        seed: int,
        columns: Columns | None,
    ) -> Silo:
        by = None if columns is None or columns.patient is None else whose
        try:
            found = _dealt(read, parts, seed, by)
        except DataError as error:
            raise error.at(party=name) from None
        return cls(name, found.train, found.dev, found.test)

    @classmethod
    def from_files(
        cls,
        name: str,
        train: str | Path,
        dev: str | Path | float = 0.0,
        test: str | Path | float = 0.0,
        *,
        kind: Kind = "classification",
        columns: Columns | None = None,
        seed: int = 0,
    ) -> Silo:
        """A hospital's files, folders or data sets of the hub; a share takes it from `train`."""
        parts = {"train": train, "dev": dev, "test": test}
        return cls._of(
            name, lambda source: load(source, kind, columns=columns), parts, seed, columns
        )

    @classmethod
    def from_pandas(
        cls,
        name: str,
        train: Any,
        dev: Any = 0.0,
        test: Any = 0.0,
        *,
        kind: Kind = "classification",
        columns: Columns | None = None,
        seed: int = 0,
    ) -> Silo:
        """A hospital's data frames, with columns such as text and label; a share of `train`.

        Records are dealt to dev and test by their id, or by their place where there is no column
        of that name.
        """
        parts = {"train": train, "dev": dev, "test": test}
        return cls._of(
            name, lambda frame: build(frame_rows(frame), kind, columns), parts, seed, columns
        )

    @classmethod
    def from_dataset(
        cls,
        name: str,
        train: datasets.Dataset,
        dev: datasets.Dataset | float = 0.0,
        test: datasets.Dataset | float = 0.0,
        *,
        kind: Kind = "classification",
        columns: Columns | None = None,
        seed: int = 0,
    ) -> Silo:
        """A hospital's data sets of the library `datasets`; a share is taken from `train`."""
        parts = {"train": train, "dev": dev, "test": test}
        return cls._of(
            name, lambda found: build(set_rows(found), kind, columns), parts, seed, columns
        )


def _require_examples(found: object, party: str, split: str) -> None:
    """Refuse what only looks like records."""
    whole = isinstance(found, Sequence) and not isinstance(found, str)
    odd = next((r for r in found if not isinstance(r, EXAMPLES)), None) if whole else found  # type: ignore[attr-defined]
    if odd is None:
        return
    what = f"found {'a record' if whole else 'records'} of the type {type(odd).__name__}"
    fix = (
        "give a list of Text(id, text, label=...), Tagged or Impression, or make the silo with "
        "Silo.from_pandas, Silo.from_dataset or Silo.from_files"
    )
    raise DataError(what, fix=fix, party=party, field=split)


def _dealt(
    read: Read, parts: Mapping[str, Any], seed: int, by: Callable[[Example], str] | None
) -> Splits:
    """Read each split, or deal it from the training records where it is a share of them."""
    shares = {name: float(p) for name, p in parts.items() if isinstance(p, float | int)}
    given = {name: tuple(read(p)) for name, p in parts.items() if name not in shares}
    dev, test = (shares.get(name, 0.0) for name in ("dev", "test"))
    dealt = split(given["train"], dev=dev, test=test, seed=seed, by=by)
    return replace(dealt, **{name: part for name, part in given.items() if name != "train"})
