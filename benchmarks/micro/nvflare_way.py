"""How NVFLARE 2.9 protects an update, for comparison: TenSEAL's CKKS vectors.

Its settings (`lighter/impl/he.py`): ring 8192, moduli [60, 40, 40], scale 2^40, symmetric keys. A
site makes one `ckks_vector` of each tensor and serialises it together with the context; the server
adds, multiplies by one over the sum of weights and sends the mean back; every site decrypts it.
Its own classes do the work where `nvflare` is installed, and the same calls by hand elsewhere.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

RING, MODULI, SCALE = 8192, [60, 40, 40], 2.0**40

Tensors: TypeAlias = Mapping[str, NDArray[np.float32]]
Upload: TypeAlias = dict[str, tuple[bytes, bytes]]  # tensor -> serialised vector and context


@dataclass(frozen=True, slots=True)
class Site:
    """What a site runs: `seal` turns tensors into bytes, `open` turns the mean back."""

    seal: Callable[[Tensors], Upload]
    open: Callable[[Mapping[str, bytes]], dict[str, NDArray[np.float64]]]
    own_classes: bool  # NVFLARE's own, or the same calls by hand


@contextmanager
def quiet() -> Iterator[None]:
    """Keep TenSEAL's C++ warnings, printed for every long vector, out of the benchmark's output."""
    flush, kept = ctypes.CDLL(None).fflush, os.dup(1)
    flush(None)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def make_context() -> Any:
    """Make the sites' context, as NVFLARE's provisioning does."""
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=RING,
        coeff_mod_bit_sizes=MODULI,
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
    )
    context.generate_relin_keys()
    context.global_scale = SCALE
    return context


def make_site(context: Any) -> Site:
    """A site with NVFLARE's own classes, or without them."""
    return _with_classes(context) if find_spec("nvflare") else _by_hand(context)


class Server:
    """The server: adds uploads as they arrive and sends the mean back.

    Differs: uploads are read with one context instead of the copy that comes with each vector,
    which is faster than what NVFLARE does.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._totals: dict[str, Any] = {}
        self._uploads = 0

    def add(self, upload: Upload) -> None:
        """Add one site's upload."""
        for name, (data, _) in upload.items():
            vector = ts.ckks_vector_from(self._context, data)
            self._totals[name] = self._totals[name] + vector if self._uploads else vector
        self._uploads += 1

    def result(self) -> dict[str, bytes]:
        """The mean."""
        weight = 1.0 / self._uploads
        return {name: (total * weight).serialize() for name, total in self._totals.items()}


def _by_hand(context: Any) -> Site:
    def seal(tensors: Tensors) -> Upload:
        upload = {}
        for name, values in tensors.items():
            # weighed by a number of local steps, which also turns float32 into float64
            vector = ts.ckks_vector(context, values.ravel() * np.float64(1))
            upload[name] = vector.serialize(), vector.context().serialize()
        return upload

    def open_(mean: Mapping[str, bytes]) -> dict[str, NDArray[np.float64]]:
        key = context.secret_key()
        return {
            name: np.asarray(ts.ckks_vector_from(context, data).decrypt(secret_key=key))
            for name, data in mean.items()
        }

    return Site(seal, open_, own_classes=False)


def _with_classes(context: Any) -> Site:
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_opt.he.decomposers import (
        CKKSVectorDecomposer,
    )
    from nvflare.app_opt.he.model_decryptor import (
        HEModelDecryptor,
    )
    from nvflare.app_opt.he.model_encryptor import (
        HEModelEncryptor,
    )

    encryptor, decryptor = HEModelEncryptor(), HEModelDecryptor()
    encryptor.tenseal_context = decryptor.tenseal_context = context
    encryptor.encrypt_layers, encryptor.n_iter = [True], 1
    decomposer, around = CKKSVectorDecomposer(), FLContext()

    def seal(tensors: Tensors) -> Upload:
        vectors, _ = encryptor.encryption(dict(tensors), around)
        return {name: decomposer.decompose(vector) for name, vector in vectors.items()}

    def open_(mean: Mapping[str, bytes]) -> dict[str, NDArray[np.float64]]:
        opened = decryptor.decryption(dict(mean), dict.fromkeys(mean, True), around)
        return {name: np.asarray(values) for name, values in opened.items()}

    return Site(seal, open_, own_classes=True)
