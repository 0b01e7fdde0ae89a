"""`secure-fl preflight`: check the hospitals' records before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.options import FILE, json_option

if TYPE_CHECKING:
    from secure_fl.config.load import Settings
    from secure_fl.data.record_problems import Lengths, Problem

PROBLEMS = 2  # exit status


@click.command(
    epilog="""\b
Examples:
  secure-fl preflight study.toml
      all hospitals of a settings file
  secure-fl preflight study.toml --party north       one of them
  secure-fl preflight study.toml --json

The command prints only counts. The exit status is 2 if there is a problem."""
)
@click.argument("plan", type=FILE)
@click.option("--party", "parties", multiple=True, help="Check this hospital. Repeatable.")
@json_option
def preflight(plan: Path, parties: tuple[str, ...], as_json: bool) -> None:
    """Check PLAN's records: patients in two splits, duplicates, labels, lengths."""
    from dataclasses import asdict

    from secure_fl.cli import show
    from secure_fl.config.load import load

    settings = load(plan)
    problems = list(_problems(settings, parties))
    if as_json:
        show.print_json({"problems": [asdict(problem) for problem in problems]})
    else:
        _print(problems)
    if problems:
        raise click.exceptions.Exit(PROBLEMS)


def _problems(settings: Settings, parties: Sequence[str]) -> Iterator[Problem]:
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.config.data import names
    from secure_fl.config.load import silos
    from secure_fl.data.record_problems import Problem, alike, problems, weighed
    from secure_fl.data.splits import Splits
    from secure_fl.errors import DataError
    from secure_fl.federation.validation import tasks_of

    known = names(settings.data)
    if unknown := [name for name in parties if name not in known]:
        raise click.UsageError(f"--party {unknown[0]}: allowed: {', '.join(known)}")
    task = settings.task
    lengths, longest = _lengths(settings)
    members = silos(settings)
    splits = {
        silo.name: Splits(tuple(silo.train), tuple(silo.dev), tuple(silo.test)) for silo in members
    }
    for name, own in splits.items():
        if not parties or name in parties:
            yield from problems(
                name, own, task,
                lengths=lengths, longest=longest,
                weighed=weighed(task, settings.training),
            )  # fmt: skip
    if not parties:
        yield from alike(splits)
        try:
            tasks_of(task, members, ALGORITHMS[settings.algorithm.name])
        except DataError as error:  # label sets that `train` refuses
            yield Problem(str(error.where.get("party", "all hospitals")), error.what, error.fix)


def _lengths(settings: Settings) -> tuple[Lengths, int]:
    """Return the model's length function, and its maximum length."""
    from secure_fl.learning.models import load_tokenizer
    from secure_fl.learning.tasks.token_table import WindowLayout

    tokenizer: Any = load_tokenizer(settings.model)
    task = settings.task
    longest = min(task.max_length, tokenizer.model_max_length)
    if task.windows > 1:
        longest = WindowLayout.of(tokenizer, task).longest

    def lengths(texts: Sequence[str]) -> Sequence[int]:
        return [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]]

    return lengths, longest


def _print(problems: Sequence[Problem]) -> None:
    from secure_fl.cli import show

    console = show.out()
    if not problems:
        console.print("no problems")
    for problem in problems:
        console.print(f"{problem.party}: {problem.what}")
        console.print(f"  -> {problem.fix}")
