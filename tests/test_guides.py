"""The TOML blocks of all pages are valid, and their command lines parse."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from secure_fl.config import toml as config_toml
from secure_fl.config.load import loads
from secure_fl.features.statistics.opening import loads_codebook
from secure_fl.pilot.plan import load_plan
from secure_fl.policy.policy_file import DataSet, SitePolicy
from tests.support.command_line import parse

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = {"algorithms", "models", "differential-privacy", "evaluation", "statistics", "audits"}
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^ *(?:[\w.-]*\$ )?(?:venv/bin/)?secure-fl (.*)$", re.M)
INLINE = re.compile(r"`secure-fl ([^`]+)`")
COMPLETE = {"data": {"corpus": "ade", "parties": 3}, "algorithm": {"name": "fedavg"}}


def require_valid(body: str, folder: Path) -> None:
    """Refuse a block of a settings file, plan, site file or codebook with wrong fields."""
    tables: dict[str, Any] = tomllib.loads(body)
    if "dataset" in tables:
        plan = folder / "plan.toml"
        plan.write_text(body, encoding="utf-8")
        load_plan(plan)
    elif tables.get("algorithm", {}).get("name") == "statistics":
        loads_codebook(body)
    elif "site" in tables or "set" in tables.get("data", {}):
        SitePolicy.model_validate(tables.get("site", {}))
        for data_set in tables.get("data", {}).get("set", []):
            DataSet.model_validate(data_set)
    elif "project" not in tables:  # a package's file, which is not ours
        loads(config_toml.write(COMPLETE | tables))


def lines(page: Path) -> Iterator[str]:
    """Every command line of secure-fl in blocks, without prompts, and in sentences."""
    text = page.read_text(encoding="utf-8")
    for _, body in BLOCK.findall(text):
        yield from COMMAND.findall(body.replace("\\\n", " "))
    yield from INLINE.findall(BLOCK.sub("", text).replace("\n", " "))


def require_parses(line: str) -> None:
    words = [word for word in shlex.split(line.replace("...", ""), comments=True) if word != "&"]
    if words and words[-1].startswith("--"):  # a sentence names an option without its value
        words.append("VALUE")
    parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_toml_is_valid(page: Path, tmp_path: Path) -> None:
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "toml":
            require_valid(body, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    typed = [line for line in lines(page) if not line.endswith("COMMAND --help")]
    assert typed or page.stem not in GUIDES
    for line in typed:
        try:
            require_parses(line)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


@pytest.mark.parametrize("line", ["trian x", "train x --sett a=b"])
def test_a_wrong_command_line_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        require_parses(line)


@pytest.mark.parametrize("body", ["[modle]\n", "[site]\nrouns = 3\n", "[model]\nrank = 8\n"])
def test_a_wrong_block_is_found(body: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"rouns|modle|rank"):
        require_valid(body, tmp_path)
