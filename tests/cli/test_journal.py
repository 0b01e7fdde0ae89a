"""What join and coordinate log: times, levels, one form, and nothing that is said for ever."""

from __future__ import annotations

import json
import re
import subprocess
import sys

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
