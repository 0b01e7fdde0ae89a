"""The network that tests of pilots go over is as slow, lossy and closed as it says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.network import ADDRESS, HUB, Network, NetworkLine, missing

pytestmark = pytest.mark.skipif(bool(why := missing()), reason=why)

ECHO = f"""
import socket
server = socket.create_server(("{ADDRESS}", 443))
print("up", flush=True)
while True:
    line, _ = server.accept()
    while data := line.recv(65536):
        line.sendall(data)
"""
ASK = f"""
import socket, time
line = socket.create_connection(("{ADDRESS}", 443), 3)
line.settimeout(SILENCE)
for size, pause in PLAN:
    time.sleep(pause)
    start, got = time.monotonic(), 0
    line.sendall(bytes(size))
    while got < size:
        got += len(line.recv(65536))
    print(time.monotonic() - start)
"""


@contextmanager
def echoing(network: Network) -> Iterator[None]:
    command = [*network.within(HUB), sys.executable, "-c", ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "up\n"
        try:
            yield
        finally:
            server.kill()


def asked(network: Network, *plan: tuple[int, float], silence: float = 10) -> list[float]:
    """Seconds that each echo took, up to the one that never came."""
    code = ASK.replace("PLAN", repr(plan)).replace("SILENCE", repr(silence))
    command = [*network.within("north"), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def test_delay_rate_blackouts_and_firewalls() -> None:
    with Network(["north"]) as network, echoing(network):
        line = network.lines["north"]
        (quick,) = asked(network, (10, 0.0))
        line.delay = 0.04
        (slow,) = asked(network, (10, 0.0))
        assert quick < 0.05 and 0.08 <= slow < 0.2
        line.delay, line.rate = 0.0, 250_000
        (large,) = asked(network, (150_000, 0.0))
        assert large > 0.6  # there, while the first bytes are on their way back
        line.rate, line.ports = None, frozenset({8443})
        assert asked(network, (10, 0.0)) == []
        line.ports = frozenset({443})
        assert len(asked(network, (10, 0.0))) == 1
        network.move("north")
        assert len(asked(network, (10, 0.0))) == 1
        line.down = True
        assert asked(network, (10, 0.0), silence=1) == []


def test_a_connection_that_is_silent_is_forgotten_and_one_that_speaks_is_not() -> None:
    with Network(["north"]) as network, echoing(network):
        line = network.lines["north"]
        line.forgets = 0.8
        assert len(asked(network, (9, 0.0), (9, 0.4), (9, 0.4), (9, 0.4))) == 4
        assert line.cut == 0
        assert len(asked(network, (9, 0.0), (9, 1.5), silence=1)) == 1
        assert line.cut > 0


def test_as_many_packets_are_lost_as_it_says() -> None:
    import random

    lossy, packet = NetworkLine(loss=0.01), bytes([0x45, *bytes(8), 17, *bytes(30)])
    luck, began = random.Random(1), time.monotonic()
    passed = sum(lossy.passes(packet, True, began, luck) for _ in range(20_000))
    assert 0.985 < passed / 20_000 < 0.995
