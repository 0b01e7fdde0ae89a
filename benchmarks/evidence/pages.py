"""The one writer of tables of results, and the pages that are computed from finished cells."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.evidence import defaults
from benchmarks.evidence.cells import Outcome, model_of
from benchmarks.evidence.claims import Judgement, Verdict, judge, tier_parties
from benchmarks.evidence.rows import Row, models_of, rows, shown, three
from benchmarks.evidence.store import IDENTITY, Evidence, gather
from benchmarks.evidence.tables import PAPERS, table_of
from benchmarks.evidence.tables.base import Section
from benchmarks.report import Grid, fill
from secure_fl.algorithms.registry import ALGORITHMS

VERDICTS: tuple[Verdict, ...] = ("holds", "level", "fails", "undecided")
PAPER_PAGE = """\
`python -m benchmarks results` writes this page from the finished cells in this folder.
[claims.md](claims.md) lists the claims and explains how they are judged. Scores are main metrics on
the test records x 100 after the last round, mean ± standard deviation over seeds.
*Of fp32 FedAvg*: bytes as a fraction of those of FedAvg of the whole model with 32-bit floats."""
CLAIMS_PAGE = """\
# Claims

`python -m benchmarks results` writes this page from the finished cells in this folder.
[Results](../../docs/results.md) summarises it."""
CLAIMS_INTRO = """\
Differences are in points (scores, loss and AUROC x 100) with their 95 % bounds; positive is better
for the method that the claim names first. Rows without a verdict are measurements, not claims."""
JUDGING = """\
## How claims are judged

- The same seed gives both methods the same records, so scores are compared seed by seed. The mean
  difference d of n seeds with standard deviation s has the bounds d ± t·s/√n, t the 95 % quantile
  of Student's distribution.
- A claim **holds** if the lower bound is above the claimed difference, and **fails** if the upper
  bound is below it. A claim to be better is **level** if neither is true and both bounds are within
  two points of zero. Otherwise it is **undecided**.
- One in twenty false claims passes by chance. A claim against several methods needs all of them.
  Claims about bytes compare means.
- Learning rates decay to zero over a run, except in FedID's tables as printed. They were chosen on
  other seeds: FedKD's and InclusiveFL's on seed 7, the skewed settings' on seeds 100 to 103, the
  adapters' on seed 100. [Whole data sets](whole.md) have rates of their own.
"""


def pages(folder: Path, page: Path) -> dict[Path, str]:
    """Write the pages of claims, of each paper and of defaults, and fill the table of `page`."""
    evidence = {name: gather(table_of(name), folder) for name in PAPERS}
    listed = {name: rows(e.finished, e.table.reference) for name, e in evidence.items()}
    judged = {
        name: [found for claim in one.table.claims for found in judge(listed[name], claim)]
        for name, one in evidence.items()
    }
    found = {page: fill(page.read_text(), lambda _: _summary(judged))}
    found[folder / "claims.md"] = _claims_page(evidence, judged)
    for name, one in evidence.items():
        found[folder / f"{name}.md"] = _text(_paper(one, listed[name]))
    found[folder / f"{defaults.NAME}.md"] = _text(defaults.page(folder))
    return found


def tables(listed: Sequence[Row], sections: Sequence[Section] = ()) -> list[Grid]:
    """Lay out one table for each group and data set."""
    laid = []
    for (group, data), found in groupby(listed, key=lambda row: (row.group, row.data)):
        section = next((s for s in sections if s.covers(group, data)), None)
        here = list(found)
        title = f"{group}: {data}" if group else data
        laid.append(Grid(title, *_scores(here, section), _notes(here)))
    return laid


def _scores(here: Sequence[Row], section: Section | None) -> tuple[list[str], list[list[str]]]:
    """Lay out the scores of one group on one data set, with the paper's and the costs."""
    printed = section.printed if section else {}
    tiers = list(dict.fromkeys(t for r in here for t in r.first["parties"].values() if t))
    heads = ["method", "test", *printed, *(f"test, {tier}" for tier in tiers)]
    heads += ["test, best dev round", "MB a party", "of fp32 FedAvg", "protection"]
    heads += ["CPU s", "seeds"]
    lines = []
    for row in here:
        by_tier = [tier_parties(here, row, tier) & row.tested() for tier in tiers]
        less = row.times_less
        lines.append(
            [
                row.name + ("†" if row.note else ""),
                shown(row.values()),
                *(figures.get(row.name, "") for figures in printed.values()),
                *(shown(row.values(parties=party)) if party else "" for party in by_tier),
                shown(row.values(which="best")),
                three(row.bytes / 1e6),
                f"1/{three(less)}" if less else "",
                _protection(row),
                f"{row.mean('cpu_seconds'):.0f}",
                str(len(row.outcomes)),
            ]
        )
    return heads, lines


