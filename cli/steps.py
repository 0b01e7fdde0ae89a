"""Steps of a story that a terminal of 80 columns can follow: what is typed where, and what it says.

Each command is a process of its own, in its site's folder, as at a site. A step that fails ends the
story with what it printed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import click

from secure_fl.cli.processes import PROGRAM, kill, this_code
from secure_fl.errors import RunError

WIDTH = 80
INDENT = "  "
EVERY = 0.05  # seconds between two looks at a log
LAST = 12  # lines of a log that are shown of a process which failed
LONGEST = 120.0  # seconds for a process that was told to end


@dataclass(slots=True)
class Started:
    """A process that goes on, and how much of its log was shown."""

    who: str
    typed: str
    process: subprocess.Popen[str]
    log: Path
    shown: int = 0

    def said(self) -> Iterator[str]:
        """Whole lines that were not taken yet."""
        while end := self.log.read_bytes().find(b"\n", self.shown) + 1:
            line = self.log.read_bytes()[self.shown : end]
            self.shown = end
            yield line.decode(errors="replace").rstrip()


class Steps:
    """Who types what, in the folders of a pilot's machines below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Started] = []
        self._number = 0

    def title(self, text: str) -> None:
        """Begin a part, with its number."""
        self._number += 1
        click.secho(f"\n{self._number}  {text}", bold=True)

    def say(self, text: str) -> None:
        """Tell what no command prints."""
        click.echo("\n".join(wrap(text, WIDTH, break_on_hyphens=False)))

    def type(self, who: str, command: str, *, last: int | None = None) -> str:
        """Run a command to its end, and show what it prints, or the last lines of it."""
        return self.type_at_each([who], command, last=last)[0]

    def type_at_each(
        self, names: Sequence[str], command: str, *, last: int | None = None
    ) -> list[str]:
        """Run it at all at once, with {name} in it; show one, for the others print the same."""
        typed = [_words(command, name) for name in names]
        _show_typed(names[0], typed[0])
        begun = [self._begin(name, words) for name, words in zip(names, typed, strict=True)]
        said = [process.communicate()[0] for process in begun]
        for name, words, process, text in zip(names, typed, begun, said, strict=True):
            if process.returncode or name == names[0]:
                _show(text.splitlines(), None if process.returncode else last)
            if process.returncode:
                raise self._failed(name, shlex.join(words), process.returncode)
        if len(names) > 1:
            self.say(f"The same at {' and '.join(names[1:])}.")
        return said

    def send(self, who: str, whom: str, *files: str) -> None:
        """Carry files from one folder to another, as mail would."""
        for file in files:
            source, to = self.folder / who / file, self.folder / whom / Path(file).name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
        click.echo(f"{who} -> {whom}: {' '.join(files)}")

    def write(self, names: Sequence[str], file: str, text: str) -> None:
        """Add lines to a file at each, as with an editor."""
        for name in names:
            with (self.folder / name / file).open("a", encoding="utf-8") as opened:
                opened.write(f"\n{text}")
        who = names[0] if len(names) == 1 else "each"
        click.echo(f"{who} writes into {file}:")
        _show(text.splitlines())

    def start(self, who: str, command: str) -> Started:
        """Start a command that goes on; what it says goes to a log in its folder."""
        words = _words(command, who)
        _show_typed(who, words)
        log = self.folder / who / f"{words[0]}.log"
        with log.open("ab") as opened:
            before = opened.tell()
            process = self._begin(who, words, opened.fileno())
        started = Started(who, shlex.join(words), process, log, before)
        self._running.append(started)
        return started

    def follow(self, started: Started, until: str | None = None) -> None:
        """Show what it says until it says this, or ends well; whoever fails ends the story."""
        while True:
            ended = started.process.poll() is not None
            for line in started.said():
                _show([line])
                if until is not None and until in line:
                    return
            self._require_well(self._running)
            if ended:
                if until is not None:
                    raise self._failed(started.who, started.typed, 0)
                self._running.remove(started)
                return
            time.sleep(EVERY)

    def ended(self, those: Iterable[Started]) -> None:
        """Wait until those who are told to end have ended."""
        for started in those:
            with suppress(subprocess.TimeoutExpired):
                started.process.wait(LONGEST)
            if started.process.poll() is None:
                raise self._failed(started.who, started.typed, "still runs")
            self._require_well([started])
            self._running.remove(started)

    def kill(self, started: Started) -> None:
        """End a process as a power cut would."""
        kill(started.process)
        self._running.remove(started)
        click.echo(f"kill -9 {started.process.pid}{INDENT}(`{_name(started)}` of {started.who})")

    def stop(self) -> None:
        """End whatever still runs."""
        for started in self._running:
            started.process.terminate()
        for started in self._running:
            with suppress(subprocess.TimeoutExpired):
                started.process.wait(10)
        kill(*(started.process for started in self._running))

    def _begin(
        self, who: str, words: Sequence[str], out: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        own = {"COLUMNS": str(WIDTH - len(INDENT)), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM, *words],
            cwd=self.folder / who,
            env=os.environ | own | this_code(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _require_well(self, those: Iterable[Started]) -> None:
        for started in those:
            if status := started.process.poll():
                click.echo(f"{started.who}, the end of {started.log}:")
                _show(started.log.read_text(errors="replace").splitlines()[-LAST:])
                raise self._failed(started.who, started.typed, status)

    def _failed(self, who: str, typed: str, status: int | str) -> RunError:
        how = status if isinstance(status, str) else f"ended with status {status}"
        return RunError(
            f"`secure-fl {typed}` {how}",
            party=who,
            file=self.folder / who,
            fix="what it said is above; its folder is left as it is, to look and to try again",
            reason="unfinished",
        )


def _words(command: str, name: str) -> list[str]:
    return shlex.split(command.format(name=name))


def _name(started: Started) -> str:
    return started.typed.split()[0]


def _show_typed(who: str, words: Sequence[str]) -> None:
    """A command as one would type it, in lines that end with a backslash."""
    line, rows = f"{who}$ secure-fl", list[str]()
    for part in _parts(words):
        if len(line) + len(part) > WIDTH - 3:  # a blank, and the backslash with its own
            rows.append(f"{line} \\")
            line = f"{INDENT * 4}{part}"
        else:
            line = f"{line} {part}"
    click.secho("\n".join([*rows, line]), fg="cyan")


def _parts(words: Sequence[str]) -> list[str]:
    """Words, and options with their values, which stay in a line."""
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and word[0] != "-":
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    return parts


def _show(lines: Sequence[str], last: int | None = None) -> None:
    """Lines below a command, in its width; of many the last ones."""
    if last is not None and len(lines) > last:
        click.echo(f"{INDENT}... {len(lines) - last} lines")
        lines = lines[-last:]
    for line in _folded(lines):
        click.echo(line.rstrip())


def _folded(lines: Iterable[str]) -> Iterator[str]:
    room = WIDTH - len(INDENT)
    for line in lines:
        if len(line) <= room:
            yield f"{INDENT}{line}"
            continue
        hang = INDENT * (3 if line[:1].strip() else 4)
        yield from wrap(line, WIDTH, initial_indent=INDENT, subsequent_indent=hang,
                        break_on_hyphens=False)  # fmt: skip
