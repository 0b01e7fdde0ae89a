"""`python -m benchmarks mutants`: change the trusted core at random, and see which tests fail.

Tests run in a copy of the checkout. The first call records the lines of each test (`recorder`). A
mutant then meets the tests that execute its statement, the quickest first, and after them other
tests that execute its file, until one fails or the CPU time of the chosen tests reaches the cap.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from benchmarks.mutants.mutation_sites import Site, mutated, original, sites
from benchmarks.removable import copy_checkout

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).parent / "fork_server.py"
CORE = ("secure_fl/crypto", "secure_fl/party", "secure_fl/coordinator", "secure_fl/protocol")
TESTS = (
    *("tests/crypto", "tests/party", "tests/coordinator", "tests/protocol", "tests/security"),
    *("tests/conformance", "tests/learning/dp", "tests/federation", "tests/cli/test_budget.py"),
    *("tests/pilot", "tests/engines", "tests/policy", "tests/test_portability.py"),
)
LIBRARIES = (
    "click", "cryptography.hazmat.primitives.ciphers.aead", "msgspec", "numpy", "opacus",
    "pydantic", "rich.console", "tenseal", "torch", "transformers",
)  # fmt: skip
STEPS = (0.1, 0.5, 2.0, 8.0)  # CPU seconds; within a step the tests of a file run together


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change at one site of one file."""

    file: str
    site: Site
    text: str
    before: str

    @property
    def name(self) -> str:
        """The place and the change, in one line."""
        line, column = self.site.start
        before = " ".join(self.before.split())
        return f"{self.file}:{line}:{column}: {self.site.kind}: {before} -> {self.text}"


@dataclass(frozen=True)
class Trial:
    """A copy of a checkout, its core and tests, and the folder of the results."""

    copy: Path
    work: Path
    core: Sequence[str]
    tests: Sequence[str]
    libraries: Sequence[str] = LIBRARIES  # imported once, before the copy's modules

    @property
    def record(self) -> Path:
        """The file of the recorded lines."""
        return self.work / "record.jsonl"

    @property
    def digests(self) -> Path:
        """The file of the modules' digests at the first recording."""
        return self.work / "digests.json"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of every process that runs tests."""
        names = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        paths = {"PYTHONPATH": os.pathsep.join([str(self.copy), str(ROOT)])}
        core = os.pathsep.join(f"{one}/" for one in self.core)
        plugin = {"MUTANTS_RECORD": str(self.record.absolute()), "MUTANTS_CORE": core}
        return os.environ | names | paths | plugin

    def files(self, under: Sequence[str] = ()) -> list[str]:
        """List the modules of the core, or those below some paths."""
        found = (path for one in self.core for path in (self.copy / one).rglob("*.py"))
        names = sorted(str(path.relative_to(self.copy)) for path in found)
        return [name for name in names if not under or name.startswith(tuple(under))]

    def record_lines(self, marks: str = "not slow") -> None:
        """Record the lines of tests that are not recorded yet."""
        plugin = ["-p", "benchmarks.mutants.recorder", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-m", marks, *plugin]
        subprocess.run([*command, *self.tests], cwd=self.copy, env=self.environment, check=False)
        if not self.digests.exists():
            digests = {file: self._digest(file) for file in self.files()}
            self.digests.write_text(json.dumps(digests, indent=1))

    def _digest(self, file: str) -> str:
        return sha256((self.copy / file).read_bytes()).hexdigest()

    @cached_property
    def recorded(self) -> list[tuple[str, float, dict[str, frozenset[int]]]]:
        """The recorded tests, with seconds and lines by file; none of files that changed since."""
        digests = json.loads(self.digests.read_text())
        same = {file for file, digest in digests.items() if self._digest(file) == digest}
        rows = map(json.loads, self.record.read_text().splitlines())
        return [
            (
                row["test"],
                row["seconds"],
                {f: frozenset(found if f in same else ()) for f, found in row["lines"].items()},
            )
            for row in rows
        ]

    def chosen(self, mutant: Mutant, cap: float) -> list[list[str]]:
        """Choose the tests of a mutant: those of its package, other near ones, the rest."""
        first, last = mutant.site.statement
        statement = set(range(first, last + 1))
        package = f"tests/{mutant.file.split('/')[1]}/"
        groups: tuple[list[tuple[float, str]], ...] = ([], [], [])
        for test, seconds, lines in self.recorded:
            if mutant.file in lines:
                near = bool(statement & lines[mutant.file])
                groups[(0 if test.startswith(package) else 1) if near else 2].append(
                    (seconds, test)
                )
        chosen, left = list[list[str]](), cap
        for group in groups:
            chosen.append([])
            for seconds, test in sorted(group, key=_order):
                if seconds <= left:
                    chosen[-1].append(test)
                    left -= seconds
        return [tests for tests in chosen if tests]


def _order(timed: tuple[float, str]) -> tuple[int, str, float]:
    seconds, test = timed
    return sum(seconds > step for step in STEPS), test.partition("::")[0], seconds


def drawn(trial: Trial, count: int, seed: int, under: Sequence[str] = ()) -> list[Mutant]:
    """Draw mutants, each site with equal probability."""
    found = [
        (file, site, source)
        for file in trial.files(under)
        for source in [(trial.copy / file).read_text(encoding="utf-8")]
        for site in sites(source)
    ]
    choice = random.Random(seed)  # noqa: S311  # no secret
    mutants = []
    for file, site, source in choice.sample(found, min(count, len(found))):
        text = choice.choice(site.texts)
        mutants.append(Mutant(file, site, text, original(source, site)))
    return mutants


def _written(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode, which can look up to date."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


class Server:
    """The process that forks a pytest process for each list of tests (`fork_server`)."""

    def __init__(self, trial: Trial, limit: float) -> None:
        self.log, self.limit = str(trial.work / "last.txt"), limit
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), *trial.libraries], cwd=trial.copy, env=trial.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, groups: Iterable[Sequence[str]]) -> dict[str, Any]:
        """Run groups of tests until a test fails."""
        ran = 0
        for tests in groups:
            request = {"tests": tests, "log": self.log, "limit": self.limit}
            print(json.dumps(request), file=self.process.stdin, flush=True)
            assert self.process.stdout is not None  # noqa: S101  # a pipe
            answer = json.loads(self.process.stdout.readline())
            ran += answer["ran"]
            if answer["failed"]:
                return {"failed": answer["failed"], "ran": ran}
        return {"failed": None, "ran": ran}

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def tried(trial: Trial, mutants: Iterable[Mutant], cap: float) -> Iterator[dict[str, Any]]:
    """Run the tests of each mutant; in the end those that failed must pass without mutants."""
    server, failed = Server(trial, limit=600 + 60 * cap), set[str]()
    for mutant in mutants:
        groups = trial.chosen(mutant, cap)
        path = trial.copy / mutant.file
        source = path.read_text(encoding="utf-8")
        try:
            _written(path, mutated(source, mutant.site, mutant.text))
            answer = server.run(groups)
        finally:
            _written(path, source)
        tests = [test for group in groups for test in group]
        if name := answer["failed"]:  # a test, a file, or the end of the process
            failed.update([name] if "::" in name else tests)
        row = {"mutant": mutant.name, "kind": mutant.site.kind, "tests": len(tests)}
        yield row | answer
    without = server.run([sorted(failed)] if failed else [])
    server.close()
    if without["failed"]:
        raise click.ClickException(f"{without['failed']} fails without a mutant")


def known(results: Path) -> dict[str, dict[str, Any]]:
    """Read the results so far; a later one of a mutant replaces an earlier one."""
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    rows = map(json.loads, text.splitlines())
    return {row["mutant"]: row for row in rows}


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Describe the killed mutants by kind, and list the survivors."""
    killed = [row for row in rows if row["failed"]]
    by_kind, all_kinds = Counter(r["kind"] for r in killed), Counter(r["kind"] for r in rows)
    kinds = ", ".join(f"{kind} {by_kind[kind]} of {n}" for kind, n in all_kinds.most_common())
    share = f"{len(killed)} of {len(rows)} mutants killed ({100 * len(killed) / len(rows):.1f} %)"
    survivors = [f"{row['mutant']} ({row['ran']} tests pass)" for row in rows if not row["failed"]]
    return "\n".join([share, kinds, *survivors])


