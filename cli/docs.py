"""`secure-fl docs`: the installed pages, and Markdown pages that are generated from the program."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any

import click

DISTRIBUTION, SHARED = "sealed-federation", "share/doc/secure_fl"


@click.command(
    epilog="""\b
Examples:
  secure-fl docs             list the pages
  secure-fl docs pilot       read docs/pilot.md on the terminal
  secure-fl docs settings    a page that is generated from the program
  secure-fl docs governance/dpia | less"""
)
@click.argument("page", required=False)
def docs(page: str | None) -> None:
    """Read a PAGE of the documentation, or list the pages."""
    from secure_fl.errors import nearest

    folder = installed_root() / "docs"
    files = {_name(folder, file): file for file in sorted(folder.rglob("*.md"))}
    if page is None:
        _list(folder, files, GENERATED)
        return
    name = page.removeprefix("docs/").removesuffix(".md").removesuffix("/README")
    if name in files:
        _show(files[name].read_text(encoding="utf-8"))
    elif name in GENERATED:
        _show(GENERATED[name]())
    else:
        known = sorted({*files, *GENERATED})
        raise click.UsageError(f"there is no page {page!r}; {nearest(name, known)}")


def _list(folder: Path, files: Mapping[str, Path], generated: Iterable[str]) -> None:
    click.echo(f"in {folder}:")
    for name, file in files.items():
        click.echo(f"  {name:<21} {_title(file)}")
    click.echo("generated from the program:")
    for name in generated:
        click.echo(f"  {name}")


def _show(text: str) -> None:
    """Print a page: as Markdown if the output is no terminal, else rendered, through a pager."""
    if not sys.stdout.isatty() or text.startswith("{"):
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    rendered = StringIO()
    Console(file=rendered, force_terminal=True, width=min(get_terminal_size().columns, 100)).print(
        Markdown(text, hyperlinks=False)
    )
    click.echo_via_pager(rendered.getvalue())


def installed_root() -> Path:
    """Return the folder of docs/ and examples/: this checkout, or the wheel's data."""
    import secure_fl
    from secure_fl.errors import RunError

    checkout = Path(secure_fl.__file__).parent.parent
    if (checkout / "docs" / "pilot.md").exists():
        return checkout
    from importlib.metadata import files

    for file in files(DISTRIBUTION) or ():
        if file.as_posix().endswith(f"{SHARED}/README.md"):
            return Path(str(file.locate())).resolve().parent
    fix = "install the complete wheel, or read docs/ in the release"
    raise RunError("no pages are installed", fix=fix, file=checkout, reason="missing")


def _name(docs: Path, file: Path) -> str:
    """Return what a user types for a page; a folder's first page has the folder's name."""
    return file.relative_to(docs).with_suffix("").as_posix().removesuffix("/README")


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as page:  # a skill begins with metadata
        return next((line.lstrip("# ").strip() for line in page if line.startswith("#")), "")


COMMANDS = """\
# Commands

`secure-fl COMMAND --help` explains a command and shows examples. `secure-fl --help` lists the exit
statuses. Benchmarks run from a checkout only: `python -m benchmarks --help`.

| command | description |
| --- | --- |
"""
API = """\
# Python API

`from secure_fl import ...` provides these names; each is imported on first use. Other names can
move between releases. [Settings](settings.md) explains the fields of settings and algorithms.
"""
SINKS = ("to_csv", "to_tensorboard", "to_mlflow")
RECORDS = ("Text", "Tagged", "Impression", "Columns")
INSIDE = ("Task", "Cohort", "Site")
FIRST = ("Federation", "Silo", "Result", "SecureFLError")
MEMBERS = MappingProxyType({"Federation": ("run",)})  # of other classes all


def commands() -> str:
    """Return the table of all commands."""
    from secure_fl.cli.main import main

    rows = (f"| `{name}` | {text} |\n" for name, text in _commands(main))
    return COMMANDS + "".join(rows)


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, str]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        elif command is not None:
            yield f"{before}{name}", command.get_short_help_str(200)


def settings() -> str:
    """Return the fields of all sections of settings files."""
    from secure_fl.cli.settings import page

    return page()


def result_schema() -> str:
    """Return the fields of result.json."""
    from secure_fl.runs.result_schema import page

    return page()


