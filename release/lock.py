"""Digests of the packages that `make` installs, one file for each platform: locks/.

    python -m release.lock      # asks pip what it would install here, and writes the file

pip verifies the packages of this file (`--require-hashes`) before it installs the rest. Packages
without a row are verified by version only: torch, whose build is free, and its libraries, and what
an index does not offer as one file for this platform.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from release.distribution import ROOT
from secure_fl.errors import RunError

CONSTRAINTS = ROOT / "constraints.txt"
FREE = {"torch"}  # any build of the tested version
SOURCE = "  # built from source"
HEAD = "# Made by `python -m release.lock`; see release/lock.py.\n"


def lock_file(folder: Path = ROOT / "locks") -> Path:
    """Return the file of this interpreter and platform; it need not exist."""
    platform = sysconfig.get_platform().replace(".", "_")
    return folder / f"{sys.implementation.cache_tag}-{platform}.txt"


def rows(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a requirement with its digest for each package in pip's report."""
    for one in report["install"]:
        name, about = canonicalize_name(one["metadata"]["name"]), one["download_info"]
        if name in FREE:
            continue
        source = "" if about["url"].endswith(".whl") else SOURCE
        digest = about["archive_info"]["hashes"]["sha256"]
        yield f"{name}=={one['metadata']['version']} --hash=sha256:{digest}{source}\n"


def read(file: Path) -> dict[tuple[str, str], str]:
    """Return the digests of wheels by name and version."""
    pinned = {}
    for line in file.read_text().splitlines():
        if not line.startswith("#") and not line.endswith(SOURCE):
            asked, _, digest = line.partition(" --hash=sha256:")
            name, _, version = asked.partition("==")
            pinned[name, version] = digest
    return pinned


def require_locked(wheels: Mapping[Path, str], file: Path) -> int:
    """Refuse wheels whose digests differ from the locked ones; return how many were compared."""
    pinned, compared = read(file), 0
    for wheel, digest in wheels.items():
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if (expected := pinned.get((name, str(version)))) is None:
            continue
        if digest != expected:
            raise RunError(
                f"the package index gave another {wheel.name} than the one that was tested",
                fix="ask another index, and report this; do not install this file",
                file=wheel,
                reason="changed",
            )
        compared += 1
    return compared


def main() -> None:
    """Write the file of this platform."""
    with tempfile.TemporaryDirectory() as folder:
        report, wanted = Path(folder) / "report.json", Path(folder) / "wanted.txt"
        lines = CONSTRAINTS.read_text().splitlines(keepends=True)
        wanted.write_text("".join(x for x in lines if x.partition("==")[0].strip() not in FREE))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        options = ["--ignore-installed", "--report", str(report), "--requirement", str(wanted)]
        subprocess.run([*command, *options], check=True)
        file = lock_file()
        file.parent.mkdir(exist_ok=True)
        file.write_text(HEAD + "".join(sorted(rows(json.loads(report.read_text())))))
    print(file)


if __name__ == "__main__":
    main()
