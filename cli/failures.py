"""Errors of the library as errors of the command line: text to stderr, the class's exit status."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from secure_fl.errors import SecureFLError

P = ParamSpec("P")
R = TypeVar("R")


def reports(command: Callable[P, R]) -> Callable[P, R]:
    """Turn a SecureFLError into a message and its exit status; everything else is a bug."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SecureFLError as error:
            click.echo(f"error: {error}", err=True)
            raise SystemExit(error.exit_status) from None

    return run
