"""Tables of results as Markdown: our figures, and a paper's beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from benchmarks.evidence import spectra
from benchmarks.evidence.claims import Which, scores
from benchmarks.evidence.published import Beside
from benchmarks.evidence.spectra import ENERGY, FIRST
from benchmarks.evidence.summary import Row, shown, spread
from secure_fl.algorithms.registry import ALGORITHMS

ROUNDS: dict[Which, str] = {"last": "test, last round", "best": "test, best dev round"}
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


def figures(rows: Sequence[Row], beside: Sequence[Beside], which: Which) -> Iterator[str]:
    """The rows of one group on one set: scores x 100, and what they cost."""
    tiers = list(dict.fromkeys(t for row in rows for t in row["parties"].values() if t))
    other: Which = "best" if which == "last" else "last"
    heads = ["method", ROUNDS[which], *tiers, ROUNDS[other], *(column.head for column in beside)]
    heads += ["MB a party", "of fp32 FedAvg", "protection", "seeds"]
    tiered = max(rows, key=lambda row: len(set(row["parties"].values())))
    lines = []
    for row in rows:
        printed = [column.figures.get(name(row), "") for column in beside]
        like = row if any(row["parties"].values()) else tiered
        by_tier = [tier_score(row, like, tier, which) for tier in tiers]
        line = [label(row), shown(row[which]["test"]), *by_tier, shown(row[other]["test"])]
        line += [*printed, *costs(row)]
        lines.append([*line, ", ".join(str(seed) for seed in row["seeds"])])
    yield from grid(heads, lines)


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


def costs(row: Row) -> list[str]:
    """Bytes, their part of the whole model's, and what protected the sums."""
    less = row["bytes"].get("times_less")
    part = f"1/{less:.1f}" if less else ""
    return [f"{row['bytes']['both'] / 1e6:.2f}", part, protection(row)]


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