def continued(
    trial: Trial, mutants: Sequence[Mutant], results: Path, cap: float, again: bool,
    show: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """Try the mutants without a result (again: those without a failure), and return all results."""
    before = known(results)
    left = [
        mutant
        for mutant in mutants
        if mutant.name not in before or (again and not before[mutant.name]["failed"])
    ]
    with results.open("a", encoding="utf-8") as file:
        for number, row in enumerate(tried(trial, left, cap), 1):
            print(json.dumps(row), file=file, flush=True)
            show(f"{number}/{len(left)} {row['mutant']}: {row['failed'] or 'SURVIVES'}")
    return [row for row in map(known(results).get, (m.name for m in mutants)) if row]


@click.command()
@click.option("--mutants", "count", type=click.IntRange(min=1), default=200, show_default=True,
              help="Number of mutants.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the choice.")
@click.option("--paths", multiple=True, metavar="PATH", help="Only modules below these paths.")
@click.option("--cap", type=click.FloatRange(min=1), default=60.0, show_default=True,
              help="CPU seconds of tests per mutant, as recorded.")  # fmt: skip
@click.option("--again", is_flag=True, help="Repeat the tests of survivors.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/mutants"),
              show_default=True, help="Folder of the copy and the results.")  # fmt: skip
def mutants(
    count: int, seed: int, paths: Sequence[str], cap: float, again: bool, work: Path
) -> None:
    """Change the trusted core at random places, and run the tests that execute them.

    The first call records the lines of all tests, which takes half an hour of CPU time; later calls
    add new tests. A call that was interrupted continues.
    """
    work = work.absolute()
    (work / "copy").mkdir(parents=True, exist_ok=True)
    copy_checkout(work / "copy")
    trial = Trial(work / "copy", work, CORE, TESTS)
    trial.record_lines()
    results = work / f"seed-{seed}.jsonl"
    chosen = drawn(trial, count, seed, paths)
    click.echo(summary(continued(trial, chosen, results, cap, again, click.echo)))
