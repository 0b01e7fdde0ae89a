"""Versions and digests of the installed programs that a plan runs.

A plan names its algorithm, and an installed package decides what that name does. So an approval
signs the package too. Only files of these packages count: a digest says nothing about Python, torch
or other dependencies.
"""

from __future__ import annotations

import hashlib
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

from secure_fl.algorithms.registry import ALGORITHMS, package_of
from secure_fl.policy.plan import Plan
from secure_fl.version import VERSION

OWN = "secure_fl"
HEX = 40  # digits of a digest in an approval: 160 bits
COMPILED = (".pyc", ".pyo")


def programs_of(plan: Plan) -> dict[str, str]:
    """Return version and digest of this package, and of the package of a plug-in's algorithm."""
    programs = {OWN: _identified(VERSION, _package_files(OWN))}
    point = ALGORITHMS.plugins.get(plan.algorithm.name)
    if point is not None:
        programs[package_of(point)] = _plugin(point)
    return programs


def _plugin(point: EntryPoint) -> str:
    files = _package_files(point.module.partition(".")[0])
    if (dist := point.dist) is not None:
        files |= _listed_files(dist)
    return _identified(dist.version if dist is not None else "unknown", files)


def _package_files(name: str) -> dict[str, Path]:
    """Find the files of a top-level package or module without importing it."""
    spec = PathFinder.find_spec(name)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {Path(spec.origin).name: Path(spec.origin)} if spec.origin else {}
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": file
        for folder in map(Path, spec.submodule_search_locations)
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in COMPILED
    }


def _listed_files(dist: Distribution) -> dict[str, Path]:
    """Return the files that an installer listed, without its own notes."""
    return {
        file.as_posix(): Path(str(dist.locate_file(file)))
        for file in dist.files or ()
        if ".dist-info/" not in file.as_posix() and file.suffix not in COMPILED
    }


def _identified(version: str, files: dict[str, Path]) -> str:
    whole = hashlib.sha256()
    for name, file in sorted(files.items()):
        content = file.read_bytes() if file.is_file() else b"missing"
        whole.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return f"{version} {whole.hexdigest()[:HEX]}"
