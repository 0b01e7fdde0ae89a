"""The statement of how a release was built, in the format of in-toto and SLSA, signed as DSSE.

It names the commit and the build requirements of the distributions, and their digests. So anyone
with the commit can build the same bytes and compare.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from release.checksums import SUMS, files_in, load_key
from release.wheelhouse import digest
from secure_fl.errors import KeyringError, RunError

STATEMENT = "provenance.intoto.json"
PAYLOAD = "application/vnd.in-toto+json"
ROOT = Path(__file__).parent.parent


def write(folder: Path, commit: str, pem: bytes, passphrase: bytes | None = None) -> Path:
    """Write the signed statement about the distributions and the list of digests in a folder."""
    files = [*sorted(folder.glob("*.whl")), *sorted(folder.glob("*.tar.gz")), folder / SUMS]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f.name, "digest": {"sha256": digest(f)}} for f in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "python -m release all",
                "externalParameters": {"commit": commit},
                "resolvedDependencies": [
                    {"name": "commit", "digest": {"gitCommit": commit}},
                    *({"name": f.name, "digest": {"sha256": digest(f)}} for f in _locks()),
                ],
            },
            "runDetails": {"builder": {"id": "make release"}},
        },
    }
    payload = json.dumps(statement, indent=1).encode()
    signature = load_key(pem, passphrase).sign(_encoded(payload))
    envelope = {
        "payloadType": PAYLOAD,
        "payload": b64encode(payload).decode(),
        "signatures": [{"sig": b64encode(signature).decode()}],
    }
    (folder / STATEMENT).write_text(json.dumps(envelope, indent=1) + "\n")
    return folder / STATEMENT


def verify(folder: Path, public: bytes) -> dict[str, Any]:
    """Check a release's statement and the digests of its files; return the statement."""
    file = folder / STATEMENT
    try:
        envelope = json.loads(file.read_bytes())
        payload = b64decode(envelope["payload"], validate=True)
        signature = b64decode(envelope["signatures"][0]["sig"], validate=True)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _refused(f"the statement cannot be read: {error}", file) from None
    key = load_pem_public_key(public)
    try:
        if not isinstance(key, Ed25519PublicKey) or envelope.get("payloadType") != PAYLOAD:
            raise InvalidSignature
        key.verify(signature, _encoded(payload))
    except InvalidSignature:
        raise _refused("the statement is not signed by this key", file) from None
    statement: dict[str, Any] = json.loads(payload)
    for subject in statement["subject"]:
        _require_digest(folder / subject["name"], subject["digest"]["sha256"])
    rows = (row.partition("  ") for row in (folder / SUMS).read_text().splitlines())
    listed = {folder / name: stated for stated, _, name in rows}
    for path, stated in listed.items():
        _require_digest(path, stated)
    for path in files_in(folder):
        if path not in listed:
            raise _refused(f"{path.name} is in no list of the release", path)
    return statement


def require_same_build(statement: dict[str, Any], built: list[Path]) -> None:
    """Refuse a release whose distributions differ from those that were built here."""
    stated = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    for file in built:
        if stated.get(file.name) != digest(file):
            commit = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]
            raise RunError(
                f"{file.name}, built here, differs from the release",
                fix=f"check out {commit}, install the tested packages, and repeat",
                file=file,
                reason="changed",
            )


def commit_of(root: Path = ROOT) -> str:
    """Return the commit that is checked out."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _locks() -> list[Path]:
    return [ROOT / "constraints.txt", *sorted((ROOT / "locks").glob("*.txt"))]


def _encoded(payload: bytes) -> bytes:
    """Return what DSSE signs."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def _require_digest(file: Path, stated: str) -> None:
    if not file.is_file() or digest(file) != stated:
        raise _refused(f"{file.name} is missing, or differs from the release", file)


def _refused(what: str, file: Path) -> KeyringError:
    fix = "do not install it; fetch the release again, and its key by another way"
    return KeyringError(what, fix=fix, file=file, reason="changed")
