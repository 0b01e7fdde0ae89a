"""`docs/results.md`: every finished cell, the papers' figures beside ours, and what agrees.

The page is computed from the kept cells alone, so anyone can write it again, and a test does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import Bench, Judgement, Verdict
from benchmarks.evidence.finished import SEEDS, Evidence, gather, model_of, place_of
from benchmarks.evidence.markdown import figures, grid, leakage, singular_values
from benchmarks.evidence.published import Paper, Section
from benchmarks.evidence.sealing import differences, pairs
from benchmarks.evidence.summary import Row, describe, rows
from benchmarks.evidence.tables import TABLES, fedid_paper, fedkd_paper, inclusivefl_paper

PAPERS = (fedid_paper.PAPER, fedkd_paper.PAPER, inclusivefl_paper.PAPER)
TOLD: tuple[Verdict, ...] = ("holds", "does not hold", "cannot be told")
VERDICTS: tuple[Verdict, ...] = (*TOLD, "not run")
OPENING = """\
# Results

Our figures beside those of the papers. `python -m benchmarks results` writes this page from the
cells that are kept in `docs/results`, one real federation each. Only the papers' figures, their
claims and the likely reasons of failures are written by hand: see
`benchmarks/evidence/tables`.

These are runs of minutes on two cores, with a small checkpoint and a few hundred records; the
papers' took hours on GPUs. Absolute figures are not comparable, so claims are checked: who is above
whom, by how much, and what is sent. Cells that have not been run are named as missing. FedID's
learning rates were chosen on seed 0 and InclusiveFL's on dev records: seed 0 alone is no clean
test. Sizes and rates of the groups with 800 and 2400 records were chosen on seed 7. How:

- Scores are main metrics on the test records x 100, mean ± sd over seeds. *Of fp32 FedAvg*: the
  part of what the whole model's updates would take, up and down, as 32-bit floats.
- Claims about scores compare in pairs: a seed deals the same records to both methods. The mean
  difference d of n seeds, with its standard deviation s, has the bounds d ± t·s/√n, t the 95 %
  quantile of Student's distribution. A claim **holds** if the lower bound is above what it says,
  **does not hold** if the upper one is below, and else **cannot be told** from these runs. Of
  claims that are not true, one in twenty passes by chance. A claim against several needs all.
- Claims about bytes compare means; they hardly vary.
- After a claim stand the differences in points, with their bounds.
- A claim that does not hold is followed by a likely reason: a guess, not a measurement.
"""
APART = """\
The same cells with and without protection: test score after the last round, sealed less clear, in
points. *Models apart*: the norm of the difference of the trained values over that of the values,
estimated from sketches of 32 sums (± an eighth); beside it the nearest two seeds' clear models."""


@dataclass(frozen=True, slots=True)
class Part:
    """A group of rows on one set, and what the paper says of it."""

    group: str
    data: str
    rows: Sequence[Row]
    missing: Sequence[Cell]
    section: Section | None
    judged: Sequence[Judgement]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A paper's table of ours."""

    paper: Paper
    evidence: Evidence
    parts: Sequence[Part]

    def count(self) -> Counter[Verdict]:
        """How many claims came out how."""
        return Counter(judgement.verdict for part in self.parts for judgement in part.judged)


def page(folder: Path) -> str:
    """The whole page, of what a folder holds."""
    chapters = [chapter(paper, gather(TABLES[paper.table], folder)) for paper in PAPERS]
    lines = [*OPENING.splitlines(), "", *_overview(chapters)]
    for one in chapters:
        lines += ["", *_chapter(one)]
    # Parts end with an empty line or not; there is never more than one.
    single = [line for before, line in zip(["", *lines], lines, strict=False) if before or line]
    return "\n".join(single).rstrip() + "\n"


def chapter(paper: Paper, evidence: Evidence) -> Chapter:
    """Judge a paper by its cells."""
    listed = rows(evidence.finished, evidence.table.reference)
    parts = []
    for group, data in dict.fromkeys(place[:2] for place in evidence.places):
        section = next((s for s in paper.sections if s.covers(group, data)), None)
        here = [row for row in listed if (row["group"], row["data"]) == (group, data)]
        missing = [cell for cell in evidence.missing if place_of(cell)[:2] == (group, data)]
        judged: list[Judgement] = []
        if section is not None:
            bench = Bench(listed, group, data, section.which)
            judged = [bench.judge(claim) for claim in section.claims]
        parts.append(Part(group, data, here, missing, section, judged))
    return Chapter(paper, evidence, parts)


def _overview(chapters: Sequence[Chapter]) -> Iterator[str]:
    lines = []
    for one in chapters:
        finished, missing = len(one.evidence.finished), len(one.evidence.missing)
        counted = one.count()
        cells = f"{finished} of {finished + missing}"
        lines.append([one.paper.title, cells, *(str(counted[v]) for v in VERDICTS)])
    yield from grid(("paper", "cells finished", *VERDICTS), lines)


