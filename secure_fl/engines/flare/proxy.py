"""The way out through an HTTP proxy, by the variables that gRPC itself reads.

gRPC tunnels (CONNECT) if `grpc_proxy`, `https_proxy` or `http_proxy` is set, in this order, and the
host is not in `no_grpc_proxy` or `no_proxy`. Looking why there is no line takes the same way.
"""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPT = ("no_grpc_proxy", "no_proxy")
MOST = 65_536  # bytes of an answer


class ProxyRefused(OSError):  # noqa: N818 - it names what happened
    """The proxy does not lead there; the text says why, and holds no password."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where the proxy is, and what it is told."""

    host: str
    port: int
    login: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_to(host: str) -> Proxy | None:
    """The proxy on the way to a host, if this process is told of one."""
    given = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    spared = next((os.environ[name] for name in EXCEPT if os.environ.get(name)), "")
    names = (name.strip() for name in spared.split(","))
    if not given or any(name and host.endswith(name) for name in names):
        return None
    parts = urlparse(given if "://" in given else f"http://{given}")
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return Proxy(parts.hostname or "", parts.port or 80, user if parts.username else None)


def dial(host: str, port: int, patience: float) -> socket.socket:
    """Connect, straight or through the proxy."""
    proxy = proxy_to(host)
    if proxy is None:
        return socket.create_connection((host, port), patience)
    try:
        line = socket.create_connection((proxy.host, proxy.port), patience)
    except OSError as error:
        reason = error.strerror or "it does not answer"
        raise ProxyRefused(f"the proxy {proxy} cannot be reached: {reason}") from None
    try:
        _tunnel(line, proxy, f"{host}:{port}")
    except BaseException:
        line.close()
        raise
    return line


def _tunnel(line: socket.socket, proxy: Proxy, target: str) -> None:
    ask = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
    if proxy.login is not None:
        ask += f"Proxy-Authorization: Basic {b64encode(proxy.login.encode()).decode()}\r\n"
    line.sendall(f"{ask}\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < MOST and (more := line.recv(4096)):
        answer += more
    status = answer.split(b" ", 2)[1:2]
    if status == [b"200"]:
        return
    if status == [b"407"]:
        raise ProxyRefused(
            f"the proxy {proxy} wants a name and a password, or others than it was given: "
            "https_proxy=http://NAME:PASSWORD@HOST:PORT"
        )
    code = status[0].decode("ascii", "replace") if status else "no answer"
    raise ProxyRefused(
        f"the proxy {proxy} does not connect to {target} ({code}): ask who runs it to allow CONNECT"
    )
