"""Results of every algorithm at its default settings: the benchmark and its page.

Only data sets, sizes and the seed are chosen here. Sums are in the clear: protection changes scores
by less than seeds do (benchmarks/results/claims.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoint import BUILT_IN
from benchmarks.collection import PARTS, SETS, DataSet
from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell, Outcome
from benchmarks.evidence.one_class import one_class
from benchmarks.evidence.store import Store
from benchmarks.evidence.tables.base import Table
from benchmarks.report import Columns, Grid, Report, Target
from secure_fl.algorithms.inclusivefl.settings import Tiered
from secure_fl.algorithms.registry import BUILT_IN as ALGORITHMS
from secure_fl.algorithms.registry import Entry
from secure_fl.errors import SettingsError

NAME = "defaults"
SEED, PARTIES = 7, 4  # settings were chosen on seed 107
WORK = Path(__file__).parents[2] / "benchmarks" / "results" / NAME
PUBLIC, LABELLED = 0.5, 0.2  # of the records, and of the public ones, for algorithms with a host
TIERS = ("weak", "weak", "medium", "strong")
OPENING = f"""\
# Results at default settings

Only a model and records are given; everything else is a default of the library. {PARTIES}
hospitals, seed {SEED} (defaults were chosen on others), test records after the last round, sums in
the clear. Algorithms with a host have half of the records public, a fifth of those labelled. The
built-in model learns built-in records, a checkpoint of six layers all others. Cells ran on two
cores or on an NVIDIA H100.

To reproduce: `python -m benchmarks {NAME}` runs the missing cells (`--set sst2`, `--only fedavg`),
with data sets and checkpoint as in the [README](README.md). `python -m benchmarks results` writes
this page. Empty places were not run, or the algorithm
cannot learn that task. FedKD's row without a student is its teachers. In `built-in ner` each
hospital marks other kinds of entities: federated dropout and FetchSGD refuse them, and pooled
records contradict each other."""
SCORES = """\
Accuracy, or F1 of ade_cls and ner, x 100; in brackets the share of the most frequent answer. **Bold
models answer one class**: more than 95 % of their answers, or those of most hospitals' models, are
the same although the test records are not."""
RANKS = "AUROC x 100: the ability to rank two classes, whatever the threshold; chance is 50."
RECORDS = "Of all hospitals together; with a host, of hospitals and public records together."


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records of a set, in all parts of the hospitals together."""

    train: int
    dev: int
    test: int
    of: str = ""  # the set, if the title is not its name


SIZES: Mapping[str, Sizes] = {
    "built-in ade": Sizes(1600, 100, 400),
    "built-in ner": Sizes(1600, 100, 400),
    "built-in pairs": Sizes(2000, 100, 400),
    "sst2": Sizes(300, 20, 200),
    "ade_cls": Sizes(300, 20, 200),
    "ade_cls, 2,000 records": Sizes(2000, 20, 200, of="ade_cls"),
    "qnli": Sizes(2000, 20, 200),
}


@dataclass(frozen=True, slots=True)
class DefaultsRow:
    """One model of one run."""

    set: str
    algorithm: str
    model: str  # empty for the only one
    metric: str
    score: float
    auroc: float | None
    answers: Mapping[str, float]
    one_class: bool
    cpu_seconds: float

    @property
    def name(self) -> str:
        """The algorithm, with the model if there are several."""
        return f"{self.algorithm} [{self.model}]" if self.model else self.algorithm

    @property
    def shown(self) -> str:
        """The score and the share of the most frequent answer; bold at one class."""
        most = self.answers.get("answers")
        text = f"{100 * self.score:.1f}" + (f" ({most:.0%})" if most is not None else "")
        return f"**{text}**" if self.one_class else text


COLUMNS: Columns = {
    "set": "{r.set}",
    "algorithm": "{r.name}",
    "score": "{r.shown}",
    "": "{r.metric}",
    "one class": lambda row: "YES" if row.one_class else "no",
    "CPU s": "{r.cpu_seconds:.0f}",
}