def _notes(here: Sequence[Row]) -> list[str]:
    return [_describe(here), *dict.fromkeys(f"† {row.note}" for row in here if row.note)]


def _describe(here: Sequence[Row]) -> str:
    """Describe the conditions of some rows, with ranges where they differ."""

    def counted(counts: Sequence[int], what: str) -> str:
        low, high = min(counts), max(counts)
        return f"{low:,} {what}" if low == high else f"{low:,} to {high:,} {what}"

    parts = dict.fromkeys(part for row in here for part in row.first["records"])
    records = [counted([r.first["records"].get(part, 0) for r in here], part) for part in parts]
    parties = counted([len(row.first["parties"]) for row in here], "parties")
    rounds = counted([row.first["rounds"] for row in here], "rounds")
    return f"{here[0].first['metric']} x 100; {parties}; {', '.join(records)} records; {rounds}."


def _protection(row: Row) -> str:
    """Name the protection of sums, with its bits."""
    algorithm, settings = row.first["algorithm"]["name"], row.first["settings"]["protection"]
    if algorithm == "centralized":
        return "records pooled"
    if ALGORITHMS[algorithm].sums_nothing:
        return "nothing sent"
    mode = settings["mode"]
    return "none" if mode == "none" else f"{mode}, {settings['bits']} bits"


def _paper(evidence: Evidence, listed: Sequence[Row]) -> Iterator[str]:
    table = evidence.table
    yield from (f"# {table.title}", "", PAPER_PAGE, "", *_conditions(evidence))
    for grid in tables(listed, table.sections):
        yield from ("", f"## {grid.title}", "")
        here = [row for row in listed if grid.title in (f"{row.group}: {row.data}", row.data)]
        if section := table.section(here[0].group, here[0].data):
            yield from (section.source, "")
        yield from grid.markdown()
    if evidence.missing:
        yield from ("", "## Missing cells", "")
        yield from (f"- {cell.title}" for cell in evidence.missing)


def _conditions(evidence: Evidence) -> Iterator[str]:
    """List the machines, versions and the command of a table's cells."""
    name, outcomes = evidence.table.name, [outcome for _, outcome in evidence.finished]
    command = f"python -m benchmarks papers --table {name} --data DATA"
    if any("half precision" in model_of(outcome) for outcome in outcomes):
        command += " --model HALVED"
    yield f"- to reproduce: `{command} --work benchmarks/results/{name}`"
    yield "- data sets and checkpoint: [README](README.md); `--seeds` for rows of more than 3 seeds"
    yield f"- cells: {_finished(evidence)} finished"
    if evidence.unused:
        yield f"- stored outcomes with other settings or checkpoints, not shown: {evidence.unused}"
    yield f"- checkpoint: {'; '.join(sorted({model_of(o) for o in outcomes}))}"
    yield f"- machine: {'; '.join(sorted({_machine(o['machine']) for o in outcomes}))}"
    found: dict[str, set[str]] = {}
    for outcome in outcomes:
        for package, version in outcome["versions"].items():
            found.setdefault(package, set()).add(version)
    versions = (f"{package} {', '.join(sorted(v))}" for package, v in found.items())
    yield f"- versions: {'; '.join(versions)}"
    yield f"- CPU time of all cells: {sum(o['cpu_seconds'] for o in outcomes) / 3600:.1f} h"


def _finished(evidence: Evidence) -> str:
    done, missing = len(evidence.finished), len(evidence.missing)
    return f"{done} of {done + missing}"


def _machine(found: Mapping[str, Any]) -> str:
    return " and ".join(filter(None, (found["processor"], found.get("accelerator"))))


def _summary(judged: Mapping[str, Sequence[Judgement]]) -> Grid:
    """Lay out one line for each claim, with the verdicts on its data sets."""
    lines = []
    for name, judgements in judged.items():
        for text, some in groupby(judgements, key=lambda found: found.claim.text):
            found = [f"{it.data}: {it.verdict}" for it in some if it.verdict]
            if found:
                link = f"[{name}](../benchmarks/results/{name}.md)"
                lines.append([link, text, "; ".join(found)])
    return Grid("", ["table", "claim", "verdict"], lines, align="---")


