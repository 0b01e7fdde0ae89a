"""The skill for coding agents: its blocks, followed literally, give what its checks say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from secure_fl.pilot.plan import load_plan
from tests.support.names import ROOT

DOCS = ROOT / "docs"
SKILL = DOCS / "skills" / "federate-a-script" / "SKILL.md"


def follow(skill: Path, folder: Path) -> list[str]:
    """Write the files and run the commands of a page, in order; return the outputs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    outputs = []
    for language, block in re.findall(r"```(python|bash)\n(.*?)```", skill.read_text(), re.S):
        if language == "bash":
            done = subprocess.run(
                ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout)
        elif named := re.match(r"# (\w+\.py)\n", block):
            (folder / named[1]).write_text(block)
    return outputs


def test_the_skill_followed_literally_gives_a_plan(tmp_path: Path) -> None:
    before, after, attacked, planned = follow(SKILL, tmp_path)
    alone = float(before.removeprefix("accuracy "))
    scores = [float(score) for score in re.findall(r": (0\.\d+)", after)]
    assert 0.9 <= alone <= 1 and len(scores) == 3 and min(scores) > 0.7
    assert "reading one hospital by coordinator -> holds" in attacked
    assert planned == (tmp_path / "plan.toml").read_text()
    plan = load_plan(tmp_path / "plan.toml")
    assert plan.algorithm.name == "script" and plan.protection.bits == 16
    assert getattr(plan.algorithm, "sha256", None) and getattr(plan.algorithm, "values", None)


def test_links_for_coding_agents_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text())
    assert len(targets) > 15 and all((DOCS / target).is_file() for target in targets)
