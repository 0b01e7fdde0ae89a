"""The coordinator's address. CellNet says nothing when it cannot have its port, so this asks."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from urllib.parse import urlparse

from secure_fl.errors import RunError, SettingsError

LISTENING = 10.0  # seconds until the port must answer


def address(url: str) -> tuple[str, int]:
    """Host and port; other schemes would choose other drivers of CellNet."""
    parts = urlparse(url)
    if parts.scheme not in ("grpc", "grpcs") or not parts.port:
        raise SettingsError(f"{url[:200]!r} is not an address", fix="use grpc://host:port")
    host = parts.hostname or ""
    return ("" if host in ("0", "0.0.0.0") else host), parts.port  # noqa: S104 - only compared


def require_free(url: str) -> None:
    """Raise RunError if somebody has this port."""
    family = socket.AF_INET6 if ":" in address(url)[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address(url))
        except OSError as error:
            raise RunError(
                f"cannot listen on {url}: {error.strerror}", fix="is another coordinator running?"
            ) from None


def require_listening(url: str) -> None:
    """Wait until the port answers, or raise RunError."""
    host, port = address(url)
    until = time.monotonic() + LISTENING
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host or "localhost", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise RunError(f"nothing listens on {url}", fix="check the address and the certificates")
