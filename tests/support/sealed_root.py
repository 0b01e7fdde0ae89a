"""A container without an engine: a root that is read-only, nobody's rights, one folder to write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.names import ROOT

UID = "10001"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc")
BUILD = r"""
set -e
root=$1 state=$2
shift 2
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$(dirname "$1")"
    if [ -L "$1" ]; then
        cp -P "$1" "$root$1"
    elif [ -e "$1" ]; then
        mkdir -p "$root$1"
        mount --bind "$1" "$root$1"
        mount -o remount,bind,ro "$root$1"
    fi
    shift
done
shift
mkdir -p "$root/state" "$root/proc" "$root/dev" "$root/tmp"
mount --bind "$state" "$root/state"
mount -t proc proc "$root/proc"
for device in null zero random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid "$UID" --regid "$UID" --clear-groups \
    --bounding-set=-all --inh-caps=-all --no-new-privs env -i -C /state "$@"
"""


def missing() -> str:
    """Why no such root can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "a root of one's own needs root"
    if ROOT.stat().st_mode & 0o005 != 0o005:
        return "only its owner can read this checkout"
    if not all(map(shutil.which, ("unshare", "chroot", "setpriv"))):
        return "a root of one's own needs unshare, chroot and setpriv"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "mount namespaces are not permitted here"
    return ""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in it; `folder` is kept, and its `state` is all that the command may write."""
    root, state = folder / "root", folder / "state"
    for made in (root, state):
        made.mkdir(exist_ok=True)
    os.chown(state, int(UID), int(UID))
    variables = ("PATH=/usr/bin:/bin", "HOME=/state", f"PYTHONPATH={ROOT}", "OMP_NUM_THREADS=1")
    inside = ("unshare", "-m", "sh", "-c", BUILD, "sh")
    return subprocess.run(
        [*inside, root, state, *_shown(), "--", *variables, *command],
        env=os.environ | {"UID": UID},
        capture_output=True,
        text=True,
    )


def _shown() -> Sequence[str]:
    """What such an image would hold: the system, Python, what is installed, our own code."""
    own = {sys.base_prefix, str(Path(sys.prefix).resolve()), str(ROOT)}
    return (*SYSTEM, *sorted(path for path in own if not path.startswith(SYSTEM)))