def audit_schema() -> str:
    """Return the JSON schema of audit.json."""
    from secure_fl.audits.document import json_schema

    return json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- the Python API ----------------------------------------------------------------------------


def api() -> str:
    """Return the public names with their signatures and descriptions."""
    return _api(_described)


def api_directives() -> str:
    """Return the public names as directives for mkdocstrings."""
    return _api(_directive)


def api_groups() -> Mapping[str, Sequence[str]]:
    """Group the public names by purpose."""
    import secure_fl
    from secure_fl.algorithms.base import Algorithm

    names = secure_fl.__all__
    settings = [name for name in names if name.endswith("Settings")]
    found = {name: getattr(secure_fl, name) for name in names}
    algorithms = [
        name for name, it in found.items() if isinstance(it, type) and issubclass(it, Algorithm)
    ]
    grouped = {*FIRST, *RECORDS, *INSIDE, *settings, *algorithms}
    return {
        "A federation": [*FIRST, *(name for name in names if name not in grouped)],
        "Records": RECORDS,
        "Algorithms": algorithms,
        "Settings": settings,
        "Inside an algorithm": INSIDE,
    }


def _api(entry: Callable[[str, Any, bool], str]) -> str:
    """Join the entries of all groups; fields of settings are on another page."""
    import secure_fl
    from secure_fl.display import sinks

    parts = [API]
    for title, names in api_groups().items():
        fields = title in ("Records", "Algorithms", "Settings")
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(secure_fl, name), not fields) for name in names]
    parts += ["## Scores in other tools\n", f"{inspect.cleandoc(sinks.__doc__ or '')}\n"]
    parts += [entry(name, getattr(sinks, name), True) for name in SINKS]
    return "\n".join(parts)


def _directive(name: str, found: Any, members: bool) -> str:
    shown = ", ".join(MEMBERS.get(name, ())) if members else ""
    options = f"    options: {{members: [{shown}]}}\n" if shown or not members else ""
    return f"::: {found.__module__}.{found.__qualname__}\n{options}"


def _described(name: str, found: Any, members: bool) -> str:
    """Describe one name: its signature, docstring and public methods."""
    shown = MEMBERS.get(name) or [n for n in vars(found) if not n.startswith("_")]
    methods = [(n, getattr(found, n)) for n in (shown if members else ())]
    fields = [f"`{field}`" for field in getattr(found, "model_fields", ())]
    call = [f"Fields: {', '.join(fields)}.\n"] if fields else _signature(name, found)
    lines = [f"### `{name}`\n", *call, f"{_text(found)}\n"]
    for method, function in methods:
        if callable(function) and function.__doc__ and isinstance(found, type):
            first = _text(function).partition("\n\n")[0]
            lines += [*_signature(f"{name}.{method}", function), f"{first}\n"]
    return "\n".join(lines)


def _signature(name: str, found: Any) -> Iterator[str]:
    """Write a signature as code, with one parameter per line."""
    signature = inspect.signature(found)
    own = ("self", "_")  # not for callers
    parameters = [p for p in signature.parameters.values() if not p.name.startswith(own)]
    listed = [_parameter(str(parameter)) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        listed.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = signature.return_annotation
    arrow = f" -> {returned}" if isinstance(returned, str) and returned != "None" else ""
    line = f"{name}({', '.join(listed)}){arrow}"
    if len(line) > 96:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in listed) + f"){arrow}"
    yield f"```python\n{line}\n```\n"


def _parameter(text: str) -> str:
    """Write a parameter without the quotes of its annotation, and its default by name."""
    text = re.sub(r"""^(\*{0,2}\w+): (["'])(.*?)\2(?= =|$)""", r"\1: \3", text)
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    return re.sub(r"<.*>$", "...", text)


def _text(found: Any) -> str:
    """Return a docstring as Markdown: lists of arguments become lists."""
    text = inspect.getdoc(found) or ""
    return re.sub(r"^    (\w+)(?: \(.*?\))?: ", r"- `\1`: ", text, flags=re.MULTILINE)


GENERATED: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "commands": commands,
        "settings": settings,
        "api": api,
        "result-schema": result_schema,
        "audit-schema": audit_schema,
    }
)
SITE: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        f"{name}.{'json' if name == 'audit-schema' else 'md'}": page
        for name, page in GENERATED.items()
    }
    | {"api.md": api_directives}
)
