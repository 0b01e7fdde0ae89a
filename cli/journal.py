"""What `join` and `coordinate` say in the days that they run: a time and a level for every line.

FLARE logs through `logging`, gRPC's C code writes to the process's stderr, as it likes. Both end up
here, and what is said again and again is said the 1st, 2nd, 4th, 8th, ... time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import click

from secure_fl.cli.choices import Names
from secure_fl.cli.footer import Footer
from secure_fl.errors import SecureFLError

OURS, GRPC = "secure_fl.pilot", "grpc"
LINE = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:[\d.]+ +\d+ ([\w.]+:\d+)\] (.*)")  # as absl writes it
MOST = 1000  # different lines of others that are told apart
F = TypeVar("F", bound=Callable[..., object])


def log_option(command: F) -> F:
    """Add --log-format."""
    return click.option(
        "--log-format",
        type=Names(["text", "json"]),
        default="text",
        show_default=True,
        help="A line of text for each event, or a JSON object.",
    )(command)


@contextmanager
def journal(
    form: str, *, quiet: bool, below: Callable[[], Sequence[str]] | None = None
) -> Iterator[logging.Logger]:
    """Log to the terminal while inside; an error that ends the process is the last line.

    `below`: lines that stay there, at a terminal and for people only.
    """
    handler = _Terminal()
    shown = below if form == "text" and not quiet and "dumb" != os.environ.get("TERM") else None
    handler.setFormatter(_Json() if form == "json" else _Text())
    handler.addFilter(_Seldom())
    ours, root = logging.getLogger(OURS), logging.getLogger()
    ours.setLevel(logging.WARNING if quiet else logging.INFO)
    root.addHandler(handler)
    try:
        with _grpc_caught(shown) as handler.footer:
            yield ours
    except SecureFLError as error:
        ours.error(str(error))
        raise click.exceptions.Exit(error.exit_status) from error
    finally:
        root.removeHandler(handler)


class _Terminal(logging.Handler):
    footer: Footer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text, bad = self.format(record), record.levelno >= logging.WARNING
        with suppress(OSError):  # whoever read it has gone; the run goes on
            if bad or self.footer is None:  # stderr is read here, and is put above the footer
                click.echo(text, err=bad)
            else:
                self.footer.above(lambda: click.echo(text))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower():<7} {record.getMessage()}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _time(record), "level": record.levelname.lower()}
        by = {} if record.name == OURS else {"by": record.name}
        return json.dumps(said | by | {"message": record.getMessage()}, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%SZ}"


class _Seldom(logging.Filter):
    """Passes what others say for the 1st, 2nd, 4th, 8th, ... time; numbers in it do not count."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == OURS:
            return True
        key = re.sub(r"\d+", "#", f"{record.name} {record.getMessage()}")
        key = key if key in self._seen or len(self._seen) < MOST else record.name
        self._seen[key] += 1
        count = self._seen[key]
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} times so far)", ()
        return count & (count - 1) == 0


@contextmanager
def _grpc_caught(below: Callable[[], Sequence[str]] | None) -> Iterator[Footer | None]:
    """Read this process's stderr: gRPC's lines become records, and the rest passes."""
    real = os.dup(2)
    footer = Footer(below, real) if below is not None and os.isatty(real) else None
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(target=_sort, args=(reading, real, footer), daemon=True)
    thread.start()
    if footer is not None:
        footer.start()
    try:
        yield footer
    finally:
        os.dup2(real, 2)  # the pipe's last end is closed by it, and the thread ends
        thread.join(2.0)
        if footer is not None:
            footer.stop()
        os.close(real)


def _sort(reading: int, real: int, footer: Footer | None) -> None:
    log = logging.getLogger(GRPC)
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if found := LINE.match(line):
                log.warning(found[2].decode(errors="replace"))
            elif footer is not None:
                footer.above(partial(_passed, real, line))
            else:
                _passed(real, line)


def _passed(real: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(real, line)
