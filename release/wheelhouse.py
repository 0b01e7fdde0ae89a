"""A folder with every wheel, for a machine without network, and what pip must find in it.

`requirements.txt` names each with its digest, so `pip install --no-index --require-hashes` takes
these bytes or none.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

from packaging.utils import canonicalize_name, parse_wheel_filename

from release.distribution import ROOT

EXTRAS = ("flare", "metrics", "adapters")  # what a hospital may want
REQUIREMENTS = "requirements.txt"
METADATA = re.compile(r"[^/]*\.dist-info/METADATA")  # not of packages that it brings along


def gather(wheel: Path, folder: Path) -> Path:
    """Fetch or build the wheel of everything that `wheel` needs, in the tested versions."""
    asked = f"{wheel}[{','.join(EXTRAS)}]"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder)]
    constraints = ["--constraint", str(ROOT / "constraints.txt"), asked]
    subprocess.run([*command, *constraints], check=True)
    return list_wheels(folder)


def list_wheels(folder: Path) -> Path:
    """Write what pip is told to install, with digests."""
    rows = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        rows.append(f"{name}=={version} --hash=sha256:{digest(wheel)}\n")
    file = folder / REQUIREMENTS
    file.write_text("".join(rows))
    return file


def read(folder: Path) -> Iterator[tuple[Path, Message]]:
    """Every wheel, with what it says about itself."""
    for wheel in sorted(folder.glob("*.whl"), key=lambda one: canonicalize_name(one.name)):
        with ZipFile(wheel) as packed:
            (name,) = (n for n in packed.namelist() if METADATA.fullmatch(n))
            yield wheel, message_from_bytes(packed.read(name))


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
