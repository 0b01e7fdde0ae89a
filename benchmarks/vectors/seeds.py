"""Randomness from a fixed seed, for the script that writes vectors and for nothing else.

Python's random bytes all come from two functions of the operating system, and SEAL's from a factory
of generators. Both are replaced while vectors are written; the product does not change.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tenseal import sealapi

from secure_fl.crypto.keys.identity import PRIVATE_BYTES, VERSION, Identity


@contextmanager
def seeded(label: str) -> Iterator[None]:
    """Replace all randomness but OpenSSL's own by streams that follow from a label."""
    stream, contexts, parameters = (
        hashlib.shake_256(label.encode()),
        0,
        sealapi.EncryptionParameters,
    )
    used = 0

    def draw(size: int) -> bytes:
        nonlocal used
        used += size
        return stream.digest(used)[-size:] if size else b""

    def made(scheme: Any) -> Any:
        nonlocal contexts
        contexts += 1
        found = parameters(scheme)
        seed = hashlib.sha512(f"{label} {contexts}".encode()).digest()
        words = [int.from_bytes(seed[i : i + 8], "big") for i in range(0, 64, 8)]
        found.set_random_generator(sealapi.Blake2xbPRNGFactory(words))
        return found

    with (
        patch.object(os, "urandom", draw),
        patch.object(random, "_urandom", draw),
        patch.object(sealapi, "EncryptionParameters", made),
    ):
        yield


def bytes_of(label: str, size: int = 32) -> bytes:
    """Return bytes that follow from a label."""
    return hashlib.shake_256(label.encode()).digest(size)


def identity(name: str) -> Identity:
    """Make the identity of a name."""
    return Identity.from_private_bytes(
        VERSION + bytes_of(f"identity {name}", PRIVATE_BYTES) + name.encode()
    )
