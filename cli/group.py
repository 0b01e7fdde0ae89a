"""A click group that imports a command when it is used, and turns errors into clear text."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from secure_fl.errors import RunError, SecureFLError

INTERRUPTED = 130
DEBUG, DEBUG_FLAG = "SECURE_FL_DEBUG", "--debug"


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported on use: where it is, and its line in the help."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """A group over a literal table of commands; showing its help imports none of them."""

    def __init__(self, *args: Any, commands_on_use: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = commands_on_use

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of the table."""
        return list(self._table)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the one that was probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self._table, n=1)
            if error.ctx is ctx and args[0] not in self._table and near:
                what = f"No such command {args[0]!r}. Did you mean {near[0]!r}?"
                raise click.UsageError(what, ctx) from None
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the epilog as it is written: it holds tables."""
        if self.epilog:
            formatter.write(f"\n{self.epilog.rstrip()}\n")


class Told(click.Group):
    """A group that lists its commands with whole sentences: click cuts what is long."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; what does not fit on a line is wrapped."""
        with formatter.section("Commands"):
            told = {name: one.get_short_help_str(1000) for name, one in self.commands.items()}
            formatter.write_dl(sorted(told.items()))


class Program(LazyGroup):
    """The whole program: errors end it with a text on stderr and a documented exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program; without `standalone_mode` errors reach the caller."""
        # Decided before the arguments are parsed, so that parsing errors are covered too.
        arguments = list(sys.argv[1:] if args is None else args)
        debug = DEBUG_FLAG in arguments or os.environ.get(DEBUG, "") not in ("", "0")
        # It may stand anywhere; a text to predict that looks like it must stand behind "--".
        end = arguments.index("--") if "--" in arguments else len(arguments)
        kept = [a for a in arguments[:end] if a != DEBUG_FLAG] + arguments[end:]
        prog_name = prog_name or "secure-fl"
        try:
            status = super().main(kept, prog_name, complete_var, False, **extra)
        except Exception as error:
            if not standalone_mode:
                raise
            sys.exit(_report(error, debug))
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


def _report(error: Exception, debug: bool) -> int:
    """Say what went wrong, and return the exit status."""
    told = isinstance(error, click.exceptions.Exit | click.Abort)
    if debug and (cause := error.__cause__ if told else error) is not None:
        import traceback

        traceback.print_exception(cause)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        if isinstance(error.__context__, EOFError):
            _say("a question has no answer here\n  -> answer by options, which --help lists")
            return 2
        click.echo("interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.UsageError) and not isinstance(error, NoArgsIsHelpError):
        _say(_told(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, SecureFLError):
        _say(str(error))
        return error.exit_status
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return _reader_left()
    text = f"{type(error).__name__}: {error}"
    click.echo(f"{click.style('unexpected error', fg='red', bold=True)}: {text}", err=True)
    click.echo(
        "  -> this is a fault of secure-fl: please report it where this release is from, with the\n"
        f"     output of the same command after setting {DEBUG}=1 (look through it first: it may\n"
        '     quote your settings or data) and of "secure-fl doctor --json"',
        err=True,
    )
    return 1


def _say(what: str) -> None:
    click.echo(f"{click.style('error', fg='red', bold=True)}: {what}", err=True)


def _told(error: click.UsageError) -> str:
    """What is wrong with a command line, and how it is written, as all errors are told."""
    what = error.format_message().strip().removesuffix(".")
    what = what[:1].lower() + what[1:]
    if type(error) is click.BadParameter and error.param is not None and error.ctx is not None:
        place = error.param.get_error_hint(error.ctx).replace("'", "")
        what = f"{place}: {error.message.removesuffix('.')}"
    if error.ctx is None:
        return what
    path, command = error.ctx.command_path, error.ctx.command
    usage = " ".join([path, *command.collect_usage_pieces(error.ctx)])
    return f"{what}\n  -> {usage} (--help explains it)"


def _reader_left() -> int:
    # As in `secure-fl runs | head`: what is still buffered must not raise again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def require_folder(run: Path) -> None:
    """Refuse what is no run's folder before anything heavy is loaded."""
    if not run.is_dir():
        fix = "secure-fl runs lists the runs below a folder"
        raise RunError("there is no such folder", fix=fix, file=run, reason="missing")


def stop(status: int, message: str) -> NoReturn:
    """End the program with a text on stderr."""
    click.echo(message, err=True)
    raise click.exceptions.Exit(status)
