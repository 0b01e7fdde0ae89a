"""The contents of a wheelhouse as CycloneDX 1.6: names, versions, licences, digests, users."""

from __future__ import annotations

import json
import uuid
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.wheelhouse import digest, read

LONGEST = 60  # characters of a licence's name; some packages put all of its text there


def describe(folder: Path, main: str) -> dict[str, Any]:
    """Describe all wheels of a folder; `main` is the distribution that the others are there for."""
    found = {_name(about): (wheel, about) for wheel, about in read(folder)}
    parts = {name: _component(wheel, about) for name, (wheel, about) in found.items()}
    needs = [
        {"ref": parts[name]["bom-ref"], "dependsOn": [parts[n]["bom-ref"] for n in _needed(about)
                                                      if n in parts]}
        for name, (_, about) in found.items()
    ]  # fmt: skip
    root = parts.pop(canonicalize_name(main))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root | {"type": "application"}},
        "components": list(parts.values()),
        "dependencies": needs,
    }
    # The same wheels give the same document, number and all.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def _component(wheel: Path, about: Message) -> dict[str, Any]:
    reference = f"pkg:pypi/{_name(about)}@{about['Version']}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": str(about["Name"]),
        "version": str(about["Version"]),
        "purl": reference,
        "hashes": [{"alg": "SHA-256", "content": digest(wheel)}],
    }
    if expression := about.get("License-Expression"):
        found["licenses"] = [{"expression": str(expression)}]
    elif named := _licences(about):
        found["licenses"] = [{"license": {"name": name}} for name in named]
    return found


def _licences(about: Message) -> list[str]:
    """Read the licence of older packages from one of several fields."""
    classified = [
        c.rpartition(" :: ")[2] for c in about.get_all("Classifier", ()) if "License" in c
    ]
    text = str(about.get("License", "")).strip()
    return classified or [text] * (0 < len(text) <= LONGEST and "\n" not in text)


def _needed(about: Message) -> list[str]:
    """Names that it needs, here or with one of its extras."""
    extras = ["", *about.get_all("Provides-Extra", ())]
    needed = set()
    for text in about.get_all("Requires-Dist", ()):
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": e}) for e in extras):
            needed.add(str(canonicalize_name(wanted.name)))
    return sorted(needed)


def _name(about: Message) -> str:
    return str(canonicalize_name(str(about["Name"])))
