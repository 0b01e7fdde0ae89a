"""A simulated network with delay, loss and outages, for tests of pilots.

The coordinator and each site live in network namespaces. Their only way to each other is a pair of
tun devices whose other end is this process, so every packet can be delayed, lost or dropped here.
It needs root and `ip`, and no kernel module: netem is missing in many containers.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

HUB, ADDRESS = "hub", "10.77.0.1"
HUB_NAME = "hub.test"  # under which all find the coordinator, wherever it moves
TUN, NAMES = Path("/dev/net/tun"), Path("/etc/netns")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LONGEST_QUEUE = 0.5  # seconds of packets that a slow line holds; more are dropped, as routers do
TCP, SYN = 6, 0x02


def missing() -> str:
    """Explain why no network can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2"
    probe = ["ip", "netns", "add", name := f"probe-{os.getpid()}"]
    if not TUN.exists() or subprocess.run(probe, capture_output=True).returncode:
        return "network namespaces or tun devices are not permitted here"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@dataclass
class NetworkLine:
    """The quality of the line between a site and the coordinator; may change at any time."""

    delay: float = 0.0  # seconds, one way
    loss: float = 0.0  # share of packets
    rate: float | None = None  # bytes a second, each way
    down: bool = False
    ports: frozenset[int] | None = None  # of the coordinator, that a firewall lets through
    forgets: float | None = None  # seconds of silence after which a connection is cut
    cut: int = 0  # connections that were
    _seen: dict[frozenset[bytes], float] = field(default_factory=dict)

    def passes(self, packet: bytes, outward: bool, now: float, luck: random.Random) -> bool:
        """Return True if a packet gets through."""
        if self.down or packet[0] >> 4 != 4 or luck.random() < self.loss:
            return False
        start = (packet[0] & 15) * 4
        if packet[9] != TCP:
            return True
        source, target = packet[start : start + 2], packet[start + 2 : start + 4]
        hub = int.from_bytes(target if outward else source, "big")
        if self.ports is not None and hub not in self.ports:
            return False
        return self.forgets is None or self._known(packet, source, target, now, start)

    def _known(self, packet: bytes, source: bytes, target: bytes, now: float, start: int) -> bool:
        flow = frozenset((packet[12:16] + source, packet[16:20] + target))
        last = self._seen.get(flow, now if packet[start + 13] & SYN else 0.0)
        if now - last > (self.forgets or 0.0):
            self.cut += flow in self._seen
            self._seen[flow] = 0.0
            return False
        self._seen[flow] = now
        return True


