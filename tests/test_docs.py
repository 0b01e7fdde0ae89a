"""Targets of the pages exist: links, files, modules, names and commands; the site builds."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import secure_fl
from secure_fl.algorithms.settings import FedAvg
from secure_fl.cli import docs as reference
from secure_fl.cli.main import COMMANDS, main
from secure_fl.runs.result_schema import FIELDS
from secure_fl.testing.hospitals import small
from tests.support.names import MAPPED, ROOT, exists

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "examples" / "README.md", *sorted((ROOT / "docs" / "governance").glob("*.md"))]
PAGES += sorted((ROOT / "benchmarks" / "results").glob("*.md"))
NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]  # it names earlier things
GENERATED = {ROOT / "docs" / name for name in reference.SITE}
FOLDERS = ("secure_fl", "tests", "benchmarks", "docs", "examples", "deploy", *MAPPED)
DATA = ("json", "jsonl", "toml", "html", "sqlite", "key", "csv", "bundle", "pem", "md", "pub",
        "public", "safetensors", "yaml", "gz")  # fmt: skip


def quoted(page: Path) -> set[str]:
    """Read the texts between backticks, outside of blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return {one.split("(")[0] for one in re.findall(r"`([^`\n]+)`", text)}


@cache
def settings() -> set[str]:
    """List `section.field` of settings files and of results."""
    from secure_fl.cli.settings import sections

    named = [(title.split(",")[0].strip("[]"), section) for title, section in sections().items()]
    fields = {f"{title}.{field}" for title, section in named for field in section.model_fields}
    tables = {title for title, _ in named}
    return fields | tables | {"metrics.best", "metrics.last", "roster.tier"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file = (page.parent / target).resolve()
            assert file.exists() or file in GENERATED, target


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    paths = [one for one in quoted(page) if re.match(rf"({'|'.join(FOLDERS)})/[\w./*-]*$", one)]
    missing = [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_the_modules_of_each_paper_exist() -> None:
    """The tables on this page name modules without the folder that the text above them names."""
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    lists = re.findall(r"Modules named (`[^;.]+?) are in\s+`([^`]+)`", page)
    files = [
        ROOT / folder / f"{name}.py" for names, folder in lists for name in names.split("`")[1::2]
    ]
    assert len(files) > 8 and [file for file in files if not file.exists()] == []


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_modules_and_names_that_are_named_exist(page: Path) -> None:
    dotted = [one for one in quoted(page) if re.match(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", one)]
    code = [one for one in dotted if one.rpartition(".")[2] not in DATA and one not in settings()]
    assert [one for one in code if not exists(one.removesuffix(".py"))] == []


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["docs", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("typed", ["governance/dpia", "docs/governance/dpia.md"])
def test_the_program_prints_a_page(typed: str) -> None:
    text = (ROOT / "docs" / "governance" / "dpia.md").read_text(encoding="utf-8")
    assert shown(typed) == text


def test_the_program_prints_its_reference() -> None:
    for name in COMMANDS:
        assert f"| `{name}" in shown("commands"), name
    assert "## `[training.dp]`" in shown("settings")
    assert json.loads(shown("audit-schema"))["$ref"].endswith("AuditDocument")
    assert "result.json" in shown("result-schema")


def test_the_api_lists_every_public_name_with_its_signature() -> None:
    text = shown("api")
    assert re.findall(r"^### `(\w+)`$", text, re.M)[: -len(reference.SINKS)] == [
        name for names in reference.api_groups().values() for name in names
    ]
    names = [name for names in reference.api_groups().values() for name in names]
    assert sorted(names) == secure_fl.__all__
    assert "    algorithm: Algorithm | type[Algorithm] | str,\n" in text and ":::" not in text
    assert "- `protection`: " in text and "Federation.run(engine: MakeEngine = LocalEngine)" in text


def test_a_terminal_shows_pages_rendered() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "secure_fl", "docs", "commands"]
    environment = {**os.environ, "TERM": "xterm", "PAGER": "cat"}
    done = subprocess.run(command, cwd=ROOT, stdout=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    text = os.read(ours, 4096).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "Commands" in text and "# Commands" not in text and "| --- |" not in text


def test_a_mistyped_page_is_an_error_of_the_command_line() -> None:
    done = CliRunner().invoke(main, ["docs", "setings"])
    assert done.exit_code == 2 and "did you mean settings?" in done.output


def test_every_field_of_a_result_is_described() -> None:
    document = small(FedAvg(rounds=1)).run().document
    in_pilots = {"approvals", "convicted"}
    assert set(document) | in_pilots == set(FIELDS)


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
