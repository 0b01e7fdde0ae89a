"""What must hold of a town after a storm."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.runs import checkpoint
from secure_fl.testing.hospitals import HOST
from tests.support.equality import equal_nested
from tests.support.faults import Storm, opened
from tests.support.storms import TIERS, WAYS, play, storm


def gatherings(town: Storm) -> list[str]:
    """Who took part, by the last letters of their names."""
    return ["".join(name[-1] for name in event["members"]) for event in town.seen("gathered")]


def done(town: Storm) -> str:
    """Who came to the end, by the last letters of their names."""
    return "".join(name[-1] for name, seat in sorted(town.processes.items()) if seat.done)


def notes_of(town: Storm) -> dict[str, list[dict[str, Any]]]:
    """Party -> what it let be opened; a line that was cut short was never acted upon."""
    found = {}
    for file in opened(town.folder):
        name = file.relative_to(town.folder).parts[0]
        whole = [line for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        found[name] = [note for note in map(json.loads, whole) if "round" in note]
    return found


def require_no_second_sum(town: Storm) -> None:
    """No party lets a sum of one round be opened over two sets, and no two sets have enough."""
    everywhere: dict[tuple[int, int], dict[frozenset[str], set[str]]] = defaultdict(dict)
    for party, notes in notes_of(town).items():
        mine: dict[tuple[int, int], set[tuple[frozenset[str], str]]] = defaultdict(set)
        for note in notes:
            if note["sum"] == 0:
                continue  # somebody joined
            at, who = (note["round"], note["sum"]), frozenset(note["survivors"])
            mine[at].add((who, note["what"]))
            everywhere[at].setdefault(who, set()).add(party)
        assert all(len(sets) == 1 for sets in mine.values()), f"{party} opened twice: {mine}"
    needed = town.roster.t
    for at, sets in everywhere.items():
        able = [who for who, by in sets.items() if len(by - {HOST}) >= needed]
        assert len(able) <= 1, f"round and sum {at} were opened over {able}"


def newest(town: Storm, name: str) -> dict[str, Any]:
    """A hospital's newest checkpoint."""
    rounds = sorted((town.folder / name).rglob("checkpoints/round-*"))
    found: dict[str, Any] = checkpoint.load(rounds[-1])
    return found | {"round": int(rounds[-1].name.removeprefix("round-"))}


def require_equal(town: Storm, way: str) -> None:
    """Who finished has the last round, and in it the same of what is shared."""
    names = [name for name, seat in town.processes.items() if seat.done]
    ends = {name: newest(town, name) for name in names}
    assert {end["round"] for end in ends.values()} == {2}
    for part in WAYS[way][1]:
        values = [end["keep"][part] for end in ends.values()]
        assert all(equal_nested(values[0], value) for value in values), f"{part} differs"
    if way in ("inclusivefl", "heterofl"):
        for tier in TIERS:
            models = [ends[n]["keep"]["model"] for n in names if town.members[n].tier == tier]
            assert all(equal_nested(models[0], each) for each in models[1:]), f"{tier} differs"


@cache
def undisturbed(way: str, mode: str) -> dict[str, dict[str, Any]]:
    """What a run without faults leaves at every party."""
    with TemporaryDirectory() as folder:
        town = storm(Path(folder), way, 0, mode=mode, most=0)
        assert play(town, 0) == []
        return {name: newest(town, name)["keep"] for name in town.members}


def require_untouched(town: Storm, way: str) -> bool:
    """If nobody is missing from any sum, faults leave no trace in any model."""
    everybody = set(town.members)
    if way == "fedavg-dp":
        return False  # noise is never the same twice
    if any(set(n["survivors"]) != everybody for notes in notes_of(town).values() for n in notes):
        return False
    for name, keep in undisturbed(way, town.plan.protection.mode).items():
        assert equal_nested(newest(town, name)["keep"], keep), f"{name} ends elsewhere"
    return True


def spent(town: Storm) -> dict[str, list[str]]:
    """What is reserved in every ledger, in order."""
    return {
        file.relative_to(town.folder).parts[0]: [
            e.event for e in load_chain(file).entries if e.state == "reserved"
        ]
        for file in town.folder.rglob(LEDGER)
    }
