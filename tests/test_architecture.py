"""docs/architecture.md is true: its pictures, and the steps of its lists, followed one by one."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import grimp
import numpy as np
import pytest

from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.messages import FromCoordinator, FromParty
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.names import MAPPED, ROOT

SVG = "{http://www.w3.org/2000/svg}"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
IMAGES = ROOT / "docs" / "images"
GROUND = "ground"
FOLLOW = """
import json, sys, traceback
for title, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
        print(title)
    except Exception:
        traceback.print_exc()
"""
LISTS = ("Add an algorithm", "Add an attack", "Add an engine", "Add a task")


def picture(name: str) -> ElementTree.Element:
    return ElementTree.parse(IMAGES / name).getroot()  # noqa: S314 - our own file


def said(group: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in group.iter(f"{SVG}text")]


def floors() -> list[set[str]]:
    """The boxes of the picture, from the top."""
    boxes = []
    for group in picture("floors.svg").iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        assert box is not None and said(group)[0] == group.get("id")
        boxes.append((float(box.get("y", "")), group))
    boxes.sort(key=lambda one: one[0])
    rows = [[group for _, group in row] for _, row in groupby(boxes, key=lambda one: one[0])]
    return [{name for group in row for name in _in_box(group)} for row in rows]


def _in_box(group: ElementTree.Element) -> list[str]:
    name, says = said(group)
    return says.split(" · ") if name == GROUND else [name]


def test_the_picture_is_the_contract() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"]]
    drawn = floors()
    above = len(drawn) - 1  # the contract has an order in the ground, too
    assert drawn[:above] == layers[:above]
    assert drawn[above] == set().union(*layers[above:])


def test_the_picture_is_the_import_graph() -> None:
    graph = grimp.build_graph("secure_fl", exclude_type_checking_imports=True, cache_dir=None)
    graph.remove_module("secure_fl.__main__")  # `python -m secure_fl`: the command, on no floor
    at = {name: floor for floor, names in enumerate(floors()) for name in names}
    rooms = {module.split(".")[1] for module in graph.modules if "." in module}
    assert rooms == set(at)
    wrong = {
        f"{module} imports {target}"
        for module in graph.modules
        for target in graph.find_modules_directly_imported_by(module)
        if not _downwards(module.split(".")[1:2], target.split(".")[1:2], at)
    }
    assert wrong == set()


def _downwards(here: list[str], there: list[str], at: dict[str, int]) -> bool:
    if not here or not there or here == there:
        return True
    ground = len(floors()) - 1
    floor, below = at[here[0]], at[there[0]]
    return floor < below or floor == below == ground


def arrows() -> list[tuple[str, str]]:
    """Which way each message of the sequence goes, from the top."""
    groups = [g for g in picture("sequence.svg").iter(f"{SVG}g") if g.get("class")]
    return [(said(group)[0], group.get("class", "")) for group in groups]


def test_the_sequence_names_messages_in_their_direction() -> None:
    kinds = {"up": get_args(FromParty), "down": get_args(FromCoordinator)}
    assert all(getattr(messages, name) in kinds[way] for name, way in arrows())


@pytest.mark.parametrize("lost", [False, True], ids=["all there", "one lost"])
def test_the_sequence_is_what_is_sent(lost: bool) -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"x": np.ones(4)})

    out = federate(
        dict.fromkeys("abcd", program),
        mode="he+secagg",
        threshold=3,
        engine=lambda sessions: LossyEngine(sessions, {"d": 2} if lost else {}),
    )
    crossings = (event for event in out.events if event["event"] == "crossing")
    sent = [event["kind"] for event in crossings if event["party"] == "a"]
    drawn = [name for name, _ in arrows() if lost or not name.startswith("Confirm")]
    assert sent[sent.index("SumInput") : sent.index("Done")] == drawn


def blocks(title: str) -> list[tuple[str, str]]:
    """The code of a list: what each block is for, and the block."""
    part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r'```python(?: title="([^"]*)")?\n(.*?)```', part, re.S)


def test_every_list_has_three_steps() -> None:
    for title in LISTS:
        part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\*\*(\d)\. ", part, re.M) == ["1", "2", "3"], title


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which steps 1 and 2 of all lists were done."""
    place = tmp_path_factory.mktemp("extended")
    shutil.copytree(
        ROOT / "secure_fl", place / "secure_fl", ignore=shutil.ignore_patterns("__pycache__")
    )
    for title in LISTS:
        for target, code in blocks(title):
            path, _, table = target.partition(": ")
            inside = "secure_fl/" if path.split("/")[0] in MAPPED else ""
            if table:
                enter(place / f"{inside}{path}", table, code)
            elif path:
                (place / f"{inside}{path}").write_text(code, encoding="utf-8")
    return place


def enter(file: Path, table: str, code: str) -> None:
    """Put imports at the top, and the rest at the end of what is assigned to this name."""
    lines = code.splitlines(keepends=True)
    imports = "".join(line for line in lines if line.startswith("from "))
    entries = "".join(line for line in lines if not line.startswith("from "))
    text = file.read_text(encoding="utf-8")
    (value,) = [
        statement.value
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and ast.unparse(statement).startswith((f"{table} =", f"{table}:"))
    ]
    assert value is not None
    rows = text.encode().splitlines(keepends=True)
    end = sum(map(len, rows[: (value.end_lineno or 0) - 1])) + (value.end_col_offset or 0) - 1
    before, after = text.encode()[:end].decode().rstrip(), text.encode()[end:].decode()
    text = f"{before}{'' if before.endswith(',') else ','}\n{entries}{after}"
    top = "from __future__ import annotations\n"
    assert top in text
    file.write_text(text.replace(top, top + imports), encoding="utf-8")


@pytest.fixture(scope="module")
def followed(extended: Path) -> subprocess.CompletedProcess[str]:
    """The third steps, one after the other in one process."""
    steps = {title: code for title in LISTS for target, code in blocks(title) if not target}
    return subprocess.run(
        [sys.executable, "-c", FOLLOW, json.dumps(steps)],
        cwd=extended,
        env={**os.environ, "PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("title", LISTS)
def test_a_list_can_be_followed(title: str, followed: subprocess.CompletedProcess[str]) -> None:
    assert title in followed.stdout.splitlines(), followed.stderr
