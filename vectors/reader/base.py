"""Digests, key derivation, MessagePack and refusals (sections 1 and 2)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class Refused(Exception):  # noqa: N818 - it names what the reader did
    """A check failed; `code` is the reason of section 1.7."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def require(condition: bool, code: str) -> None:
    """Refuse unless the condition is true."""
    if not condition:
        raise Refused(code)


def sha(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def labelled(label: bytes, *parts: bytes) -> bytes:
    """D of 1.2: each part after its length in 8 bytes."""
    return sha(b"".join(len(part).to_bytes(8, "big") + part for part in (label, *parts)))


def commit(secret: bytes, *about: object) -> bytes:
    """C of 1.3."""
    return labelled(b"secure-fl dealt", " ".join(map(str, about)).encode(), secret)


def keyed(key: bytes, data: bytes, context: bytes) -> bytes:
    """M of 1.4."""
    return hmac.digest(key, context + b"\0" + data, "sha256")


def expand(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF-SHA256 without salt (1.5)."""
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


def derive(secret: bytes, label: bytes, *parts: bytes, length: int = 32) -> bytes:
    """K of 1.5."""
    return expand(secret, labelled(label, *parts), length)


def spoken(digest: bytes) -> str:
    """The printed form of a fingerprint (1.6)."""
    number = int.from_bytes(labelled(b"secure-fl spoken", digest), "big") % 10**40
    return " ".join(f"{number:040d}"[i : i + 5] for i in range(0, 40, 5))


def sizes_cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split bytes into parts of these sizes."""
    require(sum(sizes) == len(data), "cohort:sizes")
    parts, start = [], 0
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return parts


# --- MessagePack (1.8) ----------------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """Encode in the shortest form."""
    match value:
        case None | bool():
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int():
            if value < 128:
                return bytes([value])
            size = next(n for n in range(4) if value < 1 << (8 << n))
            return bytes([0xCC + size]) + value.to_bytes(1 << size, "big")
        case str():
            data = value.encode()
            if len(data) < 32:
                return bytes([0xA0 + len(data)]) + data
            return _head(0xD9, len(data), 3) + data
        case bytes():
            return _head(0xC4, len(value), 3) + value
        case Mapping():
            items = [part for pair in value.items() for part in pair]
            return _several(0x80, 0xDE, len(value), items)
    return _several(0x90, 0xDC, len(value), value)


def _head(first: int, length: int, kinds: int) -> bytes:
    size = next(n for n in range(kinds) if length < 1 << (8 << n))
    return bytes([first + size]) + length.to_bytes(1 << size, "big")


def _several(short: int, long: int, count: int, items: Sequence[Any]) -> bytes:
    if count < 16:
        head = bytes([short + count])
    else:
        size = 2 if count < 1 << 16 else 4
        head = bytes([long + size // 4]) + count.to_bytes(size, "big")
    return head + b"".join(map(packed, items))


def unpacked(data: bytes) -> Any:
    """Decode one value that is all of the bytes; a ValueError for anything else."""
    value, end = one_value(data, 0)
    if end != len(data):
        raise ValueError("bytes after the value")
    return value


def one_value(data: bytes, at: int) -> tuple[Any, int]:
    """Decode the value at a place; return the place after it too."""
    first = _take(data, at, 1)[0]
    at += 1
    if first < 0x80:
        return first, at
    if first < 0x90:
        return _map(data, at, first & 15)
    if first < 0xA0:
        return _array(data, at, first & 15)
    if first < 0xC0:
        return _text(data, at, first & 31)
    if first >= 0xE0:
        return first - 256, at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    for start, size, read in _LONG:
        if start <= first < start + len(size):
            width = size[first - start]
            length = int.from_bytes(_take(data, at, width), "big")
            return read(data, at + width, length)
    if 0xCC <= first <= 0xD3:
        width = 1 << (first & 3)
        number = int.from_bytes(_take(data, at, width), "big", signed=first >= 0xD0)
        return number, at + width
    if first == 0xCB:
        return struct.unpack(">d", _take(data, at, 8))[0], at + 8
    raise ValueError(f"byte {first:#x}")


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("cut short")
    return data[at : at + size]


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    return _take(data, at, length).decode(), at + length


def _binary(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    return _take(data, at, length), at + length


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = one_value(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items, at = _array(data, at, 2 * count)
    return dict(zip(items[::2], items[1::2], strict=True)), at


_LONG: tuple[tuple[int, tuple[int, ...], Callable[[bytes, int, int], tuple[Any, int]]], ...] = (
    (0xC4, (1, 2, 4), _binary),
    (0xD9, (1, 2, 4), _text),
    (0xDC, (2, 4), _array),
    (0xDE, (2, 4), _map),
)