def _chapter(one: Chapter) -> Iterator[str]:
    yield f"## {one.paper.title}"
    yield ""
    yield from _conditions(one.evidence)
    yield ""
    yield from _verdicts(one)
    for part in one.parts:
        yield ""
        yield from _part(part)
    found = pairs(one.evidence)
    if found:
        yield ""
        yield "### Protection none against he+secagg"
        yield ""
        yield from APART.splitlines()
        yield ""
        yield from differences(found)


def _conditions(evidence: Evidence) -> Iterator[str]:
    """On what a table was measured, and how it is measured again."""
    table = evidence.table.name
    yield "```"
    yield f"python -m benchmarks papers --table {table} --work docs/results/{table}"
    yield "```"
    outcomes = [outcome for _, outcome in evidence.finished]
    if outcomes:
        seeds = sorted({outcome["seed"] for outcome in outcomes})
        yield ""
        yield f"- seeds: {', '.join(map(str, seeds))}; a whole table has {SEEDS}"
        yield f"- checkpoint: {'; '.join(sorted({model_of(o) for o in outcomes}))}"
        machines = {o["machine"]["processor"] for o in outcomes}
        threads = sorted({o["machine"]["torch_threads"] for o in outcomes})
        yield f"- machine: {'; '.join(sorted(machines))}; threads a run: {_numbers(threads)}"
        found: dict[str, set[str]] = {}
        for outcome in outcomes:
            for package, version in outcome["versions"].items():
                found.setdefault(package, set()).add(version)
        versions = (f"{package} {', '.join(sorted(v))}" for package, v in found.items())
        yield f"- versions: {'; '.join(versions)}"
        yield f"- CPU time of all cells: {sum(o['cpu_seconds'] for o in outcomes) / 3600:.1f} h"
    if evidence.stale:
        yield ""
        what = "kept cells were made with other settings than today's table has, or with another"
        yield f"{evidence.stale} {what} checkpoint; they are not shown."


def _verdicts(one: Chapter) -> Iterator[str]:
    """Every claim once, and where it came out how."""
    found: dict[str, dict[Verdict, list[Part]]] = {}
    for part in one.parts:
        for judgement in part.judged:
            places = found.setdefault(judgement.claim.what, {}).setdefault(judgement.verdict, [])
            places += [] if part in places else [part]
    lines = [
        [what, *(_places(places.get(verdict, ())) for verdict in TOLD)]
        for what, places in found.items()
        if set(places) & set(TOLD)
    ]
    if lines:
        yield from grid(("claim", *TOLD), lines, align="---")


def _places(parts: Sequence[Part]) -> str:
    """Name groups, and the sets of each."""
    sets: dict[str, list[str]] = {}
    for part in parts:
        sets.setdefault(part.group, []).append(part.data)
    return "; ".join(_title(group, ", ".join(data)) for group, data in sets.items())


def _title(group: str, data: str) -> str:
    return f"{group}: {data}" if group else data


def _part(part: Part) -> Iterator[str]:
    yield f"### {_title(part.group, part.data)}"
    yield ""
    if part.section is not None:
        yield f"{part.section.source}"
        yield ""
    if part.rows:
        beside = part.section.beside if part.section else ()
        yield f"Ours: {describe(part.rows)}."
        yield ""
        yield from figures(part.rows, beside, part.section.which if part.section else "last")
        marks = dict.fromkeys(row["mark"] for row in part.rows if row["mark"])
        for mark in marks:
            yield ""
            yield f"\\* {mark}"
        yield from leakage(part.rows)
        yield from singular_values(part.rows)
        yield ""
    if part.missing:
        yield f"Missing {_listed(part.missing)}."
        yield ""
    if part.rows:
        yield from (_judged(judgement) for judgement in part.judged)


def _listed(missing: Sequence[Cell]) -> str:
    """Name missing cells, those together that are missing with the same seeds."""
    seeds: dict[str, list[int]] = {}
    for cell in missing:
        seeds.setdefault(cell.method, []).append(cell.seed)
    methods: dict[tuple[int, ...], list[str]] = {}
    for method, found in seeds.items():
        methods.setdefault(tuple(found), []).append(method)
    return "; ".join(
        f"with seeds {_numbers(found)}: {' / '.join(names)}" for found, names in methods.items()
    )


def _judged(judgement: Judgement) -> str:
    text = f"- **{judgement.verdict}**: {judgement.claim.what} {'; '.join(judgement.figures)}."
    if judgement.verdict == "does not hold" and judgement.claim.reason:
        text += f" *Likely reason:* {judgement.claim.reason}."
    return text


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
