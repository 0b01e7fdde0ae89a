"""`docs/results/defaults.md`: what every algorithm learns with nothing said, from kept cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.collection import PARTS
from benchmarks.evidence.defaults import NAME, PARTIES, SEED, SIZES, Row, cells, rows, set_of
from benchmarks.evidence.finished import said, wanted
from benchmarks.evidence.kept import FILE, read
from benchmarks.evidence.markdown import grid
from secure_fl.algorithms.registry import ALGORITHMS

OPENING = f"""\
# What is learned with nothing said

Nothing but a model and records is given; all else is what the library does by itself. {PARTIES}
hospitals, seed {SEED} (defaults were chosen on others), test records after the last round, sums in
the clear. Where there is a host, half of the records are public, and a fifth of those labelled. The
built-in model learns built-in records, a checkpoint of six layers all else. A cell ran on two cores
or on an NVIDIA H100, as its line says.

`python -m benchmarks {NAME}` runs what is missing and goes on from the cells beside this page
(`--set sst2`, `--only fedavg`); `python -m benchmarks results` writes it. An empty place was not
run, or the algorithm cannot learn that task. Of FedKD the row without a student is its teachers.
In ner each hospital marks other kinds of entities, which federated dropout and FetchSGD refuse, and
by which records in one place contradict one another.
[Why defaults are as they are](../choices.md#defaults)."""
SCORES = """\
Accuracy, of ade_cls and ner F1, x 100; in brackets the share of the most frequent answer. **Bold is
at one class**: more than 95 % of the answers, on test records that are less one-sided, or most
hospitals' own models are."""
RANKS = """\
Whether a model tells two classes apart at all, whatever it answers: AUROC x 100; chance is 50."""
RECORDS = """\
Of all hospitals together; where there is a host, of these and what is public."""

Show = Callable[[Row], str]


def page(folder: Path) -> str:
    """The whole page."""
    found = list(_measured(folder))
    titles = [title for title in SIZES if any(row.set == title for row in found)]
    ranked = [title for title in titles if set_of(title).kind != "ner"]
    lines = [*OPENING.splitlines(), "", "## Scores", "", *SCORES.splitlines(), ""]
    lines += grid(["", *titles], [*_matrix(found, titles, _score), _largest(found, titles)])
    lines += ["", "## Ranks", "", *RANKS.splitlines(), ""]
    lines += grid(["", *ranked], _matrix(found, ranked, _rank))
    lines += ["", "## Records", "", *RECORDS.splitlines(), ""]
    lines += grid(["", *titles], [_count(part, titles) for part in PARTS])
    return "\n".join(lines) + "\n"


def _measured(folder: Path) -> Iterator[Row]:
    """All models of the finished runs, of equal runs the latest."""
    kept = [(outcome, said(outcome)) for outcome in read(folder / NAME / FILE).values()]
    for cell in cells(SIZES):
        asked = wanted(cell)
        if fitting := [outcome for outcome, what in kept if asked.fits(what)]:
            yield from rows(cell, fitting[-1])


def _matrix(found: Iterable[Row], titles: Sequence[str], show: Show) -> list[list[str]]:
    """A line for each algorithm, or each of its models; a column for each set."""
    lines: dict[str, dict[str, str]] = {}
    for row in sorted(found, key=lambda row: list(ALGORITHMS).index(row.algorithm)):
        lines.setdefault(row.name, {})[row.set] = show(row)
    return [[label, *(line.get(title, "") for title in titles)] for label, line in lines.items()]


def _score(row: Row) -> str:
    most = row.answers.get("answers")
    shown = f"{100 * row.score:.1f}" + (f" ({most:.0%})" if most is not None else "")
    return f"**{shown}**" if row.one_class else shown


def _rank(row: Row) -> str:
    return "" if row.auroc is None else f"{100 * row.auroc:.0f}"


def _largest(found: Iterable[Row], titles: Sequence[str]) -> list[str]:
    """Hosts have other test records than hospitals, so a set may have two shares."""
    shares: dict[str, set[str]] = {title: set() for title in titles}
    for row in found:
        if "majority" in row.answers:
            shares[row.set].add(f"{row.answers['majority']:.0%}")
    return ["*largest class*", *(", ".join(sorted(shares[title])) for title in titles)]


def _count(part: str, titles: Sequence[str]) -> list[str]:
    return [part, *(f"{getattr(SIZES[title], part):,}" for title in titles)]
