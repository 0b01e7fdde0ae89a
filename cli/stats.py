"""`secure-fl stats`: ask hospitals about their records, by protected sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.options import FILE, FOLDER, json_option

if TYPE_CHECKING:
    from secure_fl.statistics.asking import Asked

REFUSED = 9


@click.command(
    epilog="""\b
Examples:
  secure-fl stats questions.toml --plan study.toml
  secure-fl stats questions.toml --plan study.toml --rules site.toml --json
  secure-fl stats questions.toml --corpus ade        the built-in notes

--notes stores the earlier answers of each hospital. A hospital refuses a question that, combined
with earlier answers, describes too few patients. `secure-fl docs statistics` explains each kind."""
)
@click.argument("questions", type=FILE)
@click.option("--plan", type=FILE, help="Settings file of the hospitals, as for `train`.")
@click.option("--corpus", help="Ask three synthetic hospitals with this built-in corpus instead.")
@click.option("--rules", type=FILE, help="File with [site.statistics], for all hospitals.")
@click.option("--notes", type=FOLDER, default=Path("runs/statistics"), show_default=True,
              help="Folder of the hospitals' notes and ledgers, one per plan.")  # fmt: skip
@click.option("--out", type=FOLDER, help="Write answers.json and answers.html into this folder.")
@json_option
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
        raise click.UsageError("give either --plan or --corpus")
    asked, own = read(questions), None if rules is None else load_rules(rules)
    # Imported only now: errors in the files above are reported without loading torch.
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
            if question == answer.name:  # on one machine, all errors can be shown
                console.print(f"  {site}: {str(error).splitlines()[0]}")
