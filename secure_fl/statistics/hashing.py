"""Sketches: which buckets the words or records of a site fall into, under a key of the members.

SipHash with a key that all members share and the coordinator does not know; a site's own buckets
are never opened, only their sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Integers = NDArray[np.int64]
ROWS = 3  # of a sketch that must tell records apart: (share of full buckets)³ are taken for others


def words_of(text: Any) -> Any:
    """The different words of all texts, in small letters."""
    words = text.dropna().astype(str).str.lower().str.findall(r"\w+").explode()
    return words.dropna().drop_duplicates()


def records_of(text: Any) -> Any:
    """The different texts, whatever their spaces and capitals."""
    plain = text.dropna().astype(str).str.lower().str.split().str.join(" ")
    return plain[plain != ""]


def buckets_of(values: Any, count: int, key: bytes, row: int = 0) -> Integers:
    """The bucket of each value."""
    if not len(values):
        return np.zeros(0, np.int64)
    from hashlib import sha256

    own = sha256(key + bytes([row])).hexdigest()[:16]
    hashed = pd.util.hash_array(np.asarray(values, dtype=object), hash_key=own, categorize=False)
    return np.asarray(hashed % np.uint64(count), np.int64)


def bitmap(buckets: Integers, count: int) -> Integers:
    """1 where something is, 0 elsewhere."""
    return (np.bincount(buckets, minlength=count) > 0).astype(np.int64)


def distinct(total: NDArray[Any]) -> tuple[float, float]:
    """How many different values filled these buckets, and the standard error (linear counting).

    n = -m ln V, where V of the m buckets are empty (Whang et al., ACM TODS 15, 1990).
    """
    m, empty = total.size, int((total == 0).sum())
    if not empty:
        return math.inf, math.inf
    count = -m * math.log(empty / m)
    load = count / m
    return count, math.sqrt(m * max(math.exp(load) - load - 1, 0.0))


def elsewhere(own: Sequence[Integers], totals: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of a site's own records some other site holds: all of their buckets are of two."""
    held = [totals[row][buckets] > 1 for row, buckets in enumerate(own)]
    return np.asarray(np.logical_and.reduce(held))
