"""`secure-fl stats`: ask hospitals about their records, by sealed sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from secure_fl.statistics.asking import Asked

REFUSED = 9


@click.command(
    epilog="""\b
Examples:
  secure-fl stats questions.toml --plan study.toml
  secure-fl stats questions.toml --plan study.toml --rules site.toml --json
  secure-fl stats questions.toml --corpus ade        the built-in notes

What each hospital answered before is noted below --notes: a question that would, together with
those, tell of too few patients is refused. docs/statistics.md has an example of each kind."""
)
@click.argument("questions", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--plan",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The settings file whose hospitals are asked, as train takes it.",
)
@click.option("--corpus", help="Ask three made-up hospitals with built-in notes instead.")
@click.option(
    "--rules",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with [site.statistics], for all hospitals. [default: the defaults]",
)
@click.option(
    "--notes",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/statistics"),
    show_default=True,
    help="Where each hospital's note and ledger lie, in a folder for each plan.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write answers.json and answers.html into this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
def stats(
    questions: Path,
    plan: Path | None,
    corpus: str | None,
    rules: Path | None,
    notes: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Ask the questions in the file QUESTIONS of all hospitals, in this process."""
    from secure_fl.statistics.questions import load as read
    from secure_fl.statistics.rules import load_rules

    if (plan is None) == (corpus is None):
        raise click.UsageError("give --plan or --corpus, one of both")
    asked, own = read(questions), None if rules is None else load_rules(rules)
    # Whoever mistyped a file need not wait for torch.
    from secure_fl.cli import show
    from secure_fl.config.load import load, loads
    from secure_fl.statistics import asking
    from secure_fl.statistics.pages import document_of, write_answers
    from secure_fl.statistics.tables import tables_of

    settings = (
        load(plan)
        if plan is not None
        else loads(f'data = {{corpus = "{corpus}"}}\nalgorithm = {{name = "fedavg"}}')
    )
    show.warn_unprotected(show.err(), settings.protection.mode, settings.algorithm.name)
    found = asking.ask(
        asked,
        tables_of(settings),
        rules=own,
        protection=settings.protection,
        notes=notes / (corpus or settings.run.name),
    )
    if out is not None:
        write_answers(out, found, settings.protection.mode)
    if as_json:
        show.print_json(document_of(found))
    else:
        _print(found)
    if any(answer.status == "refused" for answer in found):
        raise click.exceptions.Exit(REFUSED)


def _print(found: Asked) -> None:
    from secure_fl.cli import show
    from secure_fl.statistics.pictures import headline, tables

    console = show.out()
    for answer in found:
        console.print(f"\n{headline(answer)}", style="bold")
        for table in tables(answer):
            console.print(table)
        for said in answer.said:
            console.print(f"  {said}")
        for (site, question), error in found.refusals.items():
            if question == answer.name:  # on one machine all may be told; apart, each its own
                console.print(f"  {site}: {str(error).splitlines()[0]}")
