"""Which names the code has, read off its text: modules, what they define, members of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAPPED = ("crypto", "algorithms", "audits", "cli")  # top-level folders that are in secure_fl
Members = dict[str, frozenset[str]]  # of each name in a module: what stands in it, if it is a class


@cache
def modules() -> dict[str, Members]:
    """Every module by its full name, and the names in it."""
    found = {}
    for folder in ("secure_fl", "benchmarks", *MAPPED):
        for path in (ROOT / folder).rglob("*.py"):
            parts = [*path.relative_to(ROOT).with_suffix("").parts]
            if folder in MAPPED:
                parts.insert(0, "secure_fl")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = dict(_defined(ast.parse(path.read_text(encoding="utf-8")).body))
    return found


def exists(dotted: str) -> bool:
    """Whether this leads somewhere: `module.name`, `Class.member`, or a package from elsewhere.

    A module may be named from any of its packages on: `fedavg.fedavg`, `baselines.dsfl.dsfl`. A
    class stands for its instances: `cohort.sum` is `Cohort.sum`.
    """
    *_, owner, member = ["", *dotted.split(".")]
    classes = {owner, owner[:1].upper() + owner[1:]}
    if any(member in names.get(one, ()) for names in modules().values() for one in classes):
        return True
    if any(_leads(name, names, dotted) for name, names in modules().items()):
        return True
    first = dotted.split(".")[0]
    ours = {name.rpartition(".")[2] for name in modules()} | {"secure_fl"}
    return first not in ours and find_spec(first) is not None


def _leads(module: str, names: Members, dotted: str) -> bool:
    """Whether the name begins with the end of this module's name, and goes on inside it."""
    if f".{module}".endswith(f".{dotted}"):
        return True
    parts = dotted.split(".")
    for at in range(1, len(parts)):
        if f".{module}".endswith(f".{'.'.join(parts[:at])}"):
            inside, *members = parts[at:]
            if inside in names and (not members or members[0] in names[inside]):
                return True
    return False


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, frozenset[str]]]:
    for statement in body:
        match statement:
            case ast.ClassDef():
                yield statement.name, frozenset(_members(statement))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name, frozenset()
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name, frozenset()) for alias in statement.names)
            case ast.If():
                yield from _defined(statement.body)
            case _:
                yield from ((name, frozenset()) for name in _assigned(statement))


def _members(defined: ast.ClassDef) -> Iterator[str]:
    """Fields, methods, and what `__init__` sets."""
    for statement in defined.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        yield from _assigned(statement)
    for node in ast.walk(defined):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _assigned(statement: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    yield from (target.id for target in targets if isinstance(target, ast.Name))
