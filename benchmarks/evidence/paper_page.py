"""A paper's page: `docs/results/TABLE.md`, all of it computed from finished cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.evidence.bounds import Verdict
from benchmarks.evidence.chapters import Chapter
from benchmarks.evidence.finished import Evidence, model_of
from benchmarks.evidence.markdown import grid
from benchmarks.evidence.sealing import differences, pairs
from benchmarks.evidence.sheets import SIGNS, sheet

COUNTED: tuple[Verdict, ...] = ("holds", "level", "does not hold", "cannot be told")
OPENING = """\
Our figures beside the paper's, written by `python -m benchmarks results` from the cells beside this
page; [results.md](../results.md) sums them up and says how claims are judged. Scores are main
metrics on test records x 100, mean ± sd over seeds. *Of fp32 FedAvg*: the part of what the whole
model's updates would take, up and down, as 32-bit floats. Signs: ✓ holds, ≈ level: less than two
points apart, ✗ does not hold, ? cannot be told from these runs, ○ not claimed, for the whole model
is not shown to be better than the small one here, – not run. A score without a deviation is one
seed's."""
APART = """\
The same cells with and without protection: test score after the last round, sealed less clear, in
points. *Models apart*: the norm of the difference of the trained values over that of the values,
estimated from sketches of 32 sums (± an eighth); beside it the nearest two seeds' clear models."""


def page(one: Chapter) -> str:
    """The whole page."""
    lines = [f"# {one.paper.title}", "", *OPENING.splitlines(), "", *_conditions(one.evidence)]
    lines += ["", *_overview(one)]
    for title, parts in one.sheets.items():
        lines += ["", *sheet(title, parts)]
    if found := pairs(one.evidence):
        lines += ["", "## Sealed against clear", "", *APART.splitlines(), "", *differences(found)]
    # Parts end with an empty line or not; there is never more than one.
    single = [line for before, line in zip(["", *lines], lines, strict=False) if before or line]
    return "\n".join(single).rstrip() + "\n"


def _overview(one: Chapter) -> Iterator[str]:
    """Every claim once, and how often it came out how."""
    found: dict[str, Counter[Verdict]] = {}
    for judgement in one.judged:
        found.setdefault(judgement.claim.what, Counter())[judgement.verdict] += 1
    lines = [
        [what, *(str(counted[verdict] or "") for verdict in COUNTED)]
        for what, counted in found.items()
    ]
    yield from grid(["claim, in so many settings", *(SIGNS[v] for v in COUNTED)], lines)


def _conditions(evidence: Evidence) -> Iterator[str]:
    """On what a table was measured, and how it is measured again."""
    table, outcomes = evidence.table.name, [outcome for _, outcome in evidence.finished]
    yield f"- again: `python -m benchmarks papers --table {table} --work docs/results/{table}`"
    yield f"- cells: {len(outcomes)} of {len(outcomes) + len(evidence.missing)} finished"
    if outcomes:
        seeds = sorted({outcome["seed"] for outcome in outcomes})
        yield f"- seeds: {_numbers(seeds)}, of most rows; bytes, spectra and audits have the first"
        yield f"- checkpoint: {'; '.join(sorted({model_of(o) for o in outcomes}))}"
        machines = {_machine(o["machine"]) for o in outcomes}
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
        what = "kept cells were made with other settings than today's table has, or with another"
        yield f"- {evidence.stale} {what} checkpoint; they are not shown"


def _machine(found: Mapping[str, Any]) -> str:
    """A processor, and the GPU beside it, if any."""
    return " and ".join(filter(None, (found["processor"], found.get("accelerator"))))


def _numbers(values: list[int]) -> str:
    return ", ".join(map(str, values))
