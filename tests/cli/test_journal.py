"""What join and coordinate log: times, levels, one form, and nothing that is said for ever."""

from __future__ import annotations

import fcntl
import json
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
import click, contextlib, logging, os, sys
from secure_fl.cli.service import service_log
from secure_fl.errors import CohortError
REFUSED = b"I1122 17:03:47.286002    1007 ssl_transport_security.cc:2563] Handshake failed: no CA"
ended = contextlib.suppress(click.exceptions.Exit)
with ended, service_log(sys.argv[1], quiet=len(sys.argv) > 2) as log:
    log.info("round 1")
    for number in range(9):
        os.write(2, REFUSED + str(number).encode() + chr(10).encode())
        logging.getLogger("nvflare.cell").error("frame %d is bad", number)
    print("Traceback of a thread", file=sys.stderr, flush=True)
    for _ in range(2):
        log.info("ours is never held back")
    raise CohortError("nobody came", fix="wait")
"""


def said(*arguments: str) -> tuple[list[str], list[str]]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_lines_have_times_and_levels_and_are_not_repeated() -> None:
    out, err = said("text")
    stamped = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (info|warning|error) +")
    assert all(stamped.match(line) for line in out)
    assert [stamped.sub("", line) for line in out] == ["round 1", *2 * ["ours is never held back"]]
    told = [stamped.sub("", line) for line in err]
    assert [one for one in told if "frame" in one] == [
        "frame 0 is bad",
        *(f"frame {n - 1} is bad ({n} times so far)" for n in (2, 4, 8)),
    ]
    grpc = [one for one in told if "Handshake" in one]
    # a line that is on its way when the program ends may be overtaken
    assert "Handshake failed: no CA0" in grpc and len(grpc) == 4
    assert "Traceback of a thread" in err  # what is not gRPC's passes as it is
    assert told[-2:] == ["nobody came", "  -> wait"]


def test_json_is_a_line_for_each() -> None:
    out, err = said("json")
    lines = [json.loads(line) for line in (*out, *err) if line.startswith("{")]
    assert {"time", "level", "message"} <= set(lines[0])
    assert {line.get("by") for line in lines} == {None, "grpc", "nvflare.cell"}
    assert any(line["level"] == "error" and "nobody came" in line["message"] for line in lines)
    assert said("json", "quiet")[0] == []


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_known_error_has_a_traceback_only_on_wish(debug: str) -> None:
    code = (
        "import click\nfrom secure_fl.cli.group import _report\n"
        "from secure_fl.errors import CohortError\n"
        "try:\n    raise click.exceptions.Exit(5) from CohortError('x')\n"
        f"except Exception as error:\n    print(_report(error, {debug} == 1, ()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "5" and ("CohortError" in done.stderr) == (debug == "1")


# --- lines below the log, at a terminal -----------------------------------------------------------


WITH_FOOTER = """
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
    command = [sys.executable, "-c", WITH_FOOTER, *arguments]
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
def test_programs_and_quiet_users_get_none(arguments: tuple[str, ...], term: str) -> None:
    written = at_a_terminal(80, *arguments, term=term)
    assert "round" not in written and "\x1b" not in written and "warned 2" in written
