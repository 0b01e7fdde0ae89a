"""Command lines: run in this process, or only parsed as the program does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.testing import CliRunner, Result

from secure_fl.cli.main import main


def run(*words: object, **options: Any) -> Result:
    """Run a command line in this process; the options are those of click's `CliRunner`."""
    line = [str(word) for word in words]
    return CliRunner().invoke(main, line, prog_name="secure-fl", **options)


def ran(*words: object, code: int = 0, **options: Any) -> Result:
    """Run a command line, and require its exit status."""
    done = run(*words, **options)
    assert done.exit_code == code, done.output
    return done


def parse(words: Sequence[str], command: click.Command = main) -> list[str]:
    """Refuse unknown commands and options; return the arguments."""
    context = click.Context(command, info_name="secure-fl")
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        _, inner, rest = command.resolve_command(context, list(words))
        assert inner is not None, words
        return parse(rest, inner)
    _, arguments, _ = command.make_parser(context).parse_args(list(words))
    return [str(argument) for argument in arguments]
