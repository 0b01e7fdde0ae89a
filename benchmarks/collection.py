"""The data sets of the papers' tables, and the layout of their files.

Each set is a folder of gzipped JSON lines; benchmarks/results/README.md lists sources and digests.
Where a set has no public test records (GLUE), its dev file is the test, and a tenth of the training
file, picked by id, compares rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from secure_fl.data.examples import Example
from secure_fl.data.splits import Columns, Splits, load, split
from secure_fl.errors import DataError
from secure_fl.settings import Kind

PARTS = ("train", "dev", "test")
DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"  # next to the checkout
SUFFIX = ".jsonl.gz"
ALL = "all"  # one file whose column "split" names the part of each row


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set, and the main metric that the papers give for it."""

    kind: Kind
    metric: str
    labels: tuple[str, ...] | None = None
    positive: str | None = None
    files: tuple[str, ...] = PARTS
    corpus: str | None = None  # built in

    def paths(self, name: str, folder: Path) -> list[Path]:
        """List the files of the set in a folder."""
        return [] if self.corpus else [folder / name / f"{file}{SUFFIX}" for file in self.files]


BINARY = ("0", "1")
GLUE = ("train", "dev")
SETS: Mapping[str, DataSet] = MappingProxyType(
    {
        "ade_cls": DataSet("classification", "f1", BINARY, positive="1", files=(ALL,)),
        "sst2": DataSet("classification", "accuracy", BINARY, files=GLUE),
        "qnli": DataSet("pair", "accuracy", BINARY, files=GLUE),
        "ncbi_disease": DataSet("ner", "f1"),
        "ade_ner": DataSet("ner", "f1", files=(ALL,)),
        "psytar_ner": DataSet("ner", "f1"),
        "built-in ade": DataSet("classification", "accuracy", ("ade", "no-ade"), corpus="ade"),
        "built-in pairs": DataSet("pair", "accuracy", ("different", "same"), corpus="pairs"),
        "built-in ner": DataSet("ner", "f1", corpus="ner"),
    }
)


def find(folder: str | Path | None) -> Path | None:
    """Find the data folder: a given one must exist, the default one may."""
    if folder is None:
        return DEFAULT if DEFAULT.is_dir() else None
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise DataError("there is no such folder", fix="check --data", file=place)
    return place.resolve()


def require(names: Sequence[str], folder: Path | None) -> None:
    """Raise an error if files of these sets are missing."""
    for name in names:
        wanted = SETS[name].paths(name, folder or DEFAULT)
        for path in wanted:
            if folder is None or not path.is_file():
                fix = "give the folder of the data sets with --data; benchmarks/results/README.md "
                fix += "lists their sources and digests"
                raise DataError(f"the data set {name} is not here", fix=fix, file=path)


@cache
def read(name: str, folder: Path) -> Splits:
    """Read the three parts of a set."""
    about = SETS[name]
    paths = about.paths(name, folder)
    if about.files == (ALL,):
        return _by_column(load(paths[0], about.kind), paths[0], about.kind)
    train, *rest = (load(path, about.kind) for path in paths)
    if len(rest) == 1:
        return replace(split(train, dev=0.1, test=0.0, seed=0), test=rest[0])
    return Splits(train, *rest)


def _by_column(examples: Sequence[Example], path: Path, kind: Kind) -> Splits:
    # Read once more with the column of the parts as the id.
    parts = load(path, kind, columns=Columns(id="split"))
    rows = list(zip(examples, parts, strict=True))
    return Splits(*(tuple(example for example, row in rows if row.id == part) for part in PARTS))
