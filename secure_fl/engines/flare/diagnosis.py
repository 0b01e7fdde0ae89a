"""Why a hospital is not connected, in words: FLARE dials again and again, and says nothing.

One handshake of our own, with the same certificates, as gRPC makes it. Nothing is sent but that.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secure_fl.engines.flare.port import address
from secure_fl.engines.flare.tls import TlsFiles

PATIENCE = 5.0  # seconds for each answer
EVERY = 15.0  # seconds between two looks
KITS = (
    "is it the kit of the coordinator's own `secure-fl pilot init`, not of an earlier one, and are "
    "both clocks right? If so, ask the coordinator for new kits"
)


def diagnose(url: str, tls: TlsFiles) -> str:
    """What keeps this end from being connected; empty if the coordinator takes its certificate."""
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
        with socket.create_connection((host, port), PATIENCE) as line:
            with context.wrap_socket(line, server_hostname=host) as secure:
                if not secure.recv(1):  # gRPC speaks first, to those whom it lets in
                    return f"{host}:{port} refuses this kit's certificate (it hangs up): {KITS}"
    except ssl.SSLCertVerificationError as error:
        return f"{host}:{port} has another certificate ({error.verify_message}): {KITS}"
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
    over = threading.Event()

    def watch() -> None:
        said = ""
        while not over.wait(every):
            if connected():
                said = ""
            elif (why := diagnose(url, tls)) and why != said and not over.is_set():
                said = why
                tell(why)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _reason(error: OSError) -> str:
    told = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (told or type(error).__name__).lower().replace("_", " ")
