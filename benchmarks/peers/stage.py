"""One run of a system in a network namespace, with measurements.

Bytes are counted on its loopback interface, and all its processes are read five times a second.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import psutil

from benchmarks.peers.inside.job import MISHAP

Env: TypeAlias = Mapping[str, str]
NONE: Env = MappingProxyType({})
PORT = 8002  # of every system's server
STEP = 0.2  # seconds between two looks
LONGEST = float(os.environ.get("PEERS_LONGEST", "600"))  # seconds that a run may take
FAILED = "failed.txt"
SAID = "meter.json"


EVERYTHING = 0x0003  # ETH_P_ALL
OUTGOING = 4  # loopback shows each packet twice; this is the first time
FORCE = 33  # SO_RCVBUFFORCE
LINK, HEAD = 14, 96  # bytes of a link's header, and of all headers


class Wire:
    """Bytes to a port, and from it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.up = self.down = 0
        self._end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
        with suppress(PermissionError):  # as root of this network alone: the usual buffer
            self._end.setsockopt(socket.SOL_SOCKET, FORCE, 1 << 28)
        self._end.bind(("lo", 0))
        self._end.settimeout(0.2)

    def watch(self, over: threading.Event) -> None:
        """Count until the end."""
        head = memoryview(bytearray(HEAD))
        while not over.is_set():
            try:
                size, about = self._end.recvfrom_into(head, HEAD, socket.MSG_TRUNC)
            except TimeoutError:
                continue
            if about[2] != OUTGOING:
                self.count(head[LINK:], size - LINK)

    def count(self, packet: memoryview, size: int) -> None:
        """Count one packet, if it is TCP to or from the port."""
        version = packet[0] >> 4
        kind, start = (packet[9], 4 * (packet[0] & 15)) if version == 4 else (packet[6], 40)
        if version in (4, 6) and kind == socket.IPPROTO_TCP:
            source, target = struct.unpack_from("!HH", packet, start)
            self.up += size * (target == self._port)
            self.down += size * (source == self._port)


@dataclass
class Meter:
    """CPU time and peak memory of all processes of a run."""

    server: re.Pattern[str]  # pattern of the server's command lines
    wire: Wire
    # time, CPU s, bytes up, bytes down
    ticks: list[tuple[float, float, int, int]] = field(default_factory=list)
    spent: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    servers: set[int] = field(default_factory=set)

    def look(self) -> None:
        """Read all processes once."""
        for process in started():
            with suppress(psutil.Error):
                times, pid = process.cpu_times(), process.pid
                self.spent[pid] = times.user + times.system
                self.memory[pid] = max(self.memory.get(pid, 0), process.memory_info().rss)
                if self.server.search(" ".join(process.cmdline())):
                    self.servers.add(pid)
        cpu = sum(self.spent.values())
        self.ticks.append((time.time(), cpu, self.wire.up, self.wire.down))

    def watch(self, over: threading.Event) -> None:
        """Read all processes until the end."""
        while not over.wait(STEP):
            self.look()


@dataclass
class Place:
    """Folders and processes of a run."""

    job: Path
    out: Path
    bin: Path  # of the system's own environment
    inside: Path
    stack: ExitStack
    mishap: str = ""  # mishap and site, as in `PEERS_MISHAP`
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    begun: dict[str, tuple[Sequence[str], Env, Path | None]] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The job's sites."""
        found: list[str] = json.loads((self.job / "job.json").read_text())["sites"]
        return found

    @property
    def reads(self) -> bool:
        """True if the server lies in this run."""
        from benchmarks.peers.mishaps import MISHAPS

        name = self.mishap.split(" ")[0]
        return bool(name) and MISHAPS[name].reads

    def environment(self) -> dict[str, str]:
        """Build the environment: one thread, the job's folders, the system's programs first."""
        return os.environ | {
            "PEERS_JOB": str(self.job),
            "PEERS_OUT": str(self.out),
            MISHAP: self.mishap,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(self.inside),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
        }

    def start(
        self, log: str, command: Sequence[str], more: Env = NONE, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process that ends with the run."""
        file = self.stack.enter_context((self.out / f"{log}.log").open("ab"))
        process = subprocess.Popen(
            command,
            cwd=cwd or self.out,
            env={**self.environment(), **more},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        self.stack.callback(process.kill)
        self.running[log], self.begun[log] = process, (command, more, cwd)
        return process

    def again(self, log: str) -> None:
        """Restart a process that ended."""
        self.start(log, *self.begun[log])

    def do(
        self, log: str, command: Sequence[str], more: Env = NONE, cwd: Path | None = None
    ) -> None:
        """Run a command and wait for it."""
        if code := self.start(log, command, more, cwd).wait(LONGEST):
            tail = (self.out / f"{log}.log").read_text(errors="replace")[-600:]
            raise RuntimeError(f"{command[0]} ended with {code}: {tail}")

    def until(self, what: str, there: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        end = time.time() + LONGEST
        while not there():
            if time.time() > end:
                raise TimeoutError(f"{what} did not come")
            time.sleep(STEP)

    def until_open(self, port: int) -> None:
        """Wait until a port accepts connections."""

        def listens() -> bool:
            with socket.socket() as end:
                return end.connect_ex(("127.0.0.1", port)) == 0

        self.until(f"a server on port {port}", listens)


def started() -> Iterator[psutil.Process]:
    """Yield all other processes in this network, also those that left their parents."""
    here = os.readlink("/proc/self/ns/net")
    for process in psutil.process_iter():
        with suppress(OSError):
            if process.pid != os.getpid() and os.readlink(f"/proc/{process.pid}/ns/net") == here:
                yield process


def raise_loopback() -> None:
    """Switch the network's loopback interface on."""
    get, put, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(end, get, asked)[:18])[1]
        fcntl.ioctl(end, put, struct.pack("16sh", b"lo", flags | up))


def main(job: str, out: str, name: str, bin: str, mishap: str = "") -> None:
    """Run one system, with a mishap or without, and write the measurements or the error."""
    from benchmarks.peers.mishaps import happen
    from benchmarks.peers.ways import WAYS

    way, place = WAYS[name], Path(out)
    place.mkdir(parents=True)
    raise_loopback()
    over, wire = threading.Event(), Wire(PORT)
    meter = Meter(re.compile(way.server), wire)
    watches = [threading.Thread(target=one.watch, args=(over,)) for one in (meter, wire)]
    began = time.time()
    for watch in watches:
        watch.start()
    try:
        with ExitStack() as stack:
            inside = Path(__file__).parent / "inside"
            here = Place(Path(job), place, Path(bin), inside, stack, mishap)
            happen(here, way, over)
            way.run(here)
            ended = time.time()
            meter.look()
    except Exception as error:  # the error is the row of the table
        (place / FAILED).write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error
    finally:
        over.set()
        for watch in watches:
            watch.join()
        for process in started():
            with suppress(psutil.Error):
                process.kill()
    said = {
        "began": began,
        "ended": ended,
        "ticks": meter.ticks,
        "peak_server": max((meter.memory[pid] for pid in meter.servers), default=0),
        "peak_site": max((m for p, m in meter.memory.items() if p not in meter.servers), default=0),
    }
    (place / SAID).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
