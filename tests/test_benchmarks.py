"""The benchmarks start from a checkout; what they measure is tested in `benchmarks/tests`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def said(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_all_are_listed_with_a_line_each() -> None:
    lines = said().partition("Commands:")[2].partition("Examples:")[0].splitlines()
    listed = {line.split()[0] for line in lines if line.strip() and line.endswith(".")}
    assert {"crypto", "protocol", "engine", "all", "papers", "results"} <= listed
    assert len(listed) == len([line for line in lines if line.strip()])


def test_one_prints_its_document() -> None:
    found = json.loads(said("startup", "--quick", "--json"))
    assert (found["schema"], found["benchmark"]) == ("secure-fl/benchmark/1", "startup")
    assert found["rows"] and found["targets"] and found["machine"]
