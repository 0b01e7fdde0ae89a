"""Parts of pages of results as Markdown: tables, names of rows, what is folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from benchmarks.evidence import spectra
from benchmarks.evidence.claims import Which, scores
from benchmarks.evidence.spectra import ENERGY, FIRST
from benchmarks.evidence.summary import Row, shown, spread
from secure_fl.algorithms.registry import ALGORITHMS

POOLED = "centralized"


def grid(
    heads: Sequence[str], lines: Sequence[Sequence[str]], align: str = "---:"
) -> Iterator[str]:
    """A table: names to the left, all else, if they are figures, to the right."""
    yield _line(heads)
    yield _line(["---"] + [align] * (len(heads) - 1))
    yield from (_line(line) for line in lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Lines that are shown when a reader asks for them."""
    if lines:
        yield from ("", f"<details><summary>{title}</summary>", "", *lines, "", "</details>")


def name(row: Row) -> str:
    """A row's method, and which of its models it is, if there are several."""
    return f"{row['method']} [{row['model']}]" if row["model"] else str(row["method"])


def label(row: Row) -> str:
    """A row's name, marked if something must be known of it."""
    return _marked(name(row), row)


def _marked(title: str, row: Row) -> str:
    return f"{title} \\*" if row["mark"] else title


def tier_score(row: Row, like: Row, tier: str, which: Which) -> str:
    """The mean over a tier's hospitals, as another row names them, and its deviation over seeds."""
    own = {party for party, found in like["parties"].items() if found == tier}
    if not own & set(row[which]["party"]):
        return ""
    return shown(spread(list(scores(row, which, own).values())))


def protection(row: Row) -> str:
    """How sums were protected, and at how many bits."""
    algorithm, settings = row["algorithm"]["name"], row["settings"]["protection"]
    if algorithm == POOLED:
        return "records pooled"
    if ALGORITHMS[algorithm].sums_nothing:
        return "nothing sent"
    mode = settings["mode"]
    return "none" if mode == "none" else f"{mode}, {settings['bits']} bits"


def leakage(rows: Sequence[Row]) -> Iterator[str]:
    """What each role got out of the runs that were recorded and attacked."""
    attacked = [row for row in _runs(rows) if row["leakage"]]
    roles = list(
        dict.fromkeys(
            role for row in attacked for found in row["leakage"].values() for role in found
        )
    )
    lines = [
        [_marked(row["method"], row), what]
        + [found.get(role, "").removesuffix(": ") for role in roles]
        for row in attacked
        for what, found in row["leakage"].items()
    ]
    if lines:
        yield ""
        yield (
            "What attacks on the first round got, recorded in every role's hands. Sums are for the "
            "parties, or the host, to read. All hospitals but one always read the last one's: no "
            "sum hides it from them."
        )
        yield ""
        yield from grid(("method", "looked for", *roles), lines)


def singular_values(rows: Sequence[Row]) -> Iterator[str]:
    """How many singular values hold an update's energy, round by round."""
    for row in (row for row in _runs(rows) if row["spectra"]):
        rounds = range(1, row["rounds"] + 1)
        yield ""
        yield (
            f"Percent of the singular values of the parties' mean update that hold "
            f"{100 * ENERGY:.0f} % of its energy, by round; and the percent of it that the first "
            f"{100 * FIRST:.0f} % hold. Means over layers and seeds. W: both of the feed-forward "
            "network."
        )
        yield ""
        heads = ["matrix", *(f"needed, round {at}" for at in rounds)]
        heads += [f"held, round {at}" for at in (rounds[0], rounds[-1])]
        yield from grid(heads, list(spectra.lines(row["spectra"])))


def _runs(rows: Sequence[Row]) -> list[Row]:
    """One row for each run, where it leaves several models behind."""
    return list({row["method"]: row for row in reversed(rows)}.values())[::-1]


def points(values: Sequence[float]) -> str:
    """A mean with its deviation, in points."""
    sd = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):+.1f}{sd}"
