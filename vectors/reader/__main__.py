"""Verify vectors: `python -m vectors.reader [FILES]`; exits with 1 if a vector does not verify."""

from __future__ import annotations

import json
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vectors.reader.base import Refused
from vectors.reader.kinds import FOLDER, KINDS


def outcome(case: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], Any]] = KINDS) -> Any:
    """Compute the result of a case, or the code of the check that refused it."""
    try:
        return {"result": kinds[case["kind"]](case)}
    except Refused as refused:
        return {"refused": refused.code}


def expected(case: Mapping[str, Any]) -> Any:
    """Return the result or code that a case requires."""
    return {name: case[name] for name in ("result", "refused") if name in case}


def cases(files: list[Path]) -> Iterator[dict[str, Any]]:
    """All cases of these files; one that changes another has its other fields."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        for name, value in json.loads(text)["strings"].items():
            text = text.replace(name, value)
        named: dict[str, dict[str, Any]] = {}
        for case in json.loads(text)["cases"]:
            whole = _expanded(case)
            if (base := named.get(case.get("changes", ""))) is not None:
                whole = {k: v for k, v in base.items() if k != "result"} | case
                whole["frames"] = list(base["frames"])
                for place, data in case["replace"].items():
                    whole["frames"][int(place)] = [*base["frames"][int(place)][:2], data]
            named[case["name"]] = whole
            yield whole


def _expanded(case: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the compressed frames of a recording."""
    if "data" not in case or "frames" not in case:
        return dict(case)
    data, found = zlib.decompress(b64decode(case["data"])), []
    for *ends, size in case["frames"]:
        found.append([*ends, b64encode(data[:size]).decode()])
        data = data[size:]
    return {**case, "frames": found}


def files() -> list[Path]:
    """All files with cases."""
    return sorted(file for file in FOLDER.glob("*.json") if file.name != "keys.json")


def main(paths: list[str]) -> int:
    """Verify and print; the number of failures."""
    failed = done = 0
    for case in cases([Path(path) for path in paths] or files()):
        done, found = done + 1, outcome(case)
        if found != expected(case):
            failed += 1
            print(f"{case['name']}: {expected(case)} expected, {found} found"[:300])
    print(f"{done} vectors, {failed} not verified")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
