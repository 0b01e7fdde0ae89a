"""Drives a real headless browser over its own pipe: no driver, no port, no further package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere
    "--proxy-server=127.0.0.1:9",  # and no address either
    "--remote-debugging-pipe",
)


@cache
def find() -> str | None:
    """The path of a browser that starts, if this machine has one."""
    paths = (path for name in NAMES if (path := shutil.which(name)))
    return next((path for path in paths if _starts(path)), None)


def _starts(path: str) -> bool:
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


class Tab:
    """One page: what it is told by the DevTools protocol, and the events it has reported."""

    def __init__(self, orders: int, reports: int) -> None:
        self._orders, self._reports, self._rest = orders, reports, b""
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Give an order and wait for its answer; the pipe's end is an error."""
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": params} | self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self.events.append(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._reports, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, file: Path) -> None:
        """Load a file and wait until it is complete."""
        seen = len(self.events)
        self.send("Page.navigate", url=file.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events[seen:]):
            self.events.append(self._next())

    def ask(self, script: str) -> Any:
        """The value of a script in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key and let go."""
        text = {"Enter": {"text": "\r"}}.get(key, {})
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **known)

    def show(self, width: int, scheme: str = "light", media: str = "") -> None:
        """Set the window's width and what the reader prefers."""
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **sizes)
        prefers = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=prefers)

    def picture(self, whole: bool = False) -> bytes:
        """What is shown, as PNG."""
        made = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(made["data"])

    def pdf(self) -> bytes:
        """The page as it prints, without backgrounds, as browsers do."""
        made = self.send("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(made["data"])


@contextmanager
def tab(path: str, profile: Path) -> Iterator[Tab]:
    """A browser with one page, ended when the block ends."""
    to_browser, from_browser = os.pipe(), os.pipe()
    # The protocol speaks on the descriptors 3 and 4, which only a shell can set for a child.
    script = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    command = ["bash", "-c", script, "bash", path, *FLAGS, f"--user-data-dir={profile}"]
    theirs = (to_browser[0], from_browser[1])
    browser = subprocess.Popen(
        command, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for descriptor in theirs:
        os.close(descriptor)
    try:
        yield Tab(to_browser[1], from_browser[0])
    finally:
        os.close(to_browser[1])  # it ends by itself, and clears up
        os.close(from_browser[0])
        try:
            browser.wait(20)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
