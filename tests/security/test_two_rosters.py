"""Nobody collects all signatures under a roster: who has another one has no part in a sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_fl.crypto.identity import Identity
from secure_fl.crypto.roster import Member
from secure_fl.errors import WireError
from secure_fl.pilot import gathering, hospital, lobby
from secure_fl.testing.pilot import LocalPilot, local_pilot
from tests.support.raising import raises


def told_another(folder: Path) -> LocalPilot:
    """The third hospital was sent a roster with a stranger on it, and has approved that."""
    made = local_pilot(folder)
    honest, stranger = made.roster, Identity.generate("mallory").public
    longer = (*honest.members, Member("mallory", "party", None, stranger))
    made.roster = replace(honest, members=longer, threshold=honest.t)
    made.kill("hospital-3")
    made.start("hospital-3")
    made.roster = honest
    return made


def test_without_the_roster_in_a_run_s_id_both_would_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(roster: Any, plan: str, nonces: Any) -> bytes:
        return lobby.run_id(made.roster, plan, nonces)

    made = told_another(tmp_path)
    monkeypatch.setattr(gathering, "run_id", careless)
    monkeypatch.setattr(hospital, "run_id", careless)
    made.lead().run()
    assert all(process.done for process in made.processes.values())


def test_a_site_with_another_roster_has_another_run(tmp_path: Path) -> None:
    made = told_another(tmp_path)
    with raises(WireError, "another run's id", party="hospital-3"):
        made.lead().run()
    opened = [file.read_text() for file in tmp_path.rglob("opened.jsonl")]
    assert not made.seen("round") and not any(opened)
    for process in made.processes.values():
        process.close()
