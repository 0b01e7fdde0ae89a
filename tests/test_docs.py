"""What the pages point to exists: links, files, modules and names in them, commands; the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import secure_fl
from tests.support.names import MAPPED, ROOT, exists

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "examples" / "README.md", *sorted((ROOT / "docs" / "governance").glob("*.md"))]
NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]  # that one tells what was
FOLDERS = ("secure_fl", "tests", "benchmarks", "docs", "examples", "deploy", *MAPPED)
DATA = ("json", "jsonl", "toml", "html", "sqlite", "key", "csv", "bundle", "pem", "md", "public",
        "safetensors", "yaml")  # fmt: skip


def quoted(page: Path) -> set[str]:
    """What stands between backticks, outside of blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return {one.split("(")[0] for one in re.findall(r"`([^`\n]+)`", text)}


@cache
def settings() -> set[str]:
    """`section.field` of settings files and of what runs leave."""
    from secure_fl.cli.settings import sections

    named = [(title.split(",")[0].strip("[]"), section) for title, section in sections().items()]
    fields = {f"{title}.{field}" for title, section in named for field in section.model_fields}
    tables = {title for title, _ in named}
    return fields | tables | {"metrics.best", "metrics.last", "roster.tier"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    paths = [one for one in quoted(page) if re.match(rf"({'|'.join(FOLDERS)})/[\w./*-]*$", one)]
    missing = [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_modules_and_names_that_are_named_exist(page: Path) -> None:
    dotted = [one for one in quoted(page) if re.match(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", one)]
    code = [one for one in dotted if one.rpartition(".")[2] not in DATA and one not in settings()]
    assert [one for one in code if not exists(one.removesuffix(".py"))] == []


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"| `{before}{name}` | {command.get_short_help_str(200)} |"


def test_the_table_of_commands_is_the_program() -> None:
    from secure_fl.cli.main import main

    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = "\n".join(commands(main))
    assert page.partition("| --- | --- |\n")[2].split("\n\n")[0].strip() == rows, rows


def test_the_program_shows_a_page() -> None:
    from secure_fl.cli.main import main

    text = (ROOT / "docs" / "governance" / "dpia.md").read_text(encoding="utf-8").strip()
    for typed in ("governance/dpia", "docs/governance/dpia.md"):
        assert CliRunner().invoke(main, ["docs", typed]).output.strip() == text


def test_every_public_name_is_on_its_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: secure_fl\.[\w.]*\.(\w+)$", page, re.M)
    assert sorted(named) == secure_fl.__all__


def test_the_site_builds_strictly_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = r'<(?:script|link|img)[^>]*(?:src|href)="?(?:https?:)?//[^">\s]*'
        found = re.findall(loaded, page.read_text(encoding="utf-8"))
        assert [one for one in found if "canonical" not in one] == [], page.name
