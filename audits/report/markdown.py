"""Renders the report as Markdown with GitHub's tables: the page's words, and figures for plots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from secure_fl.audits.document import AuditDocument, PrivacyPart
from secure_fl.audits.report import comparison, matrix_cells, report_tables, sentences, trade_off
from secure_fl.audits.report.report_tables import ReportTable
from secure_fl.audits.report.sentences import contradictions
from secure_fl.audits.report.terms import (
    ACCESS,
    STATUS,
    VERDICTS,
    Term,
    capital,
    epsilon,
    listing,
    number,
    ordered,
    plain,
)


def markdown(documents: Sequence[AuditDocument]) -> str:
    """The report, of one run or of several: the same documents give the same bytes."""
    if not documents:
        raise ValueError("a report is about one run at least")
    names = listing(document.run.name for document in documents)
    blocks = [f"# Privacy audit: {text(names)}"]
    if len(documents) > 1:
        blocks += _compared(documents)
    for place, document in enumerate(documents, start=1):
        number_of = f"{place}\\. " if len(documents) > 1 else ""
        blocks += [f"## {number_of}{text(document.run.name)}", *_run(document)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def text(value: str) -> str:
    """Text on one line in which nothing is markup: names of parties are data."""
    line = " ".join(value.split())
    line = re.sub(r"([\\`*_\[\]|~#$!])", r"\\\1", line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"^([-+=])", r"\\\1", line)
    line = re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", line)
    return re.sub(r"(?i)\b(https?|ftp|www)(?=[:.])", r"\1\\", line)


def table(content: ReportTable) -> str:
    """A table with its caption above; nothing if it has no rows."""
    if not content.rows:
        return ""
    rule = ["---"] + ["---:" if content.figures else "---"] * (len(content.header) - 1)
    lines = [[text(name) for name in content.header], rule]
    lines += [[text(cell) for cell in row] for row in content.rows]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{text(content.caption)}**\n\n{rows}"


def fenced(code: str) -> str:
    """Code in a fence that is longer than any within it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}toml\n{code.rstrip()}\n{fence}"


def _compared(documents: Sequence[AuditDocument]) -> Iterable[str]:
    yield "## The runs compared"
    yield table(comparison.runs(documents))
    roles = matrix_cells.roles(documents)
    rows = [
        (capital(what), f"{place}. {document.run.name}", *map(_cell, line))
        for what in matrix_cells.comparable(documents)
        for place, (document, line) in enumerate(
            zip(documents, matrix_cells.compared(documents, what), strict=True), start=1
        )
    ]
    yield text(sentences.SIDE_BY_SIDE)
    header = ("Information", "Run", *map(capital, roles))
    yield table(ReportTable("Who can see what, side by side", header, rows))
    yield table(report_tables.points(comparison.points(documents)))
    if trade_off.comparable(documents):
        yield text(sentences.OVER_EPSILON)
        yield table(trade_off.table(documents))


def _run(document: AuditDocument) -> Iterable[str]:
    status = STATUS[document.status]
    yield f"**{status.symbol} {capital(status.word)}.** {text(sentences.standing(document))}"
    yield _items(document.reasons)
    if document.run.mode == "none":
        yield f"**{text(sentences.UNPROTECTED)}**"
    if found := contradictions(document):
        yield f"**{text(sentences.CONTRADICTION)}**\n\n{_items(found)}"
    yield text(sentences.in_short(document))
    yield text(document.run.statement)
    yield text(sentences.tally(document))
    yield "### Who can see what"
    yield _matrix(document)
    yield "### Differential privacy"
    yield from map(_privacy, document.privacy)
    yield "" if document.privacy else text(sentences.NO_PRIVACY)
    yield "### Questions and evaluations"
    yield from _asked(document)
    yield "### Accuracy beside leakage"
    yield text(sentences.measured(document))
    yield table(report_tables.points(document.points)) or sentences.WITHOUT["accuracy"]
    yield table(report_tables.scores(document))
    yield "### What was not tested"
    yield _items(document.untested) or text(sentences.ALL_TESTED)
    yield from _trials(document)
    yield from _figures(document)
    yield "### Policy, settings, seed and versions"
    yield table(report_tables.facts("Policy", document.policy))
    yield table(report_tables.sources(document))
    yield fenced(document.run.settings)


def _asked(document: AuditDocument) -> Iterable[str]:
    found = table(report_tables.asked(document))
    yield text(sentences.ASKED) if found else ""
    yield found or sentences.WITHOUT["asked"]


def _matrix(document: AuditDocument) -> str:
    if not document.matrix:
        return sentences.NO_MATRIX
    roles = matrix_cells.roles([document])
    rows = [
        (capital(what), *map(_cell, matrix_cells.line(document, what, roles)))
        for what in matrix_cells.kinds([document])
    ]
    header = ("Information", *map(capital, roles))
    legend = "; ".join(f"{_term(one)}: {one.meaning}" for one in ACCESS.values())
    return table(ReportTable("Who can see what", header, rows)) + f"\n\n{text(legend)}."


def _cell(cell: matrix_cells.MatrixCell) -> str:
    trials = "evidence: " + ", ".join(trial.id for trial in cell.evidence) if cell.evidence else ""
    mark = "≠ differs" if cell.differs else ""
    return "; ".join(filter(None, (_term(cell.term), mark, cell.note, cell.basis, trials)))


def _term(term: Term) -> str:
    return f"{term.symbol} {term.word}"


def _privacy(part: PrivacyPart) -> str:
    facts = {
        "Unit of privacy": part.unit,
        "Neighbouring data sets": part.adjacency,
        "Trust model": part.trust_model,
        "Mechanism": part.mechanism,
        "Privacy loss ε": epsilon(part.epsilon),
        "δ": number(part.delta),
        "Privacy loss budget": "none set" if part.budget is None else epsilon(part.budget),
    } | {name: plain(fact) for name, fact in ordered(part.facts)}
    known = ReportTable(f"Per {part.unit}", ("Name", "Value"), list(facts.items()))
    blocks = [text(sentences.in_words(part)), table(known)]
    if part.assumptions:
        blocks += ["This holds if:", _items(part.assumptions)]
    return "\n\n".join(blocks)


def _trials(document: AuditDocument) -> Iterable[str]:
    yield "### Trials"
    yield table(report_tables.trials(document)) or sentences.NO_TRIALS
    for trial in document.trials:
        judged = _term(VERDICTS[sentences.verdict(trial)])
        yield f"#### {text(f'{trial.id}: {judged}')}"
        yield text(f"{sentences.outcome(trial)} {trial.about}")
        yield table(report_tables.findings(trial))


def _figures(document: AuditDocument) -> Iterable[str]:
    yield "### Membership attacks"
    yield table(report_tables.roc(document)) or sentences.WITHOUT["roc"]
    yield "### Budget and cost"
    yield table(report_tables.budget(document)) or sentences.WITHOUT["budget"]
    yield table(report_tables.traffic(document)) or sentences.WITHOUT["traffic"]
    yield table(report_tables.volumes(document))
    yield table(report_tables.seconds(document))
    yield table(report_tables.spectra(document)) or sentences.WITHOUT["spectra"]


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {text(line)}" for line in lines)
