"""Parses command lines as the program does, without running them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from secure_fl.cli.main import main


def parse(words: Sequence[str], command: click.Command = main) -> list[str]:
    """Refuse unknown commands and options; return the arguments."""
    context = click.Context(command, info_name="secure-fl")
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, words
        return parse(words[1:], inner)
    _, arguments, _ = command.make_parser(context).parse_args(list(words))
    return [str(argument) for argument in arguments]
