"""One hospital's records and model settings: plain data that any program can make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from secure_fl.data.examples import Example, Impression, Tagged, Text, without_labels
from secure_fl.data.loaders import dataset_rows, frame_rows, load
from secure_fl.data.records import build
from secure_fl.data.rows import Columns
from secure_fl.data.splits import Splits, patient, split
from secure_fl.errors import DataError
from secure_fl.settings import Kind, ModelSettings

if TYPE_CHECKING:
    import datasets

Read: TypeAlias = Callable[[Any], Sequence[Example]]
EXAMPLES = (Text, Tagged, Impression)


@dataclass(frozen=True, slots=True, repr=False)
class Silo:
    """One hospital: its name, its records, and its model settings."""

    name: str
    train: Sequence[Example]  # none: it can take part in evaluations and statistics only
    dev: Sequence[Example] = ()
    test: Sequence[Example] = ()
    role: Literal["party", "host"] = "party"
    tier: str | None = None
    model: ModelSettings | None = None  # its own architecture, where the algorithm allows it
    public: Sequence[Example] = ()  # D⁰, the same at all members; labels are removed
    table: Any = None  # records that are no examples, for algorithms that read tables

    def __post_init__(self) -> None:
        for part in ("train", "dev", "test", "public"):
            _require_examples(getattr(self, part), self.name, part)
        if self.table is None and not self.train and not self.test:
            raise DataError(
                "the training split is empty",
                fix="give more records, or smaller shares for dev and test",
                party=self.name,
                field="train",
            )
        object.__setattr__(self, "public", without_labels(self.public))

    def __repr__(self) -> str:
        """One line without any record, because notebooks are shared."""
        parts = ("train", "dev", "test", "public")
        counts = [f"{len(split)} {part}" for part in parts if (split := getattr(self, part))]
        return f"<Silo {self.name}, {self.role}: {', '.join(counts)}>"

    @classmethod
    def _of(
        cls, name: str, read: Read, parts: Mapping[str, Any], seed: int, columns: Columns | None
    ) -> Silo:
        try:
            splits = read_splits(read, parts, seed)
        except DataError as error:
            raise error.at(party=name) from None
        return cls(name, splits.train, splits.dev, splits.test)

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
        """Read files, folders or data sets of the hub; a number is a share of `train`."""
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
        """Read a hospital's data frames, with columns such as text and label.

        A number is a share of `train`, by the records' ids, or by position without an id column.
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
        """Read a hospital's data sets of `datasets`; a number is a share of `train`."""
        parts = {"train": train, "dev": dev, "test": test}
        return cls._of(
            name, lambda dataset: build(dataset_rows(dataset), kind, columns), parts, seed, columns
        )


def _require_examples(records: object, party: str, split: str) -> None:
    """Refuse anything but a sequence of examples."""
    listed = isinstance(records, Sequence) and not isinstance(records, str)
    odd = next((r for r in records if not isinstance(r, EXAMPLES)), None) if listed else records  # type: ignore[attr-defined]
    if odd is None:
        return
    what = f"{'a record is' if listed else 'the records are'} of the type {type(odd).__name__}"
    fix = (
        "give a list of Text(id, text, label=...), Tagged or Impression, or make the silo with "
        "Silo.from_pandas, Silo.from_dataset or Silo.from_files"
    )
    raise DataError(what, fix=fix, party=party, field=split)


def read_splits(read: Read, parts: Mapping[str, Any], seed: int) -> Splits:
    """Read each split; take a share of the training records, if any, where a number is given."""
    shares = {name: float(p) for name, p in parts.items() if isinstance(p, float | int)}
    given = {name: tuple(read(p)) for name, p in parts.items() if name not in shares}
    splits = Splits(())
    if "train" in given:
        dev, test = (shares.get(name, 0.0) for name in ("dev", "test"))
        splits = split(given.pop("train"), dev=dev, test=test, seed=seed, by=patient)
    return replace(splits, **given)
