"""Click groups that import a command on first use, and turn errors into plain text."""

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
UNREADABLE = ("missing", "unreadable", "ledger-unusable")  # reasons of errors about a path
DEBUG, DEBUG_FLAG = "SECURE_FL_DEBUG", "--debug"


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported on first use: its place, and its line in the help."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """A group over a literal table of commands; its help imports none of them."""

    def __init__(self, *args: Any, commands_on_use: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = commands_on_use

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the table."""
        return list(self._table)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar one."""
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
        """Print the epilog unchanged: it contains tables."""
        if self.epilog:
            formatter.write(f"\n{self.epilog.rstrip()}\n")


class WrappedHelpGroup(click.Group):
    """A group that lists commands with complete sentences; click truncates long ones."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, and wrap long lines."""
        with formatter.section("Commands"):
            lines = {name: c.get_short_help_str(1000) for name, c in self.commands.items()}
            formatter.write_dl(sorted(lines.items()))


class Program(LazyGroup):
    """The program: an error ends it with a text on stderr and a documented exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program; without `standalone_mode` errors reach the caller."""
        # Decided before the arguments are parsed, so that it also applies to parsing errors.
        arguments = list(sys.argv[1:] if args is None else args)
        debug = DEBUG_FLAG in arguments or os.environ.get(DEBUG, "") not in ("", "0")
        # The flag can be anywhere before "--"; a text to predict that equals it follows "--".
        end = arguments.index("--") if "--" in arguments else len(arguments)
        kept = [a for a in arguments[:end] if a != DEBUG_FLAG] + arguments[end:]
        prog_name = prog_name or "secure-fl"
        try:
            status = super().main(kept, prog_name, complete_var, False, **extra)
        except Exception as error:
            if not standalone_mode:
                raise
            sys.exit(_report(error, debug, kept))
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


def _report(error: Exception, debug: bool, arguments: Sequence[str]) -> int:
    """Print an error, and return the exit status."""
    reported = isinstance(error, click.exceptions.Exit | click.Abort)
    if debug and (cause := error.__cause__ if reported else error) is not None:
        import traceback

        traceback.print_exception(cause)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        if isinstance(error.__context__, EOFError):
            _print_error("there is no input to answer a question\n  -> use options; see --help")
            return 2
        click.echo("interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.UsageError) and not isinstance(error, NoArgsIsHelpError):
        _print_error(_usage_error(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, SecureFLError):
        typed = _missing_path(error, arguments)
        _print_error(str(error) if typed is None else _with_similar(error, typed))
        return error.exit_status if typed is None else click.UsageError.exit_code
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return _ignore_closed_pipe()
    text = f"{type(error).__name__}: {error}"
    click.echo(f"{click.style('unexpected error', fg='red', bold=True)}: {text}", err=True)
    click.echo(
        "  -> this is a bug in secure-fl. Please report it to the supplier of this release, with\n"
        f"     the output of the same command under {DEBUG}=1 and of `secure-fl doctor --json`.\n"
        "     Check the output first: it can quote your settings or data",
        err=True,
    )
    return 1


def _missing_path(error: SecureFLError, arguments: Sequence[str]) -> Path | None:
    """Return the path of an argument that does not exist, if the error is about it."""
    if getattr(error, "reason", "") not in UNREADABLE:
        return None
    place = Path(str(error.where.get("file", "")))
    for word in arguments:
        path = Path(word.partition("=")[2] if word.startswith("--") else word)
        if path in (place, *place.parents) and path.name and not path.exists():
            return path
    return None


def _with_similar(error: SecureFLError, path: Path) -> str:
    """Format an error, with a similar name in the same folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        names = []
    near = get_close_matches(path.name, names, n=1)
    similar = f"did you mean {path.parent / near[0]}? " if near else ""
    error.fix = similar + error.fix
    return str(error)


def _print_error(what: str) -> None:
    click.echo(f"{click.style('error', fg='red', bold=True)}: {what}", err=True)


def _usage_error(error: click.UsageError) -> str:
    """Format an error in a command line like all other errors, with the usage as its fix."""
    what = error.format_message().strip().removesuffix(".")
    what = what[:1].lower() + what[1:]
    if type(error) is click.BadParameter and error.param is not None and error.ctx is not None:
        place = error.param.get_error_hint(error.ctx).replace("'", "")
        what = f"{place}: {error.message.removesuffix('.')}"
    if error.ctx is None:
        return what
    path, command = error.ctx.command_path, error.ctx.command
    usage = " ".join([path, *command.collect_usage_pieces(error.ctx)])
    return f"{what}\n  -> {usage} (see --help)"


def _ignore_closed_pipe() -> int:
    # As in `secure-fl runs | head`: buffered output must not raise again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def require_folder(run: Path) -> None:
    """Refuse a missing run folder before heavy modules are imported."""
    if not run.is_dir():
        fix = "secure-fl runs lists the runs below a folder"
        raise RunError("there is no such folder", fix=fix, file=run, reason="missing")


def stop(status: int, message: str) -> NoReturn:
    """End the program with a text on stderr."""
    click.echo(message, err=True)
    raise click.exceptions.Exit(status)
