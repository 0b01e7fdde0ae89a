"""Who besides its owner may open a file: by its mode, or by the access list that goes before it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

ACL = "system.posix_acl_access"  # <linux/posix_acl_xattr.h>
HEAD, ENTRY, VERSION = struct.Struct("<I"), struct.Struct("<HHI"), 2
USER, GROUP_OWNER, GROUP, MASK = 0x02, 0x04, 0x08, 0x10


def open_to_others(path: Path) -> bool:
    """Whether anybody but the owner and this process's user may do anything with it.

    With an access list the mode's group bits are the list's mask: systemd gives a service its
    credential as 0440 that way, to this one user, and to no group.
    """
    mode = path.stat().st_mode & 0o077
    if not mode:
        return False
    try:
        entries = list(_entries(os.getxattr(path, ACL)))
    except (OSError, ValueError, struct.error):  # there is none, or none that is known here
        return True
    mask = next((may for tag, may, _ in entries if tag == MASK), 0o7)
    return any(may & mask for tag, may, who in entries if _another(tag, who)) or bool(mode & 0o007)


def _another(tag: int, who: int) -> bool:
    return tag in (GROUP_OWNER, GROUP) or (tag == USER and who != os.geteuid())


def _entries(found: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, rights and id of each entry."""
    (version,) = HEAD.unpack_from(found)
    if version != VERSION:
        raise ValueError(f"access lists of version {version}")
    yield from ENTRY.iter_unpack(found[HEAD.size :])