def _claims_page(
    evidence: Mapping[str, Evidence], judged: Mapping[str, Sequence[Judgement]]
) -> str:
    every = [found for some in judged.values() for found in some]
    lines = [CLAIMS_PAGE, "", *_overview(evidence, judged), "", *_certainty(evidence, every), ""]
    lines += [CLAIMS_INTRO]
    for name, one in evidence.items():
        title = f"[{one.table.title}]({name}.md)"
        lines += ["", f"## {title}", "", *_claims(judged[name])]
        if one.table.remarks:
            lines += ["", one.table.remarks]
    lines += ["", *_summary_of_changes([c for one in evidence.values() for c in changes(one)])]
    return _text([*lines, "", JUDGING])


def _overview(
    evidence: Mapping[str, Evidence], judged: Mapping[str, Sequence[Judgement]]
) -> Iterator[str]:
    lines = []
    for name, one in evidence.items():
        counts = Counter(found.verdict for found in judged[name])
        counted = [str(counts[verdict]) for verdict in VERDICTS]
        link = f"[{one.table.title}]({name}.md)"
        lines.append([link, _finished(one), *counted])
    yield from Grid("", ["table", "cells finished", *VERDICTS], lines).markdown()


def _certainty(evidence: Mapping[str, Evidence], every: Sequence[Judgement]) -> Iterator[str]:
    counted = [found for found in every if found.counted]
    widths = [width for found in counted for width in found.widths]
    outcomes = [outcome for one in evidence.values() for _, outcome in one.finished]
    hours = sum(outcome["cpu_seconds"] for outcome in outcomes) / 3600
    undecided = sum(found.verdict == "undecided" for found in counted)
    half = f"{median(widths):.1f}" if widths else "–"
    decided = f"{len(counted) - undecided} of the {len(counted)} claims have a verdict"
    if not undecided:
        decided = f"All {len(counted)} claims have a verdict"
    yield (
        f"{decided}. The bounds of the {len(widths)} differences of scores are {half} points from "
        f"the mean, in the median. All cells took {hours:.0f} CPU hours."
    )


def _claims(judged: Sequence[Judgement]) -> Iterator[str]:
    lines = [
        [found.claim.text, found.data, "; ".join(found.figures), found.verdict] for found in judged
    ]
    heads = ["claim", "data", "compared with", "verdict"]
    yield from Grid("", heads, lines, align="---").markdown()
    failed = [found.claim.reason for found in judged if found.verdict == "fails"]
    for reason in filter(None, dict.fromkeys(failed)):
        yield from ("", f"Likely reason of a failed claim: {reason}.")


def _text(lines: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


CLEAR, SEALED = "none", "he+secagg"


def changes(evidence: Evidence) -> list[float]:
    """Subtract the score of every model in the clear from that of the same model sealed, in points.

    A run that belongs to several groups is compared once.
    """
    clear = {_run(o): o for _, o in evidence.finished if _mode(o) == CLEAR}
    found, seen = [], set()
    for _, sealed in evidence.finished:
        run, bits = _run(sealed), sealed["settings"]["protection"]["bits"]
        silent = ALGORITHMS[sealed["algorithm"]["name"]].sums_nothing
        if _mode(sealed) == SEALED and run in clear and not silent and (run, bits) not in seen:
            seen.add((run, bits))
            found += [100 * (_score(sealed, m) - _score(clear[run], m)) for m in models_of(sealed)]
    return found


def _summary_of_changes(found: Sequence[float]) -> Iterator[str]:
    """Sum up the changes of all tables."""
    if found:
        yield from ("## Sealed compared with clear", "")
        yield (
            f"In {len(found)} pairs of models that differ only in the protection of their run, "
            f"scores change by {fmean(found):+.1f} points on average and by at most "
            f"{max(map(abs, found)):.1f} points. Tests show that sealed and clear sums are equal "
            "up to rounding (`tests/conformance`)."
        )


def _score(outcome: Outcome, model: str) -> float:
    return Row("", "", "", model, "", {0: outcome}, None).values().get(0, 0.0)


def _mode(outcome: Outcome) -> str:
    return str(outcome["settings"]["protection"]["mode"])


def _run(outcome: Outcome) -> str:
    """Identify a run without its protection."""
    protection = outcome["settings"]["protection"]
    rest = {k: v for k, v in protection.items() if k not in ("mode", "bits")}
    settings = outcome["settings"] | {"protection": rest}
    identity = {name: outcome[name] for name in IDENTITY} | {"settings": settings}
    return json.dumps(identity, sort_keys=True)
