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
from release.lock import lock_file, require_locked
from secure_fl.errors import RunError

EXTRAS = ("flare", "metrics", "adapters")  # what a hospital may want
REQUIREMENTS = "requirements.txt"
DEVICES = ("cpu", "gpu")
CUDA = ("nvidia-", "cuda-")  # as packages of torch's libraries begin
METADATA = re.compile(r"[^/]*\.dist-info/METADATA")  # not of packages that it brings along


def gather(wheel: Path, folder: Path) -> Path:
    """Fetch or build the wheel of everything that `wheel` needs, in the tested versions."""
    asked = f"{wheel}[{','.join(EXTRAS)}]"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder)]
    constraints = ["--constraint", str(ROOT / "constraints.txt"), asked]
    subprocess.run([*command, *constraints], check=True)
    if (locked := lock_file()).exists():
        require_locked({wheel: digest(wheel) for wheel in folder.glob("*.whl")}, locked)
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


def require_device(folder: Path, device: str) -> None:
    """Refuse a wheelhouse whose torch is for another kind of machine than was asked for.

    A CUDA build brings its libraries as wheels of their own, or names CUDA in its version.
    """
    wheels = [parse_wheel_filename(wheel.name) for wheel in folder.glob("*.whl")]
    torch = [str(version) for name, version, _, _ in wheels if name == "torch"]
    libraries = any(name.startswith(CUDA) for name, _, _, _ in wheels)
    found = "gpu" if libraries or any("+cu" in version for version in torch) else "cpu"
    if torch and found != device:
        raise RunError(
            f"torch {torch[0]} is built for the {found.upper()}, and not for the {device.upper()}",
            fix="let pip look where the other build is (PIP_INDEX_URL or PIP_FIND_LINKS), or ask "
            "for the device that you have",
            file=folder,
            reason="other-program",
        )


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
