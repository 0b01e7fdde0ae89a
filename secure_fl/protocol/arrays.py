"""Values that are passed on rather than summed, as bytes and back. Never unpickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from secure_fl.errors import CohortError, CryptoError


def pack(values: Mapping[str, Any]) -> bytes:
    """Named arrays as safetensors."""
    return safetensors.numpy.save({n: np.ascontiguousarray(v) for n, v in values.items()})


def unpack(data: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `pack`."""
    try:
        return safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise CryptoError("a relayed value does not decode") from error


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The parts of a bulk."""
    if sum(sizes) != len(data):
        raise CohortError("the sizes of a bulk's parts do not add up")
    starts = accumulate(sizes, initial=0)
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=False)]
