"""A wide table: what stands beside each other in a paper, its sets or settings as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.evidence.bounds import Verdict
from benchmarks.evidence.chapters import Part
from benchmarks.evidence.claims import Judgement, Which
from benchmarks.evidence.markdown import (
    folded,
    grid,
    label,
    leakage,
    name,
    protection,
    singular_values,
    tier_score,
)
from benchmarks.evidence.published import Beside
from benchmarks.evidence.summary import Row, describe, shown, three

SIGNS: dict[Verdict, str] = {
    "holds": "✓",
    "level": "≈",
    "does not hold": "✗",
    "cannot be told": "?",
    "no head-room": "○",
    "not run": "–",
}
ROUNDS: dict[Which, str] = {"last": "the last round", "best": "the best round on dev"}
OTHER: dict[Which, Which] = {"last": "best", "best": "last"}


def sheet(title: str, parts: Sequence[Part]) -> Iterator[str]:
    """A wide table with its claims, and what belongs to them."""
    yield f"## {title}"
    sources: dict[str, None] = dict.fromkeys(p.section.source for p in parts if p.section)
    for source in sources:
        yield from ("", source)
    run = [part for part in parts if part.rows]
    if run:
        yield ""
        yield from _conditions(run)
        yield ""
        yield from _scores(run)
        for mark in dict.fromkeys(row["mark"] for part in run for row in part.rows if row["mark"]):
            yield from ("", f"\\* {mark}")
        yield from _claims(run)
        yield from folded("Other rounds and tiers", list(_others(run)))
    for part in parts:
        if part.missing:
            yield from ("", f"{part.column}: missing {_listed(part)}.")
    for part in run:
        yield from folded(f"What attacks got: {part.column}", list(leakage(part.rows)))
        yield from singular_values(part.rows)


def _conditions(parts: Sequence[Part]) -> Iterator[str]:
    """On what the columns were measured; those alike together."""
    found: dict[str, list[str]] = {}
    for part in parts:
        seeds = sorted({seed for row in part.rows for seed in row["seeds"]})
        what = f"{describe(part.rows)} {', '.join(map(str, seeds))}"
        what += f"; test score after {ROUNDS[part.which]}"
        found.setdefault(what + (f", {part.tier} only" if part.tier else ""), []).append(
            part.column
        )
    for what, columns in found.items():
        yield f"- {', '.join(columns)}: {what}"


def _methods(parts: Sequence[Part]) -> dict[str, dict[int, Row]]:
    """Each method's rows, by column; in the order of the first columns."""
    found: dict[str, dict[int, Row]] = {}
    for k, part in enumerate(parts):
        for row in part.rows:
            found.setdefault(name(row), {})[k] = row
    return found


def _scores(parts: Sequence[Part]) -> Iterator[str]:
    """Scores x 100 with the paper's beside them, and what they cost."""
    heads = ["method"]
    shows: list[tuple[int, Beside | None]] = []
    printed: list[Beside] = []
    for k, part in enumerate(parts):
        heads.append(part.column)
        shows.append((k, None))
        for beside in part.beside:
            if not any(beside.within(known) for known in printed):
                printed.append(beside)
                heads.append(beside.head)
                shows.append((k, beside))
    lines = []
    for method, at in _methods(parts).items():
        line = [next(iter(dict.fromkeys(label(row) for row in at.values())))]
        for k, column in shows:
            if column is not None:
                line.append(column.figures.get(method, ""))
            else:
                line.append(score(parts[k], at[k]) if k in at else "")
        lines.append([*line, *_costs(list(at.values()))])
    yield from grid([*heads, "MB a party", "of fp32 FedAvg", "protection"], lines)


def score(part: Part, row: Row) -> str:
    """The score that a part's claims are about."""
    if part.tier:
        return tier_score(row, tiered(part), part.tier, part.which)
    return shown(row[part.which]["test"])


def tiered(part: Part) -> Row:
    """A row of the part whose hospitals are of several tiers."""
    return max(part.rows, key=lambda row: len(set(row["parties"].values())))


def _costs(rows: Sequence[Row]) -> list[str]:
    """Bytes and their part of the whole model's, from the least to the most; and protection."""
    sent = [row["bytes"]["both"] / 1e6 for row in rows]
    less = [row["bytes"]["times_less"] for row in rows if "times_less" in row["bytes"]]
    part = between(less, "1/")
    kinds = dict.fromkeys(protection(row) for row in rows)
    return [between(sent), part, "; ".join(kinds)]


def between(values: Sequence[float], before: str = "") -> str:
    """A range, or one number where its ends look alike."""
    if not values:
        return ""
    low, high = (before + three(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _others(parts: Sequence[Part]) -> Iterator[str]:
    """The scores that the wide table leaves out: of the other round, and of tiers."""
    heads, shows = ["method"], list[tuple[int, Which, str]]()
    for k, part in enumerate(parts):
        tiers = dict.fromkeys(t for row in part.rows for t in row["parties"].values() if t)
        found = [(part.which, tier) for tier in (["", *tiers] if part.tier else tiers)]
        for which, tier in [*found, (OTHER[part.which], "")]:
            if tier != part.tier or which != part.which:
                shows.append((k, which, tier))
                what = tier or (f"after {ROUNDS[which]}" if which != part.which else "all")
                heads.append(f"{part.column}: {what}")
    lines = []
    for at in _methods(parts).values():
        line = [label(next(iter(at.values())))]
        for k, which, tier in shows:
            row = at.get(k)
            if row is None:
                line.append("")
            elif tier:
                like = row if any(row["parties"].values()) else tiered(parts[k])
                line.append(tier_score(row, like, tier, which))
            else:
                line.append(shown(row[which]["test"]))
        lines.append(line)
    yield from grid(heads, lines)


def _claims(parts: Sequence[Part]) -> Iterator[str]:
    """Claims by columns as signs; the intervals that they rest on are folded away."""
    found: dict[str, dict[str, list[Judgement]]] = {}
    for part in parts:
        for judgement in part.judged:
            places = found.setdefault(judgement.claim.what, {})
            places.setdefault(part.column, []).append(judgement)
    if not found:
        return
    columns = [part.column for part in parts if part.judged]
    lines = [
        [what, *("".join(SIGNS[j.verdict] for j in at.get(column, ())) for column in columns)]
        for what, at in found.items()
    ]
    yield ""
    yield from grid(["claim", *columns], lines, align=":---:")
    yield from folded("The differences and their bounds", list(_bounds(found)))


def _bounds(found: dict[str, dict[str, list[Judgement]]]) -> Iterator[str]:
    for what, places in found.items():
        yield f"- {what}"
        for column, judged in places.items():
            for one in judged:
                yield f"    - {SIGNS[one.verdict]} {column}: {'; '.join(one.figures)}"
        failed = [j for judged in places.values() for j in judged if j.verdict == "does not hold"]
        for reason in dict.fromkeys(one.claim.reason for one in failed if one.claim.reason):
            yield f"    - *Likely reason:* {reason}."


def _listed(part: Part) -> str:
    """Name missing cells, those together that are missing with the same seeds."""
    seeds: dict[str, list[int]] = {}
    for cell in part.missing:
        seeds.setdefault(cell.method, []).append(cell.seed)
    methods: dict[tuple[int, ...], list[str]] = {}
    for method, found in seeds.items():
        methods.setdefault(tuple(found), []).append(method)
    return "; ".join(
        f"with seeds {', '.join(map(str, found))}: {' / '.join(names)}"
        for found, names in methods.items()
    )
