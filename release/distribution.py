"""The wheel and the sdist of the commit that is checked out: the same bytes, whoever builds them.

Zip and tar files tell when, by whom and under which umask they were written. Here the time of the
commit, nobody, and 022 stand in their place.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from secure_fl.errors import RunError

ROOT = Path(__file__).parent.parent
UMASK = 0o022


def build(output: Path, root: Path = ROOT) -> list[Path]:
    """Build both of what is committed; changes that are not would be in no history."""
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        fix = "commit, or take back, what is changed"
        raise RunError("the checkout has changes", fix=fix, file=root, reason="changed")
    output = output.absolute()  # the build runs in another folder
    sources = output / "source"
    _export(root, sources)
    epoch = int(_git(root, "log", "-1", "--format=%ct"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), "."]
    subprocess.run(
        command,
        cwd=sources,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)},
        umask=UMASK,
        check=True,
        capture_output=True,
    )
    (sdist,) = output.glob("*.tar.gz")
    settle(sdist, epoch, [link for link in sources.glob("*/*") if link.is_symlink()])
    shutil.rmtree(sources)
    return [*output.glob("*.whl"), sdist]


def _export(root: Path, folder: Path) -> None:
    """Write out the commit, with modes that do not depend on this process."""
    archive = subprocess.run(
        ["git", "-C", str(root), "archive", "HEAD"], check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")


def settle(sdist: Path, epoch: int, links: Sequence[Path] = ()) -> None:
    """Write an sdist again without traces of its writer, and with links that setuptools drops."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w") as new:
        members = {member.name: member for member in old.getmembers()}
        for link in links:
            about = tarfile.TarInfo(f"{_stem(sdist)}/{link.parent.name}/{link.name}")
            about.type, about.linkname = tarfile.SYMTYPE, str(link.readlink())
            members[about.name] = about
        for _, member in sorted(members.items()):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, content)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def _stem(sdist: Path) -> str:
    return sdist.name.removesuffix(".tar.gz")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()
