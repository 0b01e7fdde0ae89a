"""Why a hospital is not connected, or the coordinator not listening, in words: FLARE says nothing.

FLARE dials again and again, and CellNet does not say that it cannot have its port. So this asks for
the port, and makes one handshake of its own, with the same certificates, as gRPC makes it. Nothing
is sent but that.

gRPC tunnels (CONNECT) if `grpc_proxy`, `https_proxy` or `http_proxy` is set, in this order, and the
host is not in `no_grpc_proxy` or `no_proxy`. The handshake takes the same way.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from cryptography import x509

from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.errors import RunError, SettingsError

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPT = ("no_grpc_proxy", "no_proxy")
MOST = 65_536  # bytes of an answer


class ProxyRefused(OSError):  # noqa: N818 - it names what happened
    """The proxy does not lead there; the text says why, and holds no password."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """The address and the login of a proxy."""

    host: str
    port: int
    login: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_to(host: str) -> Proxy | None:
    """Return the proxy that the environment names for a host, if any."""
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


LISTENING = 10.0  # seconds until the port must answer
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PATIENT = "bbr"  # a lost packet alone does not slow it down


def address(url: str) -> tuple[str, int]:
    """Host and port; other schemes would choose other drivers of CellNet."""
    parts = urlparse(url)
    if parts.scheme not in ("grpc", "grpcs") or not parts.port:
        raise SettingsError(f"{url[:200]!r} is not an address", fix="use grpc://host:port")
    host = parts.hostname or ""
    return ("" if host in ("0", "0.0.0.0") else host), parts.port  # noqa: S104 - only compared


def congestion() -> str:
    """The kernel's name of what TCP does about lost packets; empty where it does not tell.

    `cubic`, the usual one, takes each for a sign of a full line, and one in a hundred leaves a
    twentieth of 20 Mbit/s (`python -m benchmarks network`). `bbr` measures what a line carries.
    The kernel decides, so its administrator has to.
    """
    try:
        return CONGESTION.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def slowed_by_loss() -> bool:
    """Tell if packet loss will slow this connection down far more than necessary."""
    return congestion() not in ("", PATIENT)


def require_free(url: str) -> None:
    """Raise RunError if somebody has this port."""
    family = socket.AF_INET6 if ":" in address(url)[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address(url))
        except OSError as error:
            what = f"cannot listen on {url}: {error.strerror}"
            fix = "is another coordinator running?"
            raise RunError(what, fix=fix, reason="unusable-address") from None


def require_listening(url: str) -> None:
    """Wait until the server behind the port answers, or raise RunError.

    The port of FLARE's server is open before the server starts. Stopped before it has started, it
    would start afterwards, and never end.
    """
    host, port = address(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    until = time.monotonic() + LISTENING
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host or "localhost", port), 1.0) as line:
            hello = ssl.MemoryBIO()
            with suppress(ssl.SSLWantReadError):
                context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="hub").do_handshake()
            line.sendall(hello.read())
            if line.recv(1):
                return
        time.sleep(0.02)
    what, fix = f"nothing listens on {url}", "check the address and the certificates"
    raise RunError(what, fix=fix, reason="unusable-address")


PATIENCE = 5.0  # seconds for each answer
EVERY = 15.0  # seconds between two looks
KITS = (
    "is it the kit of the coordinator's own `secure-fl pilot init`, not of an earlier one, and are "
    "both clocks right? If so, ask the coordinator for new kits"
)


def diagnose(url: str, tls: TlsFiles) -> str:
    """Diagnose why this end cannot connect; empty if the coordinator accepts its certificate."""
    host, port = address(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(tls.root)
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        return f"the certificates of this kit cannot be read ({_reason(error)}): copy it whole"
    try:
        with dial(host, port, PATIENCE) as line:
            with context.wrap_socket(line, server_hostname=host) as secure:
                if not secure.recv(1):  # gRPC speaks first, to those whom it lets in
                    return f"{host}:{port} refuses this kit's certificate (it hangs up): {KITS}"
    except ssl.SSLCertVerificationError as error:
        issuer = _issuer(host, port)
        return (
            f"{host}:{port} has another certificate ({error.verify_message}), of {issuer}: {KITS}. "
            "Or does a proxy or firewall open TLS on the way? It must let the port through as it is"
        )
    except ProxyRefused as error:
        return str(error)
    except ssl.SSLError as error:
        return f"{host}:{port} refuses this kit's certificate ({_reason(error)}): {KITS}"
    except socket.gaierror:
        return f"the name {host} is not known here: is it the coordinator's? ask who runs the net"
    except ConnectionRefusedError:
        return f"nothing listens on {host}:{port}: the coordinator is not started yet"
    except ConnectionResetError:  # how an alert arrives where the line is closed at once
        return f"{host}:{port} hangs up: it may refuse this kit's certificate; {KITS}"
    except TimeoutError:
        return f"{host}:{port} does not answer: does a firewall let TCP through to that port?"
    except OSError as error:
        return f"{host}:{port} cannot be reached: {_reason(error)}"
    return ""


@contextmanager
def explaining(
    connected: Callable[[], bool],
    url: str,
    tls: TlsFiles,
    tell: Callable[[str], None],
    every: float = EVERY,
) -> Iterator[None]:
    """While inside, tell why there is no connection; the same reason once until it is back."""
    said = ""

    def look(over: threading.Event) -> None:
        nonlocal said
        if connected():
            said = ""
        elif (why := diagnose(url, tls)) and why != said and not over.is_set():
            said = why
            tell(why)

    with looking(look, every):
        yield


@contextmanager
def looking(look: Callable[[threading.Event], None], every: float) -> Iterator[None]:
    """While inside, look again and again; what is handed over is set when it is over."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every):
            look(over)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _issuer(host: str, port: int) -> str:
    """Name the issuer of the certificate shown there; for the message only, nothing is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with dial(host, port, PATIENCE) as line, context.wrap_socket(line) as secure:
            shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return "an unknown issuer"
    return repr(shown.issuer.rfc4514_string()[:200])


def _reason(error: OSError) -> str:
    told = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (told or type(error).__name__).lower().replace("_", " ")
