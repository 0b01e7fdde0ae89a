"""Values that are passed on rather than summed, as bytes and back. Never unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from secure_fl.errors import CryptoError


def pack(values: Mapping[str, Any]) -> bytes:
    """Named arrays as safetensors."""
    return safetensors.numpy.save({n: np.ascontiguousarray(v) for n, v in values.items()})


def unpack(data: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `pack`."""
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        # KeyError: safetensors has types that numpy lacks, such as bfloat16
        raise CryptoError("a relayed value does not decode") from error
