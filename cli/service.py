"""Log, status footer and signals of commands that run for days: `join`, `coordinate`, `courier`.

Every log line has a time and a level. FLARE logs through `logging`, gRPC's C code writes to the
process's stderr: both appear in this log, repeated lines only the 1st, 2nd, 4th, 8th, ... time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import click

from secure_fl.cli.options import Names
from secure_fl.errors import SecureFLError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PILOT_LOG, GRPC_LOG = "secure_fl.pilot", "grpc"
GRPC_LINE = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:[\d.]+ +\d+ ([\w.]+:\d+)\] (.*)")  # absl's format
MOST_DISTINCT = 1000  # lines of other loggers that are counted separately
FOOTER_LINES = 6  # maximum, so that the log above remains visible
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
StatusLines = Callable[[], Sequence[str]]

log_option = click.option("--log-format", type=Names(["text", "json"]), default="text",
                          show_default=True, help="Log a line of text per event, or a JSON object.",
                          )  # fmt: skip
errors_only_option = click.option("--quiet", "-q", is_flag=True, help="Print only errors.")


class StopSignals:
    """Handler of Ctrl-C and SIGTERM: it interrupts, or asks a running service to stop.

    SIGTERM is handled from the start, because process 1 of a container ignores it by default.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._previous: dict[int, Any] = {}

    def ask(self, stop: Callable[[], object]) -> None:
        """Call `stop` on a signal, instead of interrupting the process."""
        self._stop = stop

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None:
            raise KeyboardInterrupt
        self._stop()


@contextmanager
def service_log(
    form: str, *, quiet: bool, status: StatusLines | None = None
) -> Iterator[logging.Logger]:
    """Log to the terminal; an error that ends the process is the last line.

    `status`: lines that a terminal shows below a text log.
    """
    handler = _TerminalHandler()
    shown = status if form == "text" and not quiet and "dumb" != os.environ.get("TERM") else None
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    handler.addFilter(_RepeatFilter())
    ours, root = logging.getLogger(PILOT_LOG), logging.getLogger()
    ours.setLevel(logging.WARNING if quiet else logging.INFO)
    root.addHandler(handler)
    try:
        with _stderr_captured(shown) as handler.footer:
            yield ours
    except SecureFLError as error:
        ours.error(str(error))
        raise click.exceptions.Exit(error.exit_status) from error
    finally:
        root.removeHandler(handler)


class _TerminalHandler(logging.Handler):
    footer: Live | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text, to_stderr = self.format(record), record.levelno >= logging.WARNING
        with suppress(OSError):  # the terminal is closed; the run continues
            if self.footer is None or to_stderr or not sys.stdout.isatty():
                click.echo(text, err=to_stderr)  # stderr is captured, and printed above a footer
            else:
                _print_above(self.footer, text)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower():<7} {record.getMessage()}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower()}
        by = {} if record.name == PILOT_LOG else {"by": record.name}
        return json.dumps(head | by | {"message": record.getMessage()}, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%SZ}"


class _RepeatFilter(logging.Filter):
    """Filter for lines of other loggers: passes the 1st, 2nd, 4th, 8th, ... repetition.

    Lines that differ only in numbers are the same line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == PILOT_LOG:
            return True
        key = re.sub(r"\d+", "#", f"{record.name} {record.getMessage()}")
        key = key if key in self._counts or len(self._counts) < MOST_DISTINCT else record.name
        self._counts[key] += 1
        count = self._counts[key]
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} times so far)", ()
        return count & (count - 1) == 0


@contextmanager
def _stderr_captured(status: StatusLines | None) -> Iterator[Live | None]:
    """Read this process's stderr: log gRPC's lines, and pass on the others."""
    terminal = os.dup(2)
    footer = _footer(status, terminal) if status is not None and os.isatty(terminal) else None
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    reader = threading.Thread(target=_sort_lines, args=(reading, terminal, footer), daemon=True)
    reader.start()
    if footer is not None:
        footer.start(refresh=True)
    try:
        yield footer
    finally:
        os.dup2(terminal, 2)  # this closes the pipe's last end, and the thread ends
        reader.join(2.0)
        if footer is not None:
            with suppress(OSError):
                footer.stop()
        os.close(terminal)


def _sort_lines(reading: int, terminal: int, footer: Live | None) -> None:
    log = logging.getLogger(GRPC_LOG)
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            with suppress(OSError):  # the terminal is closed; the run continues
                if grpc := GRPC_LINE.match(line):
                    log.warning(grpc[2].decode(errors="replace"))
                elif footer is not None:
                    _print_above(footer, line.decode(errors="replace").rstrip("\n"))
                else:
                    os.write(terminal, line)


def _footer(status: StatusLines, terminal: int) -> Live:
    """Return the status lines as a footer that is drawn every second."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def draw() -> RenderableType:
        return Text("\n".join(islice(status(), FOOTER_LINES)))

    stream = os.fdopen(os.dup(terminal), "w", encoding="utf-8")
    console = Console(file=stream, force_terminal=True, highlight=False)
    return Live(
        console=console,
        get_renderable=draw,
        refresh_per_second=1,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _print_above(footer: Live, text: str) -> None:
    from rich.text import Text

    footer.console.print(Text.from_ansi(text), soft_wrap=True)
