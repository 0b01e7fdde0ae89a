"""The guides' TOML blocks are valid, and their command lines parse."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from secure_fl.cli.main import main
from secure_fl.config import toml as config_toml
from secure_fl.config.load import loads
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.statistics import questions

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = ("algorithms", "models", "differential-privacy", "evaluation", "statistics", "audits")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(secure-fl [^`]+)`")
COMPLETE = {"data": {"corpus": "ade", "parties": 3}, "algorithm": {"name": "fedavg"}}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, *kinds: str) -> Iterator[str]:
    yield from (body for kind, body in BLOCK.findall(page(name)) if kind in kinds)


@pytest.mark.parametrize("name", GUIDES)
def test_toml_is_valid(name: str) -> None:
    for body in blocks(name, "toml"):
        tables: dict[str, Any] = tomllib.loads(body)
        if "question" in tables:
            assert questions.loads(body[body.index("[[question]]") :])
        elif "site" in tables:
            SitePolicy.model_validate(tables["site"])
        else:
            loads(config_toml.write(COMPLETE | tables))


def lines(name: str) -> Iterator[str]:
    """Every command line of secure-fl in blocks, without prompts and comments, and in sentences."""
    for body in blocks(name, "bash", "text"):
        for line in body.replace("\\\n", " ").splitlines():
            if (typed := line.removeprefix("$ ")).startswith("secure-fl "):
                yield typed
    prose = BLOCK.sub("", page(name)).replace("\n", " ")
    yield from INLINE.findall(prose)


def require_parses(line: str) -> None:
    command: click.Command = main
    words = shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group) and words:
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{line}: there is no command {name}"
        command = found
    command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize("name", GUIDES)
def test_commands_and_their_options_exist(name: str) -> None:
    assert (typed := [*lines(name)])
    for line in typed:
        try:
            require_parses(line)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


@pytest.mark.parametrize("line", ["secure-fl trian x", "secure-fl train x --sett a=b"])
def test_a_wrong_line_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        require_parses(line)