class Network:
    """Namespaces for the coordinator and some sites, with a line to each."""

    def __init__(self, sites: Sequence[str], seed: int = 0, control: str = "") -> None:
        """`control`: what TCP does about loss, by the kernel's name; else as the machine does."""
        self._control = control
        self._tag = f"{os.getpid()}-{id(self) % 10_000}"
        self.lines = {site: NetworkLine() for site in sites}
        self._places = {name: index for index, name in enumerate(sites, 1)}
        self._hosts = dict.fromkeys(sites, 2)  # the last number of each site's address
        self._hub = ADDRESS
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seed = seed

    def within(self, name: str) -> list[str]:
        """Return the command prefix that runs a command at a site, or at the coordinator."""
        return ["ip", "netns", "exec", self._space(name)]

    def move(self, site: str) -> None:
        """Give a site another address; its old one is gone."""
        place, before = self._places[site], self._hosts[site]
        self._hosts[site] += 1
        _ip("-n", self._space(site), "addr", "add", f"10.77.{place}.{before + 1}/32", "dev", "out")
        _ip("-n", self._space(site), "addr", "del", f"10.77.{place}.{before}/32", "dev", "out")
        _ip("-n", self._space(site), "route", "replace", "default", "dev", "out")

    def move_hub(self) -> None:
        """Give the coordinator another address, which its name leads to from now on."""
        before, self._hub = self._hub, f"10.77.0.{int(self._hub.rpartition('.')[2]) + 1}"
        _ip("-n", self._space(HUB), "addr", "add", f"{self._hub}/32", "dev", "lo")
        _ip("-n", self._space(HUB), "addr", "del", f"{before}/32", "dev", "lo")
        self._say_where()

    def _say_where(self) -> None:
        hosts = f"127.0.0.1 localhost\n{self._hub} {HUB_NAME}\n"
        for name in (HUB, *self.lines):
            (self._names(name) / "hosts").write_text(hosts)  # in place: commands have it mounted

    def _names(self, name: str) -> Path:
        """Return the folder that `ip netns exec` mounts over /etc."""
        return NAMES / self._space(name)

    def __enter__(self) -> Network:
        for name in (HUB, *self.lines):
            _ip("netns", "add", self._space(name))
            _ip("-n", self._space(name), "link", "set", "lo", "up")
            if self._control:
                command = ["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={self._control}"]
                subprocess.run([*self.within(name), *command], check=True)
            self._names(name).mkdir(parents=True)
        self._say_where()
        _ip("-n", self._space(HUB), "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        for site, place in self._places.items():
            ends = self._end(site, "out"), self._end(HUB, f"to{place}")
            _ip("-n", self._space(site), "addr", "add", f"10.77.{place}.2/32", "dev", "out")
            _ip("-n", self._space(site), "route", "add", "default", "dev", "out")
            net = ("route", "add", f"10.77.{place}.0/24", "dev", f"to{place}")
            _ip("-n", self._space(HUB), *net)
            carry = threading.Thread(target=self._carry, args=(self.lines[site], *ends))
            carry.start()
            self._threads.append(carry)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for name in (HUB, *self.lines):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(name))
            shutil.rmtree(self._names(name), ignore_errors=True)

    def _space(self, name: str) -> str:
        return f"sfl-{self._tag}-{name}"

    def _end(self, name: str, device: str) -> int:
        """Make a tun device, and move it to a namespace; what is read here was sent there."""
        end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        made = f"t{self._tag}"[:14].encode()
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", made, IFF_TUN | IFF_NO_PI))
        _ip("link", "set", made.decode(), "name", device, "netns", self._space(name))
        _ip("-n", self._space(name), "link", "set", device, "up")
        return end

    def _carry(self, line: NetworkLine, site: int, hub: int) -> None:
        """Carry packets both ways until it is over."""
        luck = random.Random(self._seed)
        under_way: list[tuple[float, int, int, bytes]] = []
        free, count = {site: 0.0, hub: 0.0}, 0  # when each way can take the next packet
        while not self._over.is_set():
            until = under_way[0][0] - time.monotonic() if under_way else 0.2
            for source in select.select([site, hub], [], [], max(0.0, min(until, 0.2)))[0]:
                with suppress(BlockingIOError):
                    packet, now = os.read(source, 65_536), time.monotonic()
                    leaves = max(now, free[source])
                    if leaves - now > LONGEST_QUEUE or not line.passes(
                        packet, source == site, now, luck
                    ):
                        continue
                    leaves += len(packet) / line.rate if line.rate else 0.0
                    free[source], count = leaves, count + 1
                    target = hub if source == site else site
                    heapq.heappush(under_way, (leaves + line.delay, count, target, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(under_way)
                with suppress(OSError):  # the device is going
                    os.write(target, packet)
        os.close(site)
        os.close(hub)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def alone() -> tuple[str, ...]:
    """Return the command prefix that runs a command without any network, loopback included."""
    return ("unshare", "--net")


def not_alone() -> str:
    """Explain why `alone` does not work here; empty if it does."""
    if shutil.which("unshare") is None:
        return "a process without network needs util-linux"
    if subprocess.run([*alone(), "true"], capture_output=True).returncode:
        return "a network namespace is not permitted here"
    return ""
