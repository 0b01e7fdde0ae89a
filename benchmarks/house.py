"""`python -m benchmarks house`: how large the checkout is, and how its parts depend on each other.

The figures describe the code, and none is a limit that a test enforces. `--list ROW` shows the
places that a row counts. All are counted over files that git tracks:

- product: every .py outside tests, benchmarks, docs, examples and release; tests: tests/;
  benchmarks: benchmarks/ with its own tests
- parameters: without `self` and `cls`; lines of a function: from `def` to its end
- lines that name a feature: by the words in `FEATURE_WORDS`, outside paths that name the feature
- importers: of `secure_fl`'s modules, without imports for type checkers alone
- circles: sets of modules that import each other, imports for type checkers included
- first words: of the docstrings of functions and classes
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "secure_fl"
FEATURES = f"{PACKAGE}/features"
OTHER = ("tests", "benchmarks", "docs", "examples", "release")
MANY_PARAMETERS, MANY_LINES = 10, 40
FIRST_WORDS = ("What", "Who", "Whether", "Whose", "Of", "From")

Graph: TypeAlias = Mapping[str, frozenset[str]]  # a module -> the modules that it imports
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Words:
    """The words that name a feature, and the paths where they belong."""

    words: str  # a regular expression
    own: str  # a regular expression; its matches in a path make that file the feature's own


FEATURE_WORDS: Mapping[str, Words] = MappingProxyType(
    {
        # flare's Guard filters frames; scraping guards a page
        "guard": Words(r"\b[Gg]uard\w*", r"features/guard/|engines/flare/|pilot/scraping"),
        # the record of sums over unchanging records, for evaluations and codebooks
        "questions": Words(r"[Oo]pened_?[Qq]uestions", r"pilot/site_memory"),
        # the pooling of tokens in learning/ is another thing
        "pooling": Words(
            r"pooled_scores|\bPooling\b|[. ]_pooling\b|\bpooling=",
            r"features/pooled_scores/|learning/",
        ),
    }
)


@dataclass(frozen=True)
class Checkout:
    """The tracked Python files of a checkout."""

    root: Path

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of all tracked Python files."""
        command = ["git", "ls-files", "*.py"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return tuple(file for file in done.stdout.splitlines() if (self.root / file).is_file())

    @cached_property
    def product(self) -> Mapping[str, str]:
        """The text of each file of the product."""
        return {f: self._text(f) for f in self.files if f.split("/")[0] not in OTHER}

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """The syntax tree of each file of the product."""
        return {file: ast.parse(text) for file, text in self.product.items()}

    def lines(self, folder: str) -> int:
        """Count the lines below a folder."""
        chosen = (file for file in self.files if file.startswith(f"{folder}/"))
        return sum(self._text(file).count("\n") for file in chosen)

    def nodes(self) -> Iterator[tuple[str, ast.AST]]:
        """Give every node of every tree with its file."""
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                yield file, node

    def _text(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")


# --- the counts: each lists its places ---------------------------------------------------------


def feature_folders(checkout: Checkout) -> list[str]:
    """List the folders of optional features."""
    folder = checkout.root / FEATURES
    found = [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    return sorted(f"{FEATURES}/{one.name}" for one in found if any(one.glob("*.py")))


def feature_lines(checkout: Checkout, feature: str) -> list[str]:
    """List the lines that name a feature outside its own files."""
    known = FEATURE_WORDS[feature]
    words, own = re.compile(known.words), re.compile(known.own)
    return [
        f"{file}:{number}: {line.strip()}"
        for file, text in checkout.product.items()
        if not own.search(file)
        for number, line in enumerate(text.splitlines(), 1)
        if words.search(line)
    ]


def functions(checkout: Checkout) -> Iterator[tuple[str, Function]]:
    """Give every function and method with its file."""
    for file, node in checkout.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield file, node


def many_parameters(checkout: Checkout) -> list[str]:
    """List the functions with many parameters."""
    found = []
    for file, function in functions(checkout):
        given = function.args
        names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))
        if count >= MANY_PARAMETERS:
            found.append(f"{file}:{function.lineno}: {function.name}, {count} parameters")
    return found


def long_functions(checkout: Checkout) -> list[str]:
    """List the functions of many lines."""
    found = []
    for file, function in functions(checkout):
        count = (function.end_lineno or function.lineno) - function.lineno + 1
        if count > MANY_LINES:
            found.append(f"{file}:{function.lineno}: {function.name}, {count} lines")
    return found


def repeated(places: Iterable[tuple[str, str]]) -> list[str]:
    """List the names that occur at several places."""
    by_name: dict[str, list[str]] = {}
    for name, place in places:
        by_name.setdefault(name, []).append(place)
    return [f"{name}: {', '.join(found)}" for name, found in by_name.items() if len(found) > 1]


def repeated_classes(checkout: Checkout) -> list[str]:
    """List the names of classes that are defined more than once."""
    return repeated((x.name, f) for f, x in checkout.nodes() if isinstance(x, ast.ClassDef))


def repeated_files(checkout: Checkout) -> list[str]:
    """List the names of files that occur more than once."""
    paths = [Path(file) for file in checkout.product]
    return repeated((path.name, str(path)) for path in paths if path.name != "__init__.py")


def odd_docstrings(checkout: Checkout) -> list[str]:
    """List the docstrings of functions and classes that begin with a relative clause."""
    found = []
    for file, node in checkout.nodes():
        if isinstance(node, Function | ast.ClassDef):
            text = ast.get_docstring(node) or ""
            if re.match(rf"({'|'.join(FIRST_WORDS)})\b", text):
                found.append(f"{file}:{node.lineno}: {text.splitlines()[0]}")
    return found


def one_importer(graph: Graph) -> list[str]:
    """List the modules that exactly one other imports."""
    importers = Counter(imported for found in graph.values() for imported in found)
    return sorted(module for module, count in importers.items() if count == 1)


def circles(graph: Graph) -> list[str]:
    """List the sets of modules that reach each other by imports (Tarjan's components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in sorted(graph.get(module, ())):
            if imported not in order:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], order[imported])
        if lowest[module] == order[module]:
            at = stack.index(module)
            members, stack[at:] = stack[at:], []
            if len(members) > 1:
                found.append(", ".join(sorted(members)))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def imports(*, type_checking: bool) -> Graph:
    """Read the imports between the package's modules."""
    import grimp

    graph = grimp.build_graph(
        PACKAGE, exclude_type_checking_imports=not type_checking, cache_dir=None
    )
    return {m: frozenset(graph.find_modules_directly_imported_by(m)) for m in graph.modules}


# --- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str  # for --list
    what: str
    now: str
    before: str  # at commit 14023da
    goal: str
    places: Sequence[str] = ()


def counted(name: str, what: str, places: Sequence[str], before: str, goal: str) -> Row:
    """Make the row of a count."""
    return Row(name, what, f"{len(places):,}", before, goal, places)


def rows(checkout: Checkout) -> list[Row]:
    """Measure the checkout."""
    from tests.support.sum_trace import length, traced

    product = sum(text.count("\n") for text in checkout.product.values())
    folders = feature_folders(checkout)
    named = {feature: feature_lines(checkout, feature) for feature in FEATURE_WORDS}
    calls = traced("he+secagg")
    sealed = length(calls)
    words = ", ".join(FIRST_WORDS)
    return [
        Row("lines", "product: lines", f"{product:,}", "60,243", "≤ 49,000"),
        counted("modules", "product: modules", list(checkout.product), "450", "≤ 320"),
        Row("tests", "tests: lines", f"{checkout.lines('tests'):,}", "46,746", "≤ 40,000"),
        Row(
            "benchmarks",
            "benchmarks: lines",
            f"{checkout.lines('benchmarks'):,}",
            "17,515",
            "≤ 11,000",
        ),
        counted("features", f"folders in {FEATURES}", folders, "0", "8, each removable"),
        Row(
            "feature-lines",
            f"lines that name {', '.join(named)} outside their own files",
            f"{sum(map(len, named.values())):,} "
            f"({', '.join(f'{len(found)}' for found in named.values())})",
            "261 (117, 118, 26)",
            "≤ 20",
            [f"{feature}: {line}" for feature, found in named.items() for line in found],
        ),
        counted(
            "parameters",
            f"functions with {MANY_PARAMETERS} parameters or more",
            many_parameters(checkout),
            "10",
            "0",
        ),
        counted(
            "long", f"functions over {MANY_LINES} lines", long_functions(checkout), "27", "≤ 10"
        ),
        counted(
            "classes", "class names used more than once", repeated_classes(checkout), "43", "≤ 8"
        ),
        counted("files", "file names used more than once", repeated_files(checkout), "43", "–"),
        counted(
            "importers",
            "modules with one importer",
            one_importer(imports(type_checking=False)),
            "115",
            "≤ 45",
        ),
        counted(
            "circles",
            "import circles, type checking included",
            circles(imports(type_checking=True)),
            "8",
            "0",
        ),
        Row(
            "sum",
            "one sealed sum: files / functions / changes of file",
            " / ".join(map(str, sealed)),
            "25 / 187 / 299",
            "≤ 18 / 150 / 220",
            [f"{file}: {name}" for file, name in calls],
        ),
        counted(
            "docstrings",
            f"docstrings that begin with {words}",
            odd_docstrings(checkout),
            "453",
            "≤ 20",
        ),
    ]


def table(found: Sequence[Row]) -> Table:
    """Lay the rows out."""
    shown = Table("--list", "", title="The checkout", title_justify="left")
    for head in ("now", "at 14023da", "goal"):
        shown.add_column(head, justify="right")
    for row in found:
        shown.add_row(row.name, row.what, row.now, row.before, row.goal)
    return shown


@click.command()
@click.option("--list", "chosen", multiple=True, metavar="ROW", help="Show what a row counts.")
def house(chosen: Sequence[str]) -> None:
    """Count lines, modules, parameters, names, imports and docstrings of this checkout."""
    found = rows(Checkout(ROOT))
    names = [row.name for row in found]
    for name in chosen:
        if name not in names:
            raise click.BadParameter(f"{name!r} is no row; there are {', '.join(names)}")
    for row in found:
        if row.name in chosen:
            click.echo("\n".join(row.places))
    if not chosen:
        Console(width=110).print(table(found))
