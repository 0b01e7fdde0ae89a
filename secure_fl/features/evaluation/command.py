"""`secure-fl evaluate`: score models on all hospitals' test records, without training."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.options import (
    FILE,
    FOLDER,
    FiniteRange,
    json_option,
    no_progress_option,
    set_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from secure_fl.features.evaluation.evaluation import Evaluation

INVITED = 1.0  # ε per test record of an invitation without --epsilon


@click.command(
    epilog="""\b
Examples:
  secure-fl evaluate runs/first --plan study.toml
  secure-fl evaluate runs/first bert-folder --plan study.toml --json
  secure-fl evaluate runs/first --plan plan.toml --invite evaluation.toml
      a pilot's plan for secure-fl coordinate: models by name and digest

A MODEL is a folder of transformers or peft, a hub name, or a run's folder. Nothing is trained. With
several models, differences to the first have intervals. Here scores are exact sums unless --epsilon
is given. An invitation has --epsilon 1 by default, because the sites of a pilot refuse exact scores
unless their rules allow them."""
)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--plan", required=True, type=FILE,
              help="Settings file with the hospitals' records, or a pilot's plan for --invite.",
              )  # fmt: skip
@set_option
@click.option("--invite", type=FILE, help="Write a pilot's plan to this file; evaluate nothing.")
@click.option(
    "--epsilon",
    type=FiniteRange(0, 100, min_open=True),
    help="Privacy loss per test record, by noise on scores.  "
    "[default: 1 with --invite, else exact scores]",
)
@click.option("--out", type=FOLDER,
              help="Output folder.  [default: runs/NAME-evaluation]")  # fmt: skip
@json_option
@no_progress_option
def evaluate(
    models: tuple[str, ...],
    plan: Path,
    overrides: tuple[str, ...],
    invite: Path | None,
    epsilon: float | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Score MODELs on all hospitals' test records, without training."""
    from secure_fl.cli import show
    from secure_fl.config.load import load
    from secure_fl.runs.folder import require_no_run

    if invite is not None:
        if overrides or out is not None or as_json:
            raise click.UsageError(
                "--invite takes no --set, --out or --json: edit the plan that it reads instead"
            )
        _write_invitation(models, plan, invite, epsilon or INVITED)
        return
    if _is_pilot(plan):
        raise click.UsageError(
            "this is a pilot's plan: add --invite FILE, and coordinate that file"
        )
    settings = load(plan, overrides)
    folder = out or Path("runs") / f"{settings.run.name}-evaluation"
    require_no_run(folder)
    show.warn_unprotected(show.err(quiet), settings.protection.mode, "evaluate")
    with show.err(quiet or as_json).status("evaluate: reading models and records ..."):
        from secure_fl.features.evaluation.evaluation import evaluate_settings

        result = evaluate_settings(models, settings, folder, lambda event: None, epsilon=epsilon)
    if as_json:
        show.print_json(result.to_json())
    elif not quiet:
        print_evaluation(show.out(), result)
        show.out().print(f"results: {folder}, with figures in {folder}/report.html")


def print_evaluation(console: Console, result: Evaluation) -> None:
    """Print the tables, their models and their protection."""
    from secure_fl.cli import show
    from secure_fl.features.evaluation.page import (
        bin_lines,
        difference_table,
        hospital_table,
        model_lines,
        noise_line,
        score_table,
        weak_models,
    )
    from secure_fl.settings import TaskSettings

    tables = (score_table, difference_table, hospital_table)
    for table in filter(None, (make(result.document) for make in tables)):
        console.print(table)
    statement = result.document["protection"]["statement"]
    for line in (
        *bin_lines(result.document),
        *model_lines(result.document),
        statement,
        noise_line(result.document),
    ):
        console.print(line)
    task = TaskSettings.model_validate(result.document["task"])
    show.warn_of_class(console, task, task.labels)
    for text in weak_models(result.document):
        show.warn(console, text)


def _is_pilot(plan: Path) -> bool:
    """Check if a file is a pilot's plan: it names a data set, without files."""
    try:
        return "dataset" in tomllib.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # the reader of the file reports the error


def _write_invitation(models: tuple[str, ...], plan: Path, file: Path, epsilon: float) -> None:
    from secure_fl.features.evaluation.evaluation import evaluating, pinned
    from secure_fl.files import write_whole
    from secure_fl.pilot.plan import load_plan, write_plan

    if not _is_pilot(plan):
        raise click.UsageError("--invite needs a pilot's plan, which names a dataset")
    asked = load_plan(plan)
    cfg = pinned(models, asked.task).model_copy(update={"epsilon": epsilon})
    run = asked.run.model_copy(update={"name": f"{asked.run.name}-evaluation"})
    write_whole(file, write_plan(asked.model_copy(update={"run": run, **evaluating(asked, cfg)})))
    for one in cfg.models:
        click.echo(f"{one.label}: {one.name}\n  sha256 {one.digest}")
    click.echo(
        "each site needs these models under these names, and its [site] must list "
        'algorithms = ["evaluate"] and the models'
    )
    click.echo(f"invite with: secure-fl coordinate {file} --kit KIT")
