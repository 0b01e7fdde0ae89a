"""`secure-fl status` says something of use also before there is a run, and between two halves."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path

from click.testing import Result

from secure_fl.pilot.plan import write_plan
from tests.support.command_line import run
from tests.support.local_pilot import plan_of
from tests.support.stories import STUDY, written


def status(folder: Path, *arguments: str) -> Result:
    with chdir(folder):
        return run("status", *arguments)


def test_before_anybody_is_there(tmp_path: Path) -> None:
    missing = status(tmp_path, "runs/study")
    assert missing.exit_code == 2 and "log of `join`" in " ".join(missing.stderr.split())
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.toml").write_text(write_plan(plan_of()))
    assert status(tmp_path, "run").output.startswith("gathering, round 0 of 2\n")
    waits = {"event": "waiting", "at": 0.0, "parties": ["north"], "members": ["east", "west"]}
    (run / "events.jsonl").write_text(json.dumps(waits) + "\n")
    found = json.loads(status(tmp_path, "run", "--json").output)
    assert {name: one["state"] for name, one in found["members"].items()} == {
        "east": "here",
        "north": "away",
        "west": "here",
    }
    assert "waits for north since 1970-01-01" in status(tmp_path, "run").output


def test_a_run_of_train_is_shown_by_another_command(tmp_path: Path) -> None:
    written(tmp_path / "run")
    (tmp_path / "run" / "settings.toml").write_text(STUDY)
    found = status(tmp_path, "run")
    assert found.exit_code == 4 and "secure-fl runs show run" in found.stderr
