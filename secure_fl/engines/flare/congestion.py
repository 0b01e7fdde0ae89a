"""What this machine's TCP does about lost packets.

By `cubic`, the usual one, each lost packet counts as a sign of a full line, and slows the sender
down: one in a hundred leaves a twentieth of a line of 20 Mbit/s (`python -m benchmarks network`).
`bbr` measures what a line carries. The kernel decides, so its administrator has to.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PATIENT = "bbr"  # loss alone does not slow it down


def in_use() -> str:
    """The kernel's name of it; empty where the system does not tell."""
    try:
        return FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def slowed_by_loss() -> bool:
    """Whether a line that loses packets will be far slower than it could be."""
    return in_use() not in ("", PATIENT)
