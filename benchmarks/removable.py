"""`python -m benchmarks removable`: delete each feature from a copy, and test the rest.

A copy of the checkout loses the feature's folder, its tests, its entry in the table and the lines
of pyproject.toml that name its modules. The rest must keep the import contracts, print its help
and its settings, and pass a selection of the fast tests.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from secure_fl.features import FEATURES

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("secure_fl/features/__init__.py")
TESTS = (
    "tests/policy",
    "tests/config/test_round_trip.py",
    "tests/party",
    "tests/security/test_promises_p1.py",
    "tests/conformance/test_door.py",
    "tests/federation/test_library.py",
    "tests/cli/test_status.py",
    "tests/pilot/test_kits.py",
    "tests/e2e/test_demo.py",
)


def copy_checkout(folder: Path, without: tuple[str, ...] = ()) -> None:
    """Copy the files of the checkout that git does not ignore, except those below some paths."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, files.split("\0")):
        source = ROOT / file
        if file.startswith(without) or not os.path.lexists(source):
            continue
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).unlink(missing_ok=True)
        shutil.copy2(source, folder / file, follow_symlinks=False)


def copy_without(name: str, folder: Path) -> None:
    """Copy the checkout, without one feature."""
    copy_checkout(folder, (f"secure_fl/features/{name}/", f"tests/features/{name}/"))
    table = folder / TABLE
    table.write_text(without_entry(table.read_text(encoding="utf-8"), name), encoding="utf-8")
    project = folder / "pyproject.toml"
    lines = project.read_text(encoding="utf-8").splitlines(keepends=True)
    named = re.compile(rf"secure_fl\.features\.{name}\b")
    kept = (line for line in lines if not named.search(line))
    project.write_text("".join(kept), encoding="utf-8")


def without_entry(text: str, name: str) -> str:
    """Remove a feature's entry from the text of the table."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name and _is_entry(value):
                    return "".join(lines[: key.lineno - 1] + lines[value.end_lineno :])
    raise click.UsageError(f"{TABLE} has no entry {name!r}")


def _is_entry(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Feature"


def failures(name: str, tests: Sequence[str] = TESTS) -> list[str]:
    """Delete one feature from a copy, and return the output of each command that fails there."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        copy_without(name, folder)
        python = [sys.executable, "-m"]
        contracts = "from importlinter.cli import lint_imports_command as main; main()"
        commands = [
            [sys.executable, "-c", contracts],
            [*python, "secure_fl", "--help"],
            [*python, "secure_fl", "settings"],
            [*python, "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *tests],
        ]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        found = []
        for command in commands:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                found.append(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
        return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(FEATURES)))
def removable(names: Sequence[str]) -> None:
    """Delete each feature, or those of NAMES, from a copy of the checkout, and test the rest."""
    failed = 0
    for name in names or FEATURES:
        found = failures(name)
        click.echo(f"{name}: {'fails' if found else 'removable'}")
        for output in found:
            click.echo(output)
        failed += bool(found)
    count = len(names or FEATURES)
    click.echo(f"{count - failed} of {count} features can be removed")
    if failed:
        raise click.exceptions.Exit(1)
