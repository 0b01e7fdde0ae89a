"""`secure-fl stats`: open a codebook over hospitals' records, by sealed sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from secure_fl.cli.options import FILE, FOLDER, json_option

REFUSED = 9


@click.command(
    epilog="""\b
Examples:
  secure-fl stats codebook.toml --plan study.toml
  secure-fl stats codebook.toml --plan study.toml --rules site.toml --json
  secure-fl stats codebook.toml --corpus ade         the built-in notes

--notes stores the opened codebooks of each hospital. A later codebook over the same records is
audited together with them. `secure-fl docs statistics` explains codebooks."""
)
@click.argument("codebook", type=FILE)
@click.option("--plan", type=FILE, help="Settings file of the hospitals, as for `train`.")
@click.option("--corpus", help="Count in three synthetic hospitals of this corpus instead.")
@click.option("--rules", type=FILE, help="File with [site.statistics], for all hospitals.")
@click.option("--notes", type=FOLDER, default=Path("runs/statistics"), show_default=True,
              help="Folder of the hospitals' notes and ledgers, one per plan.")  # fmt: skip
@click.option("--out", type=FOLDER, help="Write result.json and report.html into this folder.")
@json_option
def stats(
    codebook: Path,
    plan: Path | None,
    corpus: str | None,
    rules: Path | None,
    notes: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Open the tables of CODEBOOK over all hospitals' records, in this process."""
    from secure_fl.features.statistics.opening import load_codebook, load_rules, open_codebook
    from secure_fl.runs.folder import require_no_run

    if (plan is None) == (corpus is None):
        raise click.UsageError("give either --plan or --corpus")
    require_no_run(out)
    asked = load_codebook(codebook)
    own = None if rules is None else load_rules(rules)
    # Imported only now: errors in the files above are reported without loading torch.
    from secure_fl.cli import show
    from secure_fl.config.load import load, loads
    from secure_fl.features.statistics.tables import silos_of

    settings = (
        load(plan)
        if plan is not None
        else loads(f'data = {{corpus = "{corpus}"}}\nalgorithm = {{name = "fedavg"}}')
    )
    show.warn_unprotected(show.err(), settings.protection.mode, "statistics")
    tables = open_codebook(
        asked,
        silos_of(settings.data, settings.task, settings.run.seed),
        rules=own,
        protection=settings.protection,
        notes=notes / (corpus or settings.run.name),
        folder=out,
    )
    found = tables.to_json()
    show.print_json(found) if as_json else print_tables(found, tables.refusals)
    if found["status"] != "answered":
        raise click.exceptions.Exit(REFUSED)


def print_tables(found: dict[str, Any], refusals: tuple[str, ...]) -> None:
    """Print all tables, their notes, and the refusals of hospitals on this machine."""
    from secure_fl.cli import show
    from secure_fl.features.statistics.page import grids, lead

    console = show.out()
    console.print(lead(found))
    tables = found.get("tables", [])
    for table in (grid for one in tables for grid in grids(one)):
        console.print()
        console.print(table)
    notes = dict.fromkeys(note for one in tables for note in one["notes"])
    if notes:
        console.print()
    for text in (*notes, *refusals):
        console.print(text)
