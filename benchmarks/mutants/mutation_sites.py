"""Small changes of a Python module, each at one place of its source text.

A site is an expression or statement with one or more replacements. These are no sites, because a
change could not alter behaviour, or only prose and what mypy checks:

- annotations (except the bounds in `msgspec.Meta`), type aliases, decorators, `__all__`, docstrings
- assertions, `raise AssertionError`, code for type checkers, the `strict` of `zip`
- the text of errors (all but `reason`), f-strings, and strings with blanks
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SWAPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
TYPES = ("TypeAlias", "TypeVar", "NewType", "Literal", "cast")
CHECKED_BY_MYPY = ("frozen", "slots", "strict", "kw_only")  # keywords that are no sites
ERRORS = "secure_fl.errors"


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a module, and the texts that can replace it."""

    kind: str
    start: tuple[int, int]  # line from 1, byte from 0
    end: tuple[int, int]
    statement: tuple[int, int]  # first and last line of its statement, without a body
    in_function: bool  # False: it runs on import
    texts: tuple[str, ...]


def sites(source: str) -> list[Site]:
    """List the sites of a module in the order of its text."""
    tree = ast.parse(source)
    found = _Finder(_error_names(tree))
    found.block(tree.body, in_function=False)
    return sorted(found.sites, key=lambda site: (site.start, site.end, site.kind))


def mutated(source: str, site: Site, text: str) -> str:
    """Replace a site by a text; every other byte stays."""
    lines = source.encode().splitlines(keepends=True)
    (first, left), (last, right) = site.start, site.end
    replaced = lines[first - 1][:left] + text.encode() + lines[last - 1][right:]
    return b"".join([*lines[: first - 1], replaced, *lines[last:]]).decode()


def original(source: str, site: Site) -> str:
    """Return the text of a site."""
    lines = source.encode().splitlines(keepends=True)[site.start[0] - 1 : site.end[0]]
    lines[-1] = lines[-1][: site.end[1]]
    lines[0] = lines[0][site.start[1] :]
    return b"".join(lines).decode()


def _error_names(tree: ast.Module) -> frozenset[str]:
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return frozenset(a.name for node in imports if node.module == ERRORS for a in node.names)


class _Finder:
    """Walks statements and expressions, and collects sites."""

    def __init__(self, errors: frozenset[str]) -> None:
        self.errors = errors
        self.sites: list[Site] = []
        self.statement = (0, 0)
        self.in_function = False

    def add(self, kind: str, node: ast.expr | ast.stmt, *texts: str) -> None:
        """Add a site of the present statement."""
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        assert end[0] is not None and end[1] is not None  # noqa: S101  # of parsed code
        site = Site(kind, start, (end[0], end[1]), self.statement, self.in_function, texts)
        self.sites.append(site)

    def block(self, body: Sequence[ast.stmt], *, in_function: bool) -> None:
        """Walk statements."""
        for node in body:
            self.in_function = in_function
            inner = [value for _, value in ast.iter_fields(node) if isinstance(value, list)]
            blocks = [value for value in inner if value and isinstance(value[0], ast.stmt)]
            last = blocks[0][0].lineno - 1 if blocks else node.end_lineno or node.lineno
            self.statement = (node.lineno, max(last, node.lineno))
            self.one(node)

    def one(self, node: ast.stmt) -> None:
        """Walk a statement."""
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Import() | ast.ImportFrom():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.Raise():
                if "AssertionError" in ast.dump(node):
                    return
                self.add("raise", node, "pass")
            case ast.Expr(value=ast.Call()):
                self.add("call", node, "pass")
            case ast.If():
                self.condition(node.test)
            case ast.While():
                self.add("condition", node.test, f"(not ({ast.unparse(node.test)}))", "False")
            case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
                return
            case ast.AnnAssign():
                if "TypeAlias" not in ast.dump(node.annotation):
                    self.bounds(node.annotation)
                    self.children(node.value)
                return
        inside = self.in_function
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "returns", "annotation"):
                continue
            if name == "args":
                for default in (*node.args.defaults, *node.args.kw_defaults):  # type: ignore[attr-defined]
                    self.children(default)
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.block(value, in_function=inside or function)
                self.in_function = inside
            else:
                self.nested(value, inside=inside)

    def nested(self, value: object, *, inside: bool) -> None:
        """Walk the rest of a statement: expressions, handlers, cases, items of `with`."""
        if isinstance(value, list):
            for part in value:
                self.nested(part, inside=inside)
        elif isinstance(value, ast.ExceptHandler | ast.match_case):
            if isinstance(value, ast.match_case):
                self.children(value.guard)
            self.block(value.body, in_function=inside)
        elif isinstance(value, ast.AST):
            self.children(value)

    def bounds(self, annotation: ast.expr) -> None:
        """Walk the bounds in an annotation."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Call):
                self.children(node)

    def condition(self, node: ast.expr) -> None:
        """Add a condition."""
        self.add("condition", node, f"(not ({ast.unparse(node)}))", "True", "False")

    def children(self, node: ast.AST | None) -> None:
        """Walk an expression."""
        match node:
            case None | ast.JoinedStr():
                return
            case ast.Subscript(value=ast.Name(id=name)) if name in TYPES:
                return
            case ast.Call(func=ast.Name(id=name)) if name in TYPES:
                return
            case ast.Call(func=ast.Name(id=name)) if name in self.errors:
                for keyword in node.keywords:
                    if keyword.arg == "reason":
                        self.children(keyword.value)
                return
            case ast.keyword(arg=name) if name in CHECKED_BY_MYPY:
                return
            case ast.Compare():
                self.add("comparison", node, *_comparisons(node))
            case ast.BoolOp():
                self.add("and/or", node, *_connectives(node))
            case ast.UnaryOp(op=ast.Not()):
                self.add("not", node, f"({ast.unparse(node.operand)})")
            case ast.IfExp():
                self.condition(node.test)
            case ast.Constant():
                if texts := _constants(node.value):
                    self.add("constant", node, *texts)
        self.offsets(node)
        for child in ast.iter_child_nodes(node):
            self.children(child)

    def offsets(self, node: ast.AST) -> None:
        """Add the ends of ranges and slices, and the conditions of comprehensions."""
        ends: list[ast.expr | None] = []
        match node:
            case ast.Call(func=ast.Name(id="range")):
                ends = [*node.args[:2]]
            case ast.Slice():
                ends = [node.lower, node.upper]
            case ast.comprehension():
                for test in node.ifs:
                    self.condition(test)
        for end in ends:
            if end is not None and not isinstance(end, ast.Constant):
                text = ast.unparse(end)
                self.add("off by one", end, f"({text} + 1)", f"({text} - 1)")


def _comparisons(node: ast.Compare) -> Iterator[str]:
    for at, operator in enumerate(node.ops):
        for other in SWAPPED[type(operator)]:
            changed = copy.deepcopy(node)
            changed.ops[at] = other()
            yield f"({ast.unparse(changed)})"


def _connectives(node: ast.BoolOp) -> Iterator[str]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    for at in range(len(node.values)):
        rest = node.values[:at] + node.values[at + 1 :]
        yield f"({ast.unparse(ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0])})"


def _constants(value: object) -> tuple[str, ...]:
    match value:
        case bool():
            return (str(not value),)
        case int():
            return (str(value + 1), f"({value - 1})" if value < 1 else str(value - 1))
        case float():
            return (repr(value * 2 or 1.0), repr(value / 2 or -1.0))
        case str() if not any(map(str.isspace, value)):
            return (repr(f"{value}x"),)
        case bytes():
            return (repr(value + b"x"),)
    return ()
