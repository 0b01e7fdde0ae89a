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
    """List the sets of modules that reach each other by imports."""
    import networkx  # type: ignore[import-untyped]

    directed = networkx.DiGraph({module: sorted(found) for module, found in graph.items()})
    components = networkx.strongly_connected_components(directed)
    return sorted(", ".join(sorted(found)) for found in components if len(found) > 1)


def imports(*, type_checking: bool) -> Graph:
    """Read the imports between the package's modules."""
    import grimp

    graph = grimp.build_graph(
        PACKAGE, exclude_type_checking_imports=not type_checking, cache_dir=None
    )
    return {m: frozenset(graph.find_modules_directly_imported_by(m)) for m in graph.modules}


# --- the table ---------------------------------------------------------------------------------


ROWS: Mapping[str, tuple[str, str, str]] = {  # by the name for --list: what, then, and the goal
    "lines": ("product: lines", "60,243", "≤ 49,000"),
    "modules": ("product: modules", "450", "≤ 320"),
    "tests": ("tests: lines", "46,746", "≤ 40,000"),
    "benchmarks": ("benchmarks: lines", "17,515", "≤ 11,000"),
    "features": (f"folders in {FEATURES}", "0", "8, each removable"),
    "feature-lines": (
        f"lines that name {', '.join(FEATURE_WORDS)} outside their own files",
        "261 (117, 118, 26)",
        "≤ 20",
    ),
    "parameters": (f"functions with {MANY_PARAMETERS} parameters or more", "10", "0"),
    "long": (f"functions over {MANY_LINES} lines", "27", "≤ 10"),
    "classes": ("class names used more than once", "43", "≤ 8"),
    "files": ("file names used more than once", "43", "–"),
    "importers": ("modules with one importer", "115", "≤ 45"),
    "circles": ("import circles, type checking included", "8", "0"),
    "sum": (
        "one sealed sum: files / functions / changes of file",
        "25 / 187 / 299",
        "≤ 18 / 150 / 220",
    ),
    "docstrings": (f"docstrings that begin with {', '.join(FIRST_WORDS)}", "453", "≤ 20"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    now: str
    places: Sequence[str] = ()


def rows(checkout: Checkout) -> list[Row]:
    """Measure the checkout."""
    from tests.support.sum_trace import length, traced

    named = {feature: feature_lines(checkout, feature) for feature in FEATURE_WORDS}
    counts = [len(found) for found in named.values()]
    calls = traced("he+secagg")
    product = sum(text.count("\n") for text in checkout.product.values())
    now = {
        "lines": f"{product:,}",
        "tests": f"{checkout.lines('tests'):,}",
        "benchmarks": f"{checkout.lines('benchmarks'):,}",
        "feature-lines": f"{sum(counts):,} ({', '.join(map(str, counts))})",
        "sum": " / ".join(map(str, length(calls))),
    }
    places: dict[str, Sequence[str]] = {
        "modules": list(checkout.product),
        "features": feature_folders(checkout),
        "feature-lines": [f"{feature}: {line}" for feature in named for line in named[feature]],
        "parameters": many_parameters(checkout),
        "long": long_functions(checkout),
        "classes": repeated_classes(checkout),
        "files": repeated_files(checkout),
        "importers": one_importer(imports(type_checking=False)),
        "circles": circles(imports(type_checking=True)),
        "sum": [f"{file}: {name}" for file, name in calls],
        "docstrings": odd_docstrings(checkout),
    }
    listed = {name: places.get(name, ()) for name in ROWS}
    return [Row(name, now.get(name, f"{len(found):,}"), found) for name, found in listed.items()]


def table(found: Sequence[Row]) -> Table:
    """Lay the rows out."""
    shown = Table("--list", "", title="The checkout", title_justify="left")
    for head in ("now", "at 14023da", "goal"):
        shown.add_column(head, justify="right")
    for row in found:
        what, before, goal = ROWS[row.name]
        shown.add_row(row.name, what, row.now, before, goal)
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
