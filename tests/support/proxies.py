"""An HTTP proxy as hospitals have them: it tunnels, wants a password, refuses, or opens TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Tunnels:
    """A CONNECT proxy on this machine; `asked` is every target that somebody wanted."""

    def __init__(self, login: str | None = None, refuses: bool = False) -> None:
        self.login, self.refuses = login, refuses
        self.opens: ssl.SSLContext | None = None  # shows a certificate of its own instead
        self.asked: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # `accept` returns
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError), line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(4096)
            target = head.split()[1].decode()
            self.asked.append(target)
            wanted = self.login and b"Basic " + b64encode(self.login.encode())
            if wanted and wanted not in head:
                line.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            elif self.refuses:
                line.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            else:
                line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._carry(line, target)

    def _carry(self, line: socket.socket, target: str) -> None:
        if self.opens is not None:
            with self.opens.wrap_socket(line, server_side=True) as opened:
                opened.recv(1)
            return
        host, port = target.rsplit(":", 1)
        with socket.create_connection((host.strip("[]"), int(port))) as there:
            back = threading.Thread(target=_pump, args=(there, line), daemon=True)
            back.start()
            _pump(line, there)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(login: str | None = None, *, refuses: bool = False) -> Iterator[Tunnels]:
    """A proxy while inside."""
    made = Tunnels(login, refuses)
    try:
        yield made
    finally:
        made.close()