def measure(
    sets: Sequence[str] = tuple(SIZES),
    only: str = "",
    records: int | None = None,
    work: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Report:
    """Run the missing cells of these sets and report all models.

    `records`: another number of training records; such cells are saved only in a given `work`.
    """
    from benchmarks.evidence.papers import measure as finish
    from benchmarks.evidence.papers import plan

    if work is None and records is not None:
        with TemporaryDirectory(prefix="defaults-") as folder:
            return measure(sets, only, records, Path(folder), tell)
    work = work or WORK
    made = cells(sets, only, records)
    planned = plan(Table(NAME, NAME, lambda _: made), seeds=1)
    finish(planned, work=work, tell=tell)
    store = Store(work)
    outcomes = [(cell, store.find(cell, planned.inputs.model.identity)) for cell in made]
    found = [row for cell, outcome in outcomes if outcome for row in rows(cell, outcome)]
    return Report(
        NAME,
        {"parties": PARTIES} | {name: asdict(SIZES[name]) for name in sets},
        SEED,
        {"rows": [asdict(row) for row in found]},
        [Grid.of("every algorithm at its defaults", found, COLUMNS)],
        (Target("models at one class", 0, sum(row.one_class for row in found)),),
    )


def cells(sets: Iterable[str], only: str = "", records: int | None = None) -> list[Cell]:
    """List a cell for each set and each algorithm that can learn it."""
    return [
        cell(title, algorithm, records)
        for title in sets
        for algorithm, entry in ALGORITHMS.items()
        if not entry.trains_nothing and only in algorithm
        if not (entry.has_host and set_of(title).kind == "ner")
    ]


def set_of(title: str) -> DataSet:
    """Return the data set of a title."""
    if title not in SIZES:
        fix = f"known sets are {'; '.join(SIZES)}"
        raise SettingsError(f"there are no sizes for {title!r}", fix=fix, option="--set")
    return SETS[SIZES[title].of or title]


def cell(title: str, algorithm: str, records: int | None = None) -> Cell:
    """Define a run with records and a model only: the built-in one for built-in records."""
    about, size, entry = set_of(title), SIZES[title], ALGORITHMS[algorithm]
    sets = (size.of or title,)
    spread = Spread(sets, PARTIES, records or size.train, dev=size.dev, test=size.test)
    return Cell(
        title,
        algorithm,
        SEED,
        _dealt(spread, entry),
        {"name": algorithm},
        {"name": BUILT_IN} if about.corpus is not None else {},
        protection={"mode": "none", "min_cohort": 1},  # tiers have one or two hospitals
        max_length=128,
    )


def _dealt(spread: Spread, entry: Entry) -> Spread:
    if entry.has_host:
        return replace(spread, public=PUBLIC, labelled=LABELLED)
    if issubclass(entry.settings, Tiered) or entry.name == "heterofl":
        return replace(spread, tiers=TIERS)
    return spread


def rows(cell: Cell, outcome: Outcome) -> Iterator[DefaultsRow]:
    """Yield a row for each model of a run."""
    last, metric = outcome["metrics"]["last"], outcome["metric"]
    for model, answers in outcome["answers"].items():
        split = f"{model}/test" if model else "test"
        scores = last.get("pooled", {}).get(split) or last["mean"][split]
        yield DefaultsRow(
            cell.data,
            cell.method,
            model,
            metric,
            round(scores[metric], 4),
            scores.get("auroc"),
            answers,
            one_class(answers),
            round(outcome["cpu_seconds"], 1),
        )


def page(folder: Path) -> Iterator[str]:
    """Write `benchmarks/results/defaults.md` from the finished cells."""
    store = Store(folder / NAME)
    outcomes = [(cell, store.find(cell, store.model)) for cell in cells(SIZES)]
    found = [row for cell, outcome in outcomes if outcome for row in rows(cell, outcome)]
    titles = [title for title in SIZES if any(row.set == title for row in found)]
    ranked = [title for title in titles if set_of(title).kind != "ner"]
    scores = _matrix(found, titles, lambda row: row.shown)
    ranks = _matrix(found, ranked, lambda r: "" if r.auroc is None else f"{100 * r.auroc:.0f}")
    counts = [[part, *(f"{getattr(SIZES[t], part):,}" for t in titles)] for part in PARTS]
    yield OPENING
    for title, text, heads, lines in (
        ("Scores", SCORES, titles, [*scores, _largest(found, titles)]),
        ("Ranks", RANKS, ranked, ranks),
        ("Records", RECORDS, titles, counts),
    ):
        yield from ("", f"## {title}", "", text, "")
        yield from Grid("", ["", *heads], lines).markdown()


def _matrix(
    found: Iterable[DefaultsRow], titles: Sequence[str], show: Callable[[DefaultsRow], str]
) -> list[list[str]]:
    """Lay out a line for each algorithm, or each of its models, and a column for each set."""
    lines: dict[str, dict[str, str]] = {}
    for row in sorted(found, key=lambda row: list(ALGORITHMS).index(row.algorithm)):
        lines.setdefault(row.name, {})[row.set] = show(row)
    return [[label, *(line.get(title, "") for title in titles)] for label, line in lines.items()]


def _largest(found: Iterable[DefaultsRow], titles: Sequence[str]) -> list[str]:
    """Lay out the shares of the largest class; a host has other test records than hospitals."""
    shares: dict[str, set[str]] = {title: set() for title in titles}
    for row in found:
        if "majority" in row.answers:
            shares[row.set].add(f"{row.answers['majority']:.0%}")
    return ["*largest class*", *(", ".join(sorted(shares[title])) for title in titles)]
