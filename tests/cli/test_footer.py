"""Lines below a log, at a terminal that is one: what it shows after all was written."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest

PROGRAM = """
import logging, os, sys, time
from secure_fl.cli.service import service_log
lines = ["round 1 of 3", "1 of 2 have answered this step; waiting for st-elsewhere (34.0 s)"]
with service_log(sys.argv[1], quiet=len(sys.argv) > 2, status=lambda: lines) as log:
    for number in range(3):
        log.info("told %d", number)
        log.warning("warned %d", number)
        os.write(2, b"a thread's own words\\n")
        time.sleep(0.05)
    lines[0] = "round 2 of 3"
    time.sleep(2.5)
    log.info("MARK")
    time.sleep(0.3)
print("after it")
"""
CODE = re.compile(r"\x1b\[\??(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def screen(written: str) -> list[str]:
    """Emulate a terminal, as far as rich's codes need it: cursor up, and erase line."""
    lines, row, column = [""], 0, 0
    for found in CODE.finditer(written):
        text, (count, code) = found[0], found.groups()
        if text == "\r":
            column = 0
        elif text == "\n":  # the terminal driver sends \r\n
            row += 1
            lines += [""] * (row >= len(lines))
        elif code == "A":
            row -= int(count or 1)
        elif code == "K":
            lines[row] = ""
        elif code is None:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return lines


def at_a_terminal(columns: int, *arguments: str, term: str = "xterm") -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", PROGRAM, *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment["TERM"] = term
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    ) as process:
        os.close(theirs)
        found, until = b"", time.monotonic() + 60
        while time.monotonic() < until:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            found += part
        assert process.wait(timeout=60) == 0
    os.close(ours)
    return found.decode()


@pytest.mark.parametrize("columns", [60, 80])
def test_lines_stay_below_the_log_and_are_gone_after_it(columns: int) -> None:
    written = at_a_terminal(columns, "text")
    (before, at_mark, _) = re.split(r"MARK|after it", written)
    during = screen(before + "MARK" + at_mark.partition("\x1b")[0])
    shown = [line.rstrip() for line in during]
    assert shown.count("a thread's own words") == 3
    assert sum("told" in line for line in shown) == sum("warned" in line for line in shown) == 3
    place = next(k for k, line in enumerate(shown) if line.endswith("MARK"))
    below = " ".join(line.strip() for line in shown[place + 1 :])
    assert below.startswith("round 2 of 3 1 of 2 have answered this step; waiting for st-elsewhere")
    assert max(map(len, shown[place + 1 :])) <= columns
    after = [line for line in screen(written) if line.strip()]
    assert after[-2].endswith("MARK") and after[-1] == "after it"
    assert not any("round" in line for line in after)


@pytest.mark.parametrize(
    ("arguments", "term"), [(("json",), "xterm"), (("text", "-q"), "xterm"), (("text",), "dumb")]
)
def test_programs_the_quiet_and_terminals_that_cannot_get_none(
    arguments: tuple[str, ...], term: str
) -> None:
    written = at_a_terminal(80, *arguments, term=term)
    assert "round" not in written and "\x1b" not in written and "warned 2" in written
